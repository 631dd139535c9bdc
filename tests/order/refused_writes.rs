//! Memory that a refused write left unwritten: which later ops fail, and until when.

use crate::support::recording::Recording;
use crate::support::{block_on, refusal, says, streams, unordered};
use warpline::prelude::*;
use warpline::{kernels, reads, writes};

/// Checks that `pending` fails because of an earlier refusal, and returns the error.
#[track_caller]
fn inherited<T: std::fmt::Debug>(pending: Pending<T>) -> Error {
    let error = refusal(pending);
    assert!(error.is_inherited(), "{error}");
    error
}

#[test]
fn an_inherited_error_names_both_lines_and_the_way_out() {
    let (_runtime, _, [owner, other]) = streams(["owner", "other"]);
    let (x, y) = (owner.alloc::<f32>(8).unwrap(), other.alloc::<f32>(8).unwrap());
    drop(owner.fill(&x, 1.0));
    let (write, line) = (other.fill(&x, 2.0), line!());
    other.wait_stream(&owner);
    let (read, reading) = (other.copy_buffer(&y, &x), line!());
    let error = inherited(read);
    says(
        &error,
        ErrorKind::Unordered,
        &[
            &format!(
                "copy_buffer on stream \"other\" (tests/order/refused_writes.rs:{reading}) reads memory that was not written"
            ),
            &format!(
                "an earlier op was refused: fill on stream \"other\" (tests/order/refused_writes.rs:{line})"
            ),
            "; await that op's Pending (or synchronize() its stream, if it was dropped), overwrite the \
            memory, or accept its contents with accept_contents()",
        ],
    );
    assert_eq!(error.site().expect("the op that failed").location.line(), reading);
    let source = std::error::Error::source(&error).expect("the earlier refusal").to_string();
    let first = refusal(write);
    assert_eq!(source, first.to_string());
    assert!(!first.is_inherited() && std::error::Error::source(&first).is_none());
    assert_eq!(first.site().expect("the op that was refused").op(), "fill");
}

#[test]
fn what_was_not_made_from_unwritten_memory_fails_its_readers_with_the_first_error() {
    let (_runtime, _, [owner, other]) = streams(["owner", "other"]);
    let x = owner.alloc::<f32>(8).unwrap();
    let [y, z] = [(); 2].map(|()| other.alloc::<f32>(8).unwrap());
    drop(owner.fill(&x, 1.0));
    drop(other.fill(&x, 2.0));
    other.wait_stream(&owner);
    drop(other.copy_buffer(&y, &x));
    drop(other.launch(kernels::relu(8, &y, &z), LaunchConfig::for_elements(8u32)));
    let first = "refused: fill on stream \"other\"";
    says(&inherited(other.read(&z.slice(3..4).unwrap())), ErrorKind::Unordered, &["read on stream", first]);
    drop(other.fill(&z, 5.0));
    assert_eq!(other.read(&z).blocking_wait().unwrap(), [5.0; 8], "overwriting all of it is a way out");
    says(&inherited(other.read(&y)), ErrorKind::Unordered, &["read on stream", first]);
    let copied = other.copy_buffer(&y, &x);
    inherited(copied);
    inherited(other.read(&x));
}

/// Sets up clients that share weights. One of them will be careless and look at no error.
fn attacked() -> (Runtime, Device, Buffer<f32>, StreamPool, Stream) {
    let (runtime, device, [serving]) = streams(["serving"]);
    let weights = serving.alloc::<f32>(4).unwrap();
    drop(serving.fill(&weights, 1.0));
    let pool = device.stream_pool(4).unwrap();
    (runtime, device, weights, pool, serving)
}

#[test]
fn one_clients_dropped_refusal_fails_no_other_client_but_who_waited_for_its_stream() {
    let (_runtime, _device, weights, pool, serving) = attacked();
    let attacker = block_on(pool.lease()).unwrap();
    let side = attacker.alloc::<f32>(4).unwrap();
    drop(attacker.fill(&weights, 666.0));
    attacker.fill(&side, 1.0).blocking_wait().expect("a later op, which the host observes");
    attacker.wait_for(&weights);
    inherited(attacker.read(&weights));

    let (victim, took) = (block_on(pool.lease()).unwrap(), block_on(pool.lease()).unwrap());
    for stream in [&victim, &took] {
        stream.wait_stream(&serving);
    }
    took.wait_stream(&attacker);
    assert_eq!(victim.read(&weights).blocking_wait().unwrap(), [1.0; 4]);
    inherited(took.read(&weights));
    drop(attacker);
    assert_eq!(victim.read(&weights).blocking_wait().unwrap(), [1.0; 4]);
    for _ in 0..2 {
        inherited(took.read(&weights));
    }
    let late = block_on(pool.lease()).unwrap();
    late.wait_for(&weights);
    assert_eq!(late.read(&weights).blocking_wait().unwrap(), [1.0; 4], "the attacker's lease has ended");
    late.wait_stream(&took);
    inherited(late.read(&weights));
    assert_eq!(serving.read(&weights).blocking_wait().unwrap(), [1.0; 4]);
    serving.wait_for(&weights);
    drop(serving.fill(&weights, 2.0));
    drop((late.wait_for(&weights), took.wait_for(&weights)));
    for stream in [&victim, &took, &late] {
        stream.wait_for(&weights);
        assert_eq!(stream.read(&weights).blocking_wait().unwrap(), [2.0; 4], "overwritten");
    }
}

#[test]
fn errors_of_the_arguments_leave_memory_as_it_was_for_everybody() {
    let (_runtime, device, weights, _pool, serving) = attacked();
    let other = crate::support::runtime(2).device(DeviceId::Cpu(1)).unwrap().new_stream();
    let short = serving.alloc::<f32>(3).unwrap();
    let all = LaunchConfig::for_elements(4u32);
    type Call<'a> = Box<dyn Fn() -> Pending<()> + 'a>;
    let calls: [Call<'_>; 6] = [
        Box::new(|| serving.write(&weights, &[0.0; 3])),
        Box::new(|| serving.copy_buffer(&weights, &short)),
        Box::new(|| serving.copy_buffer(&weights.slice(1..).unwrap(), &weights.slice(..3).unwrap())),
        Box::new(|| serving.launch(kernels::relu(5, &weights, &weights), all)),
        Box::new(|| serving.launch(kernels::relu(4, &weights, &weights), LaunchConfig::linear(0, 0))),
        Box::new(|| match &other {
            Ok(other) => other.fill(&weights, 0.0),
            Err(error) => Pending::refused(error.clone()),
        }),
    ];
    for call in calls {
        drop(call());
        let error = refusal(call());
        assert!(!error.is_inherited(), "{error}");
        assert_eq!(serving.read(&weights).blocking_wait().unwrap(), [1.0; 4], "{error}");
    }
    refusal(device.synchronize());
}

#[test]
fn a_mark_ends_with_a_look_at_its_own_pending_and_with_no_other() {
    let (_runtime, _, [owner, other]) = streams(["owner", "other"]);
    let (x, y) = (owner.alloc::<f32>(8).unwrap(), other.alloc::<f32>(8).unwrap());
    type Look = fn(Pending<()>);
    let looks: [Look; 3] = [
        |refused| drop(unordered(refused)),
        |refused| drop(refused.queued().unwrap_err()),
        |mut refused| drop(refused.query().unwrap_err()),
    ];
    for look in looks {
        drop(owner.fill(&x, 1.0));
        let refused = other.fill(&x, 2.0);
        other.wait_stream(&owner);
        inherited(other.read(&x));
        inherited(other.copy_buffer(&y, &x));
        inherited(other.read(&x));
        look(refused);
        assert_eq!(other.read(&x).blocking_wait().unwrap(), [1.0; 8]);
        owner.wait_stream(&other);
    }
}

#[test]
fn a_mark_ends_when_synchronize_returns_its_error() {
    let (_runtime, device, [owner, other]) = streams(["owner", "other"]);
    let x = owner.alloc::<f32>(8).unwrap();
    for synchronize in [
        |_: &Device, stream: &Stream| stream.synchronize(),
        |device: &Device, _: &Stream| device.synchronize(),
    ] {
        drop(owner.fill(&x, 1.0));
        drop(other.fill(&x, 2.0));
        other.wait_stream(&owner);
        inherited(other.read(&x));
        drop(synchronize(&device, &other));
        inherited(other.read(&x));
        unordered(synchronize(&device, &other));
        assert_eq!(other.read(&x).blocking_wait().unwrap(), [1.0; 8]);
        owner.wait_stream(&other);
    }
}

#[test]
fn marks_add_up_and_each_has_an_end_of_its_own() {
    let (_runtime, _, [owner, other]) = streams(["owner", "other"]);
    let x = owner.alloc::<f32>(8).unwrap();
    drop(owner.fill(&x, 1.0));
    let (all, half) = (other.fill(&x, 2.0), other.fill(&x.slice(..4).unwrap(), 3.0));
    other.wait_stream(&owner);
    let read = |range: std::ops::Range<usize>| other.read(&x.slice(range).unwrap());
    unordered(all);
    assert_eq!(read(4..8).blocking_wait().unwrap(), [1.0; 4]);
    inherited(read(0..8));
    unordered(half);
    assert_eq!(read(0..8).blocking_wait().unwrap(), [1.0; 8]);
}

#[test]
fn refusals_beyond_the_most_marks_of_a_stream_end_only_with_their_bytes() {
    let (_runtime, _, [owner, other]) = streams(["owner", "other"]);
    let x = owner.alloc::<f32>(400).unwrap();
    drop(owner.fill(&x, 1.0));
    let cell = |n: usize| x.slice(n..n + 1).unwrap();
    let refused: Vec<_> = (0..200).map(|n| other.fill(&cell(2 * n), 2.0)).collect();
    other.wait_stream(&owner);
    refused.into_iter().for_each(|refused| drop(unordered(refused)));
    assert_eq!(
        other.read(&cell(0)).blocking_wait().unwrap(),
        [1.0],
        "one of the first has a mark of its own"
    );
    inherited(other.read(&cell(398)));
    assert_eq!(owner.read(&x).blocking_wait().unwrap(), [1.0; 400]);
    drop(other.fill(&x, 3.0));
    assert_eq!(other.read(&x).blocking_wait().unwrap(), [3.0; 400]);
}

#[test]
fn a_stream_that_waits_for_many_careless_ones_does_not_collect_their_marks() {
    let (_runtime, device, weights, pool, serving) = attacked();
    let waits = device.new_stream().unwrap();
    waits.wait_stream(&serving);
    for _ in 0..300 {
        let careless = pool.try_lease().unwrap().expect("the others have ended");
        drop(careless.fill(&weights, 666.0));
        waits.wait_stream(&careless);
        drop(careless);
        crate::support::finish_unobserved(&waits);
    }
    assert!(weights.bookkeeping().marks <= 65, "{:?}", weights.bookkeeping());
    inherited(waits.read(&weights));
    assert_eq!(serving.read(&weights).blocking_wait().unwrap(), [1.0; 4]);
    drop(serving.fill(&weights, 2.0));
    waits.wait_stream(&serving);
    assert_eq!(waits.read(&weights).blocking_wait().unwrap(), [2.0; 4]);
    assert_eq!(weights.bookkeeping().marks, 0);
}

#[test]
fn only_the_bytes_that_were_not_written_fail_and_overwriting_clears_them_piece_by_piece() {
    let (_runtime, _, [owner, other]) = streams(["owner", "other"]);
    let x = owner.alloc::<f32>(100).unwrap();
    drop(owner.fill(&x, 1.0));
    drop(other.fill(&x.slice(20..60).unwrap(), 2.0));
    other.wait_stream(&owner);
    let part = |range: std::ops::Range<usize>| other.read(&x.slice(range).unwrap());
    assert_eq!(part(0..20).blocking_wait().unwrap(), [1.0; 20]);
    assert_eq!(part(60..100).blocking_wait().unwrap(), [1.0; 40]);
    inherited(part(19..21));
    inherited(part(59..60));

    drop(other.fill(&x.slice(30..40).unwrap(), 3.0));
    assert_eq!(part(30..40).blocking_wait().unwrap(), [3.0; 10]);
    inherited(part(29..31));
    inherited(part(39..41));
    drop(other.fill(&x.slice(..30).unwrap(), 4.0));
    assert_eq!(part(0..40).blocking_wait().unwrap()[29..31], [4.0, 3.0]);
    inherited(other.read(&x));
    drop(other.fill(&x.slice(40..).unwrap(), 5.0));
    assert_eq!(other.read(&x).blocking_wait().unwrap()[39..41], [3.0, 5.0]);
}

#[test]
fn rows_and_columns_clear_what_a_refused_fill_of_all_did_not_write() {
    let (_runtime, _, [owner, other]) = streams(["owner", "other"]);
    let x = owner.alloc::<f32>(40).unwrap();
    let matrix = x.as_matrix(10).unwrap();
    type Cover<'a> = &'a [(bool, std::ops::Range<usize>)];
    let covers: [Cover<'_>; 4] = [
        &[(false, 0..2), (false, 2..4)],
        &[(true, 0..3), (true, 3..10)],
        &[(true, 0..9), (false, 1..4), (false, 0..1)],
        &[(false, 3..4), (false, 0..1), (false, 1..3)],
    ];
    for (round, cover) in covers.into_iter().enumerate() {
        let value = round as f32;
        owner.wait_stream(&other);
        drop(owner.fill(&x, 1.0));
        drop(other.fill(&x, 2.0));
        other.wait_stream(&owner);
        for (rows, range) in cover {
            inherited(other.read(&x));
            let part = if *rows { matrix.rows(range.clone()) } else { matrix.columns(range.clone()) };
            drop(other.fill(&part.unwrap(), value));
            assert_eq!(
                other.read(&part_of(&matrix, *rows, range.clone())).blocking_wait().unwrap()[0],
                value
            );
        }
        assert_eq!(other.read(&x).blocking_wait().unwrap(), [value; 40]);
    }
    refusal(other.synchronize());
}

fn part_of(matrix: &Buffer<f32>, rows: bool, range: std::ops::Range<usize>) -> Buffer<f32> {
    if rows { matrix.rows(range).unwrap() } else { matrix.columns(range).unwrap() }
}

#[test]
fn columns_that_were_not_written_fail_until_all_of_them_are() {
    let (_runtime, _, [owner, other]) = streams(["owner", "other"]);
    let x = owner.alloc::<f32>(40).unwrap().as_matrix(4).unwrap();
    drop(owner.fill(&x, 1.0));
    let columns = x.columns(3..6).unwrap();
    drop(other.fill(&columns, 2.0));
    other.wait_stream(&owner);
    assert_eq!(other.read(&x.columns(..3).unwrap()).blocking_wait().unwrap(), [1.0; 12]);
    inherited(other.read(&x.columns(5..).unwrap()));
    inherited(other.read(&x.rows(..1).unwrap()));
    drop(other.fill(&columns, 3.0));
    assert_eq!(other.read(&columns).blocking_wait().unwrap(), [3.0; 12]);
    other.read(&x).blocking_wait().unwrap();
}

#[test]
fn a_write_that_reads_too_clears_nothing() {
    let (_runtime, _, [owner, other]) = streams(["owner", "other"]);
    let x = owner.alloc::<f32>(8).unwrap();
    drop(owner.fill(&x, -1.0));
    drop(other.fill(&x, 2.0));
    other.wait_stream(&owner);
    drop(owner.launch(kernels::relu(8, &x, &x), LaunchConfig::for_elements(8u32)));
    other.wait_stream(&owner);
    inherited(other.read(&x));
    assert_eq!(owner.read(&x).blocking_wait().unwrap(), [0.0; 8]);
}

#[test]
fn a_write_that_the_driver_refuses_clears_nothing() {
    let (runtime, driver) = Recording::runtime(OrderMode::Deny);
    let device = runtime.best_device().unwrap();
    let [owner, other] = ["owner", "other"].map(|label| device.stream().label(label).build().unwrap());
    let x = owner.alloc::<f32>(8).unwrap();
    drop(owner.fill(&x, 1.0));
    drop(other.fill(&x, 2.0));
    other.wait_stream(&owner);
    driver.refuse_next();
    assert_eq!(refusal(other.fill(&x, 3.0)).kind(), ErrorKind::Driver);
    says(&inherited(other.read(&x)), ErrorKind::Unordered, &["an earlier op was refused: fill"]);
}

#[test]
fn accepted_contents_are_what_was_there() {
    let (_runtime, _, [owner, other]) = streams(["owner", "other"]);
    let x = owner.alloc::<f32>(8).unwrap();
    drop(owner.fill(&x, 1.0));
    drop(other.fill(&x, 2.0));
    other.wait_stream(&owner);
    x.slice(..4).unwrap().accept_contents();
    assert_eq!(other.read(&x.slice(..4).unwrap()).blocking_wait().unwrap(), [1.0; 4]);
    inherited(other.read(&x));
    x.accept_contents();
    assert_eq!(other.read(&x).blocking_wait().unwrap(), [1.0; 8]);
}

#[test]
fn events_hand_on_what_their_stream_carried_when_they_were_recorded() {
    let (_runtime, device, [owner, other]) = streams(["owner", "other"]);
    let x = owner.alloc::<f32>(8).unwrap();
    drop(owner.fill(&x, 1.0));
    let before = other.record_event();
    drop(other.fill(&x, 2.0));
    let after = other.record_event();
    let [early, late] = [before, after].map(|event| {
        let stream = device.new_stream().unwrap();
        drop((stream.wait_stream(&owner), stream.wait_event(&event)));
        stream
    });
    assert_eq!(early.read(&x).blocking_wait().unwrap(), [1.0; 8]);
    inherited(late.read(&x));
}

#[test]
fn a_wait_after_a_refusal_hands_it_on_although_nothing_was_enqueued_since() {
    let (_runtime, _, [owner, other, waits]) = streams(["owner", "other", "waits"]);
    let (x, y) = (owner.alloc::<f32>(8).unwrap(), other.alloc::<f32>(8).unwrap());
    drop((owner.fill(&x, 1.0), other.fill(&y, 1.0)));
    drop((waits.wait_stream(&owner), waits.wait_stream(&other)));
    waits.read(&x).unobserved().blocking_wait().unwrap();
    let tickets = waits.issued();
    drop(other.fill(&x, 2.0));
    waits.wait_stream(&other);
    assert_eq!(waits.issued(), tickets, "no order is new");
    inherited(waits.read(&x));
}

#[test]
fn a_wait_for_memory_counts_a_refused_write_as_a_use_of_it() {
    let (_runtime, device, [owner, other]) = streams(["owner", "other"]);
    let (x, y) = (owner.alloc::<f32>(8).unwrap(), owner.alloc::<f32>(8).unwrap());
    drop((owner.fill(&x, 1.0), owner.fill(&y, 1.0)));
    let refused = other.fill(&x, 2.0);
    let [of_x, of_y] = [&x, &y].map(|memory| {
        let stream = device.new_stream().unwrap();
        drop((stream.wait_stream(&owner), stream.wait_for(memory)));
        stream
    });
    inherited(of_x.read(&x));
    assert_eq!(of_y.read(&x).blocking_wait().unwrap(), [1.0; 8]);
    unordered(refused);
}

#[test]
fn observing_on_the_host_hands_nothing_on() {
    let (_runtime, _, [owner, other, third]) = streams(["owner", "other", "third"]);
    let (x, y) = (owner.alloc::<f32>(8).unwrap(), other.alloc::<f32>(8).unwrap());
    owner.fill(&x, 1.0).blocking_wait().unwrap();
    drop(third.read(&x));
    drop(other.fill(&x, 2.0));
    other.fill(&y, 1.0).blocking_wait().unwrap();
    assert_eq!(third.read(&x).blocking_wait().unwrap(), [1.0; 8]);
}

#[test]
fn in_wait_mode_everybody_fails_until_the_bytes_are_overwritten() {
    let (runtime, driver) = Recording::runtime(OrderMode::Wait);
    let device = runtime.best_device().unwrap();
    let [one, two] = [(); 2].map(|()| device.new_stream().unwrap());
    let x = one.alloc::<f32>(8).unwrap();
    drop(one.fill(&x, 1.0));
    driver.refuse_next();
    assert_eq!(refusal(one.fill(&x, 2.0)).kind(), ErrorKind::Driver);
    for stream in [&one, &two] {
        let error = inherited(stream.read(&x));
        let parts = ["an earlier op was refused: fill", "; overwrite the memory, or accept its contents"];
        says(&error, ErrorKind::Driver, &parts);
    }
    drop(two.fill(&x, 3.0));
    assert!(one.read(&x).ticket().is_some());
}

#[test]
fn foreign_work_that_fails_may_have_changed_what_it_writes_so_everybody_fails() {
    let (_runtime, device, [stream]) = streams(["s"]);
    let x = stream.alloc::<f32>(8).unwrap();
    drop(stream.fill(&x, 1.0));
    let nothing: [&Buffer<f32>; 0] = [];
    // SAFETY: the closure enqueues nothing.
    let foreign = unsafe { stream.external(reads(nothing), writes([&x]), |raw| raw.fail("half of it")) };
    assert_eq!(refusal(foreign).kind(), ErrorKind::Driver);
    let other = device.new_stream().unwrap();
    other.wait_stream(&stream);
    inherited(stream.read(&x));
    inherited(other.read(&x));
    x.accept_contents();
    assert_eq!(other.read(&x).blocking_wait().unwrap(), [1.0; 8]);
}

#[test]
fn memory_that_is_freed_takes_its_marks_along() {
    let (_runtime, _, [owner, other]) = streams(["owner", "other"]);
    for _ in 0..200 {
        let x = owner.alloc::<f32>(8).unwrap();
        drop(owner.fill(&x, 1.0));
        let refused = other.fill(&x, 2.0);
        drop(x);
        let y = owner.alloc::<f32>(8).unwrap();
        drop(owner.fill(&y, 3.0));
        other.wait_stream(&owner);
        assert_eq!(other.read(&y).blocking_wait().unwrap(), [3.0; 8]);
        drop((owner.wait_stream(&other), refused));
    }
}

#[test]
fn nothing_passes_from_one_lease_to_the_next() {
    let (_runtime, device, [owner]) = streams(["owner"]);
    let pool = device.stream_pool(1).unwrap();
    let x = owner.alloc::<f32>(8).unwrap();
    drop(owner.fill(&x, 1.0));
    let first = block_on(pool.lease()).unwrap();
    let id = first.id();
    drop(first.fill(&x, 2.0));
    first.wait_stream(&owner);
    inherited(first.read(&x));
    drop(first);
    let second = block_on(pool.lease()).unwrap();
    assert_ne!(second.id(), id);
    second.synchronize().blocking_wait().expect("the error was the first lease's");
    device.synchronize().blocking_wait().expect("and ended with it");
    second.wait_stream(&owner);
    assert_eq!(second.read(&x).blocking_wait().unwrap(), [1.0; 8]);
}

#[test]
fn one_clients_refused_op_fails_nobody_else() {
    let (_runtime, device, [serving]) = streams(["serving"]);
    let weights = serving.alloc::<f32>(64).unwrap();
    let pool = device.stream_pool(8).unwrap();
    let answer = |states_its_order: bool| {
        let lease = block_on(pool.lease())?;
        if states_its_order {
            lease.wait_for(&weights);
        }
        let out = lease.alloc::<f32>(64)?;
        drop(lease.launch(kernels::relu(64, &weights, &out), LaunchConfig::for_elements(64u32)));
        lease.read(&out).blocking_wait()
    };
    for client in 0..40 {
        let careless = client % 4 == 3;
        serving.wait_for(&weights);
        drop(serving.fill(&weights, client as f32));
        match answer(!careless) {
            Ok(out) => assert!(!careless && out == [client as f32; 64]),
            Err(error) => assert!(careless && error.kind() == ErrorKind::Unordered, "{error}"),
        }
    }
    device.synchronize().blocking_wait().unwrap();
    assert_eq!(serving.read(&weights).blocking_wait().unwrap(), [39.0; 64]);
}
