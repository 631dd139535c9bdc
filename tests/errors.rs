//! How calls are refused: the kind and the words of each refusal, and where an error goes that nobody awaited.

mod support;

use std::str::FromStr;
use support::recording::Recording;
use support::{block_on, refusal, runtime, says, streams, unordered};
use warpline::prelude::*;
use warpline::{OrderMode, Schedule, kernels, reads, writes};

// What each refusal says. `Unordered` is in verdicts.rs, views in contract/views.rs, faults in faults.rs.

#[test]
fn overlapping_operands_are_named_with_their_bytes() {
    let (_runtime, _, [stream]) = streams(["s"]);
    let x = stream.alloc::<f32>(8).unwrap();
    let (front, back) = (x.slice(..6).unwrap(), x.slice(2..).unwrap());
    says(
        &refusal(stream.copy(&front, &back)),
        ErrorKind::Overlap,
        &[
            "copy on stream \"s\" (tests/errors.rs:",
            "operand 1 (bytes 8..32) overlaps operand 0 (bytes 0..24) of the same memory, and one of them is written; \
             copy one of them first",
        ],
    );
    let config = LaunchConfig::for_elements(6u32);
    says(
        &refusal(stream.launch(kernels::add_(6, &front, &back), config)),
        ErrorKind::Overlap,
        &["add_ on stream \"s\"", "in place they have to be exactly the same"],
    );
    says(
        &refusal(stream.launch(kernels::axpy(6, 1.0, &front, &front), config)),
        ErrorKind::Overlap,
        &["axpy on stream \"s\"", "copy one of them first"],
    );
}

#[test]
fn operands_and_streams_of_another_runtime_are_refused() {
    let (_one, _, [mine]) = streams(["mine"]);
    let (_two, _, [theirs]) = streams(["theirs"]);
    let x = theirs.alloc::<f32>(4).unwrap();
    says(
        &refusal(mine.fill(&x, 1.0)),
        ErrorKind::DeviceMismatch,
        &["fill on stream \"mine\" (tests/errors.rs:", "an operand is on cpu:0 of another runtime"],
    );
    let y = mine.alloc::<f32>(4).unwrap();
    says(&refusal(mine.copy_peer(&y, &x)), ErrorKind::DeviceMismatch, &["of another runtime"]);
    let gate = theirs.hold().unwrap();
    for error in [refusal(mine.wait_stream(&theirs)), refusal(mine.wait_event(&theirs.record_event()))] {
        says(
            &error,
            ErrorKind::DeviceMismatch,
            &[
                "on stream \"mine\" (tests/errors.rs:",
                "stream \"theirs\" is on cpu:0 of another runtime or backend",
                "await it on the host instead",
            ],
        );
    }
    drop(gate);
}

#[test]
fn memory_beyond_the_limit_is_refused_with_the_numbers_and_the_largest_holders() {
    let runtime = Runtime::builder().memory_limit(8 << 20).build().unwrap();
    let device = runtime.device(DeviceId::Cpu(0)).unwrap();
    let stream = device.new_stream().unwrap();
    let held = stream.alloc::<f32>(1 << 20).unwrap();
    let (error, line) = (stream.alloc::<f32>(4 << 20).unwrap_err(), line!());
    says(
        &error,
        ErrorKind::OutOfMemory,
        &[
            &format!("alloc on stream \"stream 1\" (tests/errors.rs:{line}): cpu:0 is out of memory: "),
            "16.0 MiB asked, 4.0 MiB free of the limit of 8.0 MiB (4.0 MiB in use, ",
            "largest holders: 4.0 MiB from tests/errors.rs:",
            "; drop tensors or lower the batch size",
        ],
    );
    assert!(stream.alloc::<f32>(2 << 20).is_err(), "8 MiB and 4 MiB are more than 8 MiB");
    drop(held);
    stream.alloc::<f32>(2 << 20).expect("the freed memory serves it");
    let host = device.pinned_blocking::<f32>(4 << 20).unwrap();
    let address = host.as_ptr();
    let error = stream.copy_to_device(host).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert_eq!(error.into_buffer::<f32>().expect("the buffer comes back").as_ptr(), address);
}

#[test]
fn a_device_without_a_limit_names_no_free_memory() {
    let (_runtime, _, [stream]) = streams(["s"]);
    says(
        &stream.alloc::<f32>(1 << 59).unwrap_err(),
        ErrorKind::OutOfMemory,
        &[
            "cpu:0 is out of memory: 2.0 EiB asked, more than the system gives (0 B in use, 0 B cached); drop tensors",
        ],
    );
}

#[test]
fn more_elements_than_can_be_addressed_are_out_of_memory() {
    let (_runtime, _, [stream]) = streams(["s"]);
    says(
        &stream.alloc::<f64>(usize::MAX).unwrap_err(),
        ErrorKind::OutOfMemory,
        &[
            "alloc on stream \"s\" (tests/errors.rs:",
            "): 18446744073709551615 elements of 8 bytes are more than can be addressed; allocate fewer",
        ],
    );
    says(
        &stream.alloc::<u8>(usize::MAX).unwrap_err(),
        ErrorKind::OutOfMemory,
        &["more than can be addressed"],
    );
}

#[test]
fn an_allocation_is_refused_on_request() {
    let runtime = Runtime::builder().refuse_allocation(3).build().unwrap();
    let stream = runtime.device(DeviceId::Cpu(0)).unwrap().new_stream().unwrap();
    let kept = [stream.alloc::<f32>(100).unwrap(), stream.alloc::<f32>(100).unwrap()];
    says(
        &stream.alloc::<f32>(100).unwrap_err(),
        ErrorKind::OutOfMemory,
        &["cpu:0 is out of memory: 400 B asked, refused by the fault plan (1.0 KiB in use"],
    );
    stream.alloc::<f32>(100).expect("only the third");
    stream.fill(&kept[0], 1.0).wait().expect("the device goes on");
}

#[test]
fn pinned_memory_beyond_its_cap_is_refused_with_both_numbers() {
    let runtime = Runtime::builder().pinned_cap(1 << 20).build().unwrap();
    let device = runtime.device(DeviceId::Cpu(0)).unwrap();
    let stream = device.new_stream().unwrap();
    let x = stream.alloc::<u8>(600 << 10).unwrap();
    stream.fill(&x, 1).wait().unwrap();
    let host = device.pinned_blocking::<u8>(300 << 10).unwrap();
    let text = "the pinned memory of cpu:0 is at its cap: 600 KiB asked, 512 KiB in use of 1.0 MiB; drop pinned buffers or \
                await the copies that hold them, or raise the cap";
    let on = |op| format!("{op} on stream \"stream 1\" (tests/errors.rs:");
    says(&refusal(stream.read(&x)), ErrorKind::OutOfMemory, &[&on("read"), text]);
    says(&refusal(stream.copy_to_host(&x)), ErrorKind::OutOfMemory, &[&on("copy_to_host"), text]);
    says(&refusal(stream.write(&x, &[0; 600 << 10])), ErrorKind::OutOfMemory, &[&on("write"), text]);
    says(&device.pinned_blocking::<u8>(600 << 10).unwrap_err(), ErrorKind::OutOfMemory, &[text]);
    says(&block_on(device.pinned::<u8>(600 << 10)).unwrap_err(), ErrorKind::OutOfMemory, &[text]);
    drop(host);
    x.accept_contents();
    assert_eq!(stream.read(&x).wait().unwrap(), vec![1; 600 << 10]);
}

#[test]
fn a_device_that_is_not_there_says_what_is_missing() {
    let runtime = runtime(2);
    says(
        &runtime.device("cpu:7".parse().unwrap()).unwrap_err(),
        ErrorKind::NoSuchDevice,
        &["there is no cpu:7: this runtime has 2 CPU devices; build it with cpu_devices(8)"],
    );
    let error = runtime.device("cuda:99".parse().unwrap()).unwrap_err();
    says(&error, ErrorKind::NoSuchDevice, &["there is no cuda:99: "]);
    assert_eq!(runtime.device("cpu".parse().unwrap()).unwrap().id(), DeviceId::Cpu(0));
}

#[test]
fn what_is_no_device_name_is_refused_with_what_is() {
    for name in [
        "",
        "cuda0",
        "cpu:",
        "cuda:",
        "cpu:+1",
        "cpu:-1",
        "cpu: 1",
        " cpu",
        "cpu ",
        "CPU",
        "gpu",
        "cpu:0:0",
        "cpu:1a",
        "cpu:4294967296",
        ":0",
        "cuda:\u{661}",
    ] {
        let error = DeviceId::from_str(name).unwrap_err();
        let text = format!("\"{name}\" is not a device: expected \"cpu\", \"cpu:N\", \"cuda\" or \"cuda:N\"");
        assert_eq!((error.kind(), error.to_string()), (ErrorKind::InvalidName, text));
    }
    assert_eq!(Device::open("cuda0").unwrap_err().kind(), ErrorKind::InvalidName);
    for (name, id) in [
        ("cpu", DeviceId::Cpu(0)),
        ("cpu:0", DeviceId::Cpu(0)),
        ("cpu:12", DeviceId::Cpu(12)),
        ("cuda", DeviceId::Cuda(0)),
        ("cuda:1", DeviceId::Cuda(1)),
        ("cpu:4294967295", DeviceId::Cpu(u32::MAX)),
    ] {
        assert_eq!(DeviceId::from_str(name).unwrap(), id);
        assert_eq!(id.to_string().parse::<DeviceId>().unwrap(), id);
    }
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    says(
        &Runtime::builder().cpu_devices(0).build().unwrap_err(),
        ErrorKind::InvalidArgument,
        &["a runtime of 0 devices: ask for at least 1 with cpu_devices"],
    );
    says(
        &OrderMode::from_str("strict").unwrap_err(),
        ErrorKind::InvalidArgument,
        &["\"strict\" is not an order mode: expected deny, warn, wait or off"],
    );
    assert_eq!(OrderMode::from_str("wait").unwrap(), OrderMode::Wait);
    for text in ["seeded", "seeded:", "seeded:x", "threads:1", ""] {
        says(
            &Schedule::from_str(text).unwrap_err(),
            ErrorKind::InvalidArgument,
            &[&format!("\"{text}\" is not a schedule: expected threads or seeded:N")],
        );
    }
    assert_eq!(Schedule::from_str("seeded:7").unwrap(), Schedule::Seeded(7));
}

#[test]
fn a_stream_that_is_full_says_how_full() {
    let (_runtime, device, []) = streams([]);
    let stream = device.stream().label("small").max_in_flight(2).build().unwrap();
    let x = stream.alloc::<f32>(4).unwrap();
    let gate = stream.hold().unwrap();
    drop(stream.fill(&x, 1.0));
    says(
        &refusal(stream.fill(&x, 2.0)),
        ErrorKind::Full,
        &[
            "fill on stream \"small\" (tests/errors.rs:",
            "the stream allows 2 ops in flight and has 2; await stream.room() and enqueue within its permit",
        ],
    );
    gate.open();
    let plain = device.stream().label("plain").build().unwrap();
    says(
        &block_on(plain.room()).unwrap_err(),
        ErrorKind::InvalidArgument,
        &["room: stream \"plain\" has no limit; build it with max_in_flight to get one"],
    );
}

#[test]
fn an_op_takes_at_most_255_operands() {
    let (_runtime, _, [stream]) = streams(["s"]);
    let x = stream.alloc::<u8>(300).unwrap();
    let views: Vec<_> = (0..300).map(|n| x.slice(n..n + 1).unwrap()).collect();
    let none: [&Buffer<u8>; 0] = [];
    // SAFETY: the closures enqueue nothing.
    let refused = refusal(unsafe { stream.external(reads(&views), writes(none), |_| ()) });
    says(&refused, ErrorKind::InvalidArgument, &["300 operands, and an op takes 255; split it"]);
    // SAFETY: as above.
    unsafe { stream.external(reads(&views[..255]), writes(none), |_| ()) }.wait().unwrap();
}

#[test]
fn a_runtime_that_is_gone_says_to_keep_it() {
    let (runtime, device, [stream]) = streams(["s"]);
    let x = stream.alloc::<f32>(4).unwrap();
    stream.fill(&x, 1.0).wait().unwrap();
    drop(runtime);
    let text = "cpu:0 takes no more work: its runtime was shut down; keep the Runtime alive for as long as it is used";
    for error in [
        refusal(stream.fill(&x, 2.0)),
        refusal(stream.read(&x)),
        refusal(stream.call(|| ())),
        stream.alloc::<f32>(4).unwrap_err(),
        stream.record_timed_event().unwrap_err(),
        device.new_stream().unwrap_err(),
        device.default_stream().unwrap_err(),
        device.alloc::<f32>(4).unwrap_err(),
        device.stream_pool(1).try_lease().unwrap_err(),
    ] {
        says(&error, ErrorKind::ShutDown, &[text]);
    }
    stream.synchronize().wait().expect("what was enqueued is done");
}

#[test]
fn a_failed_driver_call_says_what_the_driver_said_and_leaves_no_trace() {
    let (runtime, driver) = Recording::runtime(OrderMode::Deny);
    let device = runtime.best_device().unwrap();
    let [a, b] = ["a", "b"].map(|label| device.stream().label(label).build().unwrap());
    let x = a.alloc::<f32>(4).unwrap();
    drop(a.fill(&x, 1.0));
    let text = ["failed on cuda:0: CUDA_ERROR_INVALID_VALUE; the device goes on"];

    driver.refuse_next();
    says(&refusal(b.wait_stream(&a)), ErrorKind::Driver, &text);
    assert_eq!(b.issued(), 0);
    unordered(b.read(&x)); // The wait has not happened.

    drop(b.wait_stream(&a));
    driver.refuse_next();
    says(&refusal(b.read(&x)), ErrorKind::Driver, &text);
    assert_eq!(b.issued(), 1);
    assert_eq!(device.pinned_stats().allocated_bytes, 0);
    drop(a.fill(&x, 2.0)); // Had b's read been entered, this would be refused.
    assert_eq!(a.issued(), 2);

    let host = device.pinned_blocking::<f32>(4).unwrap();
    let address = host.as_ptr();
    driver.refuse_next();
    let error = refusal(a.copy_into(&x, host));
    says(&error, ErrorKind::Driver, &text);
    assert_eq!(error.into_buffer::<f32>().expect("the buffer").as_ptr(), address);
    assert_eq!(a.issued(), 2);
    unordered(b.fill(&x, 1.0));
    assert!(device.fault().is_none());
}

// Where errors go.

#[test]
fn readers_of_what_was_not_written_fail_with_the_same_error() {
    let (_runtime, _, [owner, other]) = streams(["owner", "other"]);
    let (x, y) = (owner.alloc::<f32>(8).unwrap(), owner.alloc::<f32>(8).unwrap());
    let z = owner.alloc::<f32>(8).unwrap();
    drop(owner.fill(&x, 1.0));
    let cause = unordered(other.fill(&x, 2.0)).to_string();
    let same = |error: Error| assert_eq!(error.to_string(), cause);
    same(refusal(owner.read(&x)));
    // And along the chain: what would have been made from it was not made either.
    same(refusal(owner.copy(&x, &y)));
    same(refusal(owner.launch(kernels::relu(8, &y, &z), LaunchConfig::for_elements(8u32))));
    same(refusal(owner.read(&z.slice(3..4).unwrap())));
    // Overwriting all of it is the way out.
    drop(owner.fill(&z, 5.0));
    assert_eq!(owner.read(&z).wait().unwrap(), [5.0; 8]);
    same(refusal(owner.read(&y)));
}

#[test]
fn only_the_bytes_that_were_not_written_fail_and_overwriting_clears_them_piece_by_piece() {
    let (_runtime, _, [owner, other]) = streams(["owner", "other"]);
    let x = owner.alloc::<f32>(100).unwrap();
    drop(owner.fill(&x, 1.0));
    unordered(other.fill(&x.slice(20..60).unwrap(), 2.0));
    let part = |range: std::ops::Range<usize>| owner.read(&x.slice(range).unwrap());
    assert_eq!(part(0..20).wait().unwrap(), [1.0; 20]);
    assert_eq!(part(60..100).wait().unwrap(), [1.0; 40]);
    unordered(part(19..21));
    unordered(part(59..60));

    drop(owner.fill(&x.slice(30..40).unwrap(), 3.0));
    assert_eq!(part(30..40).wait().unwrap(), [3.0; 10]);
    unordered(part(29..31));
    unordered(part(39..41));
    drop(owner.fill(&x.slice(..30).unwrap(), 4.0));
    assert_eq!(part(0..40).wait().unwrap()[29..31], [4.0, 3.0]);
    unordered(owner.read(&x));
    drop(owner.fill(&x.slice(40..).unwrap(), 5.0));
    assert_eq!(owner.read(&x).wait().unwrap()[39..41], [3.0, 5.0]);
}

#[test]
fn columns_that_were_not_written_fail_until_all_of_them_are() {
    let (_runtime, _, [owner, other]) = streams(["owner", "other"]);
    let x = owner.alloc::<f32>(40).unwrap().as_matrix(4).unwrap();
    drop(owner.fill(&x, 1.0));
    let columns = x.columns(3..6).unwrap();
    unordered(other.fill(&columns, 2.0));
    assert_eq!(owner.read(&x.columns(..3).unwrap()).wait().unwrap(), [1.0; 12]);
    unordered(owner.read(&x.columns(5..).unwrap()));
    unordered(owner.read(&x.rows(..1).unwrap()));
    drop(owner.fill(&columns, 3.0));
    assert_eq!(owner.read(&columns).wait().unwrap(), [3.0; 12]);
    owner.read(&x).wait().unwrap();
}

#[test]
fn accepted_contents_are_what_was_there() {
    let (_runtime, _, [owner, other]) = streams(["owner", "other"]);
    let x = owner.alloc::<f32>(8).unwrap();
    drop(owner.fill(&x, 1.0));
    unordered(other.fill(&x, 2.0));
    x.slice(..4).unwrap().accept_contents();
    assert_eq!(owner.read(&x.slice(..4).unwrap()).wait().unwrap(), [1.0; 4]);
    unordered(owner.read(&x));
    x.accept_contents();
    assert_eq!(owner.read(&x).wait().unwrap(), [1.0; 8]);
}

#[test]
fn an_error_nobody_saw_is_returned_by_the_next_synchronize_and_only_by_that() {
    let (_runtime, device, [owner, other]) = streams(["owner", "other"]);
    let x = owner.alloc::<f32>(8).unwrap();
    drop(owner.fill(&x, 1.0));
    drop(other.fill(&x, 2.0));
    owner.synchronize().wait().expect("it was not refused on this stream");
    drop(other.synchronize()); // Nobody looked at this one.
    says(&refusal(other.synchronize()), ErrorKind::Unordered, &["fill on stream \"other\""]);
    other.synchronize().wait().expect("it was returned once");
    device.synchronize().wait().unwrap();

    drop(owner.fill(&x, 1.0));
    drop(other.fill(&x, 2.0));
    says(&refusal(device.synchronize()), ErrorKind::Unordered, &["fill on stream \"other\""]);
    device.synchronize().wait().unwrap();
}

#[test]
fn an_error_that_was_awaited_queried_or_passed_on_is_not_returned_again() {
    let (_runtime, _, [owner, other]) = streams(["owner", "other"]);
    let x = owner.alloc::<f32>(8).unwrap();
    drop(owner.fill(&x, 1.0));
    unordered(other.fill(&x, 2.0));
    other.synchronize().wait().expect("it was awaited");
    assert!(other.fill(&x, 2.0).queued().is_err());
    other.synchronize().wait().expect("it was returned by queued");
    assert!(other.fill(&x, 2.0).query().is_err());
    other.synchronize().wait().expect("it was returned by query");
    drop(other.fill(&x, 2.0));
    unordered(owner.read(&x));
    other.synchronize().wait().expect("the reader was told");
}

#[test]
fn of_several_errors_nobody_saw_the_first_is_returned() {
    let (_runtime, _, [owner, other]) = streams(["owner", "other"]);
    let x = owner.alloc::<f32>(8).unwrap();
    drop(owner.fill(&x, 1.0));
    drop(other.write(&x, &[0.0; 3]));
    drop(other.fill(&x, 2.0));
    says(
        &refusal(other.synchronize()),
        ErrorKind::Shape,
        &["write on stream \"", "3 elements on the host, 8 on the device"],
    );
    other.synchronize().wait().unwrap();
}

#[test]
fn other_ops_on_the_stream_go_on_after_a_refusal() {
    let (_runtime, _, [owner, other]) = streams(["owner", "other"]);
    let (x, y) = (owner.alloc::<f32>(8).unwrap(), other.alloc::<f32>(8).unwrap());
    drop(owner.fill(&x, 1.0));
    let before = other.fill(&y, 1.0);
    unordered(other.read(&x));
    let after = other.read(&y);
    before.wait().unwrap();
    assert_eq!(after.wait().unwrap(), [1.0; 8]);
    assert_eq!(other.issued(), 2, "the refused op took no ticket");
}

#[test]
fn nothing_passes_from_one_lease_to_the_next() {
    let (_runtime, device, [owner]) = streams(["owner"]);
    let pool = device.stream_pool(1);
    let x = owner.alloc::<f32>(8).unwrap();
    drop(owner.fill(&x, 1.0));
    let first = block_on(pool.lease()).unwrap();
    let id = first.id();
    drop(first.fill(&x, 2.0));
    drop(first.wait_stream(&owner));
    x.accept_contents();
    assert_eq!(first.read(&x).wait().unwrap(), [1.0; 8]);
    drop(first);
    let second = block_on(pool.lease()).unwrap();
    assert_ne!(second.id(), id);
    second.synchronize().wait().expect("the error was the first lease's");
    device.synchronize().wait().expect("and ended with it");
}

#[test]
fn one_clients_refused_op_fails_nobody_else() {
    let (_runtime, device, [serving]) = streams(["serving"]);
    let weights = serving.alloc::<f32>(64).unwrap();
    let pool = device.stream_pool(8);
    let answer = |states_its_order: bool| {
        let lease = block_on(pool.lease())?;
        if states_its_order {
            drop(lease.wait_for(&weights));
        }
        let out = lease.alloc::<f32>(64)?;
        drop(lease.launch(kernels::relu(64, &weights, &out), LaunchConfig::for_elements(64u32)));
        lease.read(&out).wait()
    };
    for client in 0..40 {
        let careless = client % 4 == 3;
        drop(serving.wait_for(&weights));
        drop(serving.fill(&weights, client as f32));
        match answer(!careless) {
            Ok(out) => assert!(!careless && out == [client as f32; 64]),
            Err(error) => assert!(careless && error.kind() == ErrorKind::Unordered, "{error}"),
        }
    }
    device.synchronize().wait().unwrap();
    assert_eq!(serving.read(&weights).wait().unwrap(), [39.0; 64]);
}
