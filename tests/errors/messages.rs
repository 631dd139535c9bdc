//! The kind and text of each refusal, and the reports of errors that nothing awaited.

use crate::support::recording::Recording;
use crate::support::{block_on, refusal, runtime, says, streams, unordered};
use std::str::FromStr;
use warpline::prelude::*;
use warpline::{OrderMode, Schedule, kernels, ops, reads, writes};

// Refusals. `Unordered` is in order/verdicts.rs, views in contract/views.rs, faults in faults.rs.

#[test]
fn overlapping_operands_are_named_with_their_bytes() {
    let (_runtime, _, [stream]) = streams(["s"]);
    let x = stream.alloc::<f32>(8).unwrap();
    let (front, back) = (x.slice(..6).unwrap(), x.slice(2..).unwrap());
    says(
        &refusal(stream.copy_buffer(&back, &front)),
        ErrorKind::Overlap,
        &[
            "copy_buffer on stream \"s\" (tests/errors/messages.rs:",
            "operand 1 (bytes 8..32) overlaps operand 0 (bytes 0..24) of the same memory, and one of them is written; \
             copy one of them first",
        ],
    );
    let config = LaunchConfig::for_elements(6u32);
    says(
        &refusal(stream.launch(kernels::add_(6, &front, &back), config)),
        ErrorKind::Overlap,
        &["add_ on stream \"s\"", "an op in place needs exactly the same range for both"],
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
        &["fill on stream \"mine\" (tests/errors/messages.rs:", "an operand is on cpu:0 of another runtime"],
    );
    let y = mine.alloc::<f32>(4).unwrap();
    says(&refusal(mine.copy_buffer_peer(&x, &y)), ErrorKind::DeviceMismatch, &["of another runtime"]);
    let gate = theirs.hold().unwrap();
    for error in [refusal(mine.wait_stream(&theirs)), refusal(mine.wait_event(&theirs.record_event()))] {
        says(
            &error,
            ErrorKind::DeviceMismatch,
            &[
                "on stream \"mine\" (tests/errors/messages.rs:",
                "stream \"theirs\" is on cpu:0 of another runtime",
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
            &format!(
                "alloc on stream \"stream 1\" (tests/errors/messages.rs:{line}): cpu:0 is out of memory: "
            ),
            "16.0 MiB asked, 4.0 MiB free of the limit of 8.0 MiB (4.0 MiB in use, ",
            "largest holders: 4.0 MiB from tests/errors/messages.rs:",
            "; drop tensors or lower the batch size",
        ],
    );
    assert!(stream.alloc::<f32>(2 << 20).is_err(), "8 MiB and 4 MiB are more than 8 MiB");
    drop(held);
    stream.alloc::<f32>(2 << 20).expect("the freed memory serves it");
    let host = device.blocking_pinned::<f32>(4 << 20).unwrap();
    let address = host.as_ptr();
    let error = stream.copy_to_device(host).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert_eq!(Pinned::<f32>::from_error(error).expect("the buffer comes back").as_ptr(), address);
}

#[test]
fn a_device_without_a_limit_names_no_free_memory() {
    let (_runtime, _, [stream]) = streams(["s"]);
    says(
        &stream.alloc::<f32>(1 << 59).unwrap_err(),
        ErrorKind::OutOfMemory,
        &["cpu:0 is out of memory: 2.0 EiB asked, more than the system provides (0 B in use, 0 \
            B cached); drop tensors"],
    );
}

#[test]
fn more_elements_than_can_be_addressed_are_out_of_memory() {
    let (_runtime, _, [stream]) = streams(["s"]);
    says(
        &stream.alloc::<f64>(usize::MAX).unwrap_err(),
        ErrorKind::OutOfMemory,
        &[
            "alloc on stream \"s\" (tests/errors/messages.rs:",
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
    stream.fill(&kept[0], 1.0).blocking_wait().expect("the device is still usable");
}

#[test]
fn pinned_memory_beyond_its_cap_is_refused_with_both_numbers() {
    let runtime = Runtime::builder().pinned_cap(1 << 20).build().unwrap();
    let device = runtime.device(DeviceId::Cpu(0)).unwrap();
    let stream = device.new_stream().unwrap();
    let x = stream.alloc::<u8>(600 << 10).unwrap();
    stream.fill(&x, 1).blocking_wait().unwrap();
    let host = device.blocking_pinned::<u8>(300 << 10).unwrap();
    let text = "the pinned memory of cpu:0 is at its cap: 600 KiB asked, 512 KiB in use of 1.0 MiB; drop pinned buffers or \
                await the copies that hold them, or raise the cap";
    let on = |op| format!("{op} on stream \"stream 1\" (tests/errors/messages.rs:");
    says(&refusal(stream.read(&x)), ErrorKind::OutOfMemory, &[&on("read"), text]);
    says(&refusal(stream.copy_to_host(&x)), ErrorKind::OutOfMemory, &[&on("copy_to_host"), text]);
    says(&refusal(stream.write(&x, &[0; 600 << 10])), ErrorKind::OutOfMemory, &[&on("write"), text]);
    says(&device.blocking_pinned::<u8>(600 << 10).unwrap_err(), ErrorKind::OutOfMemory, &[text]);
    says(&block_on(device.pinned::<u8>(600 << 10)).unwrap_err(), ErrorKind::OutOfMemory, &[text]);
    drop(host);
    x.accept_contents();
    assert_eq!(stream.read(&x).blocking_wait().unwrap(), vec![1; 600 << 10]);
}

#[test]
fn a_fraction_of_memory_that_is_out_of_range_is_refused() {
    for (fraction, text) in
        [(0.0, "0"), (-0.5, "-0.5"), (1.5, "1.5"), (f64::NAN, "NaN"), (f64::INFINITY, "inf")]
    {
        let error = Runtime::builder().memory_fraction(fraction).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(
            error.to_string(),
            format!(
                "a runtime cannot be built: memory_fraction is {text}, and more than 0 and at most 1 is needed; omit the \
                 call to memory_fraction for no limit"
            )
        );
    }
    let whole = Runtime::builder().memory_fraction(1.0).build().unwrap();
    let device = whole.device(DeviceId::Cpu(0)).unwrap();
    assert_eq!(device.memory_stats().limit_bytes, Some(device.properties().total_bytes));
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
        let text = format!("\"{name}\" is not a device; expected \"cpu\", \"cpu:N\", \"cuda\" or \"cuda:N\"");
        assert_eq!((error.kind(), error.to_string()), (ErrorKind::InvalidName, text));
    }
    for (name, meant) in [("cuda0", "cuda:0"), ("cpu12", "cpu:12")] {
        let error = Device::open(name).unwrap_err();
        let text = format!("\"{name}\" is not a device; write \"{meant}\"");
        assert_eq!((error.kind(), error.to_string()), (ErrorKind::InvalidName, text));
    }
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
        &OrderMode::from_str("strict").unwrap_err(),
        ErrorKind::InvalidArgument,
        &["\"strict\" is not an order mode; expected deny, warn, wait or off"],
    );
    assert_eq!(OrderMode::from_str("wait").unwrap(), OrderMode::Wait);
    for text in ["seeded", "seeded:", "seeded:x", "threads:1", ""] {
        says(
            &Schedule::from_str(text).unwrap_err(),
            ErrorKind::InvalidArgument,
            &[&format!("\"{text}\" is not a schedule; expected threads or seeded:N")],
        );
    }
    assert_eq!(Schedule::from_str("seeded:7").unwrap(), Schedule::Seeded(7));
}

#[test]
fn a_zero_that_makes_no_sense_is_refused_where_it_is_given() {
    let (_runtime, device, []) = streams([]);
    let refused = |error: Error, text: &str| says(&error, ErrorKind::InvalidArgument, &[text]);
    let builder = Runtime::builder;
    for (what, zero) in [
        ("cpu_devices", builder().cpu_devices(0)),
        ("workers", builder().workers(0)),
        ("kernel_threads", builder().kernel_threads(0)),
        ("memory_limit", builder().memory_limit(0)),
        ("pinned_cap", builder().pinned_cap(0)),
        ("fail_op", builder().fail_op(0)),
        ("panic_in_twin", builder().panic_in_twin(0)),
        ("refuse_allocation", builder().refuse_allocation(0)),
    ] {
        let text = format!(
            "a runtime cannot be built: {what} is 0, and at least 1 is needed; omit the call to {what} \
            for its default"
        );
        refused(zero.build().unwrap_err(), &text);
    }
    refused(
        device.stream_pool(0).unwrap_err(),
        "stream_pool on cpu:0: its size is 0, and at least 1 is needed",
    );
    refused(
        device.stream().max_in_flight(0).build().unwrap_err(),
        "a stream of cpu:0 cannot be built: max_in_flight is 0, and at least 1 is needed",
    );
    refused(
        ops::ColumnMoments::new(0, &device).unwrap_err(),
        "ColumnMoments: the number of columns is 0, and at least 1 is needed",
    );
}

#[test]
fn limits_may_be_as_large_as_a_number_can_be() {
    let (_runtime, device, []) = streams([]);
    let stream = device.stream().max_in_flight(usize::MAX).build().unwrap();
    stream.alloc::<f32>(1).unwrap();
    assert!(device.stream_pool(usize::MAX).unwrap().try_lease().unwrap().is_some());
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
            "fill on stream \"small\" (tests/errors/messages.rs:",
            "the stream allows 2 ops in flight and has 2; await stream.room() and enqueue within its permit",
        ],
    );
    gate.open();
    let plain = device.stream().label("plain").build().unwrap();
    says(
        &block_on(plain.room()).unwrap_err(),
        ErrorKind::InvalidArgument,
        &["room: stream \"plain\" has no limit; set one with max_in_flight when you build it"],
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
    // SAFETY: the closure enqueues nothing.
    unsafe { stream.external(reads(&views[..255]), writes(none), |_| ()) }.blocking_wait().unwrap();
}

#[test]
fn a_runtime_that_is_gone_says_to_keep_it() {
    let (runtime, device, [stream]) = streams(["s"]);
    let x = stream.alloc::<f32>(4).unwrap();
    stream.fill(&x, 1.0).blocking_wait().unwrap();
    drop(runtime);
    let text = "cpu:0 accepts no more work: its runtime was shut down; keep the Runtime alive \
        while its devices are used";
    for error in [
        refusal(stream.fill(&x, 2.0)),
        refusal(stream.read(&x)),
        refusal(stream.call(|| ())),
        stream.alloc::<f32>(4).unwrap_err(),
        stream.record_timed_event().unwrap_err(),
        device.new_stream().unwrap_err(),
        device.default_stream().unwrap_err(),
        device.alloc::<f32>(4).unwrap_err(),
        device.stream_pool(1).unwrap().try_lease().unwrap_err(),
    ] {
        says(&error, ErrorKind::ShutDown, &[text]);
    }
    stream.synchronize().blocking_wait().expect("what was enqueued is done");
}

#[test]
fn a_failed_driver_call_says_what_the_driver_said_and_leaves_no_trace() {
    let (runtime, driver) = Recording::runtime(OrderMode::Deny);
    let device = runtime.best_device().unwrap();
    let [a, b] = ["a", "b"].map(|label| device.stream().label(label).build().unwrap());
    let x = a.alloc::<f32>(4).unwrap();
    drop(a.fill(&x, 1.0));
    let text = ["failed on cuda:0: CUDA_ERROR_INVALID_VALUE; the device is still usable"];

    driver.refuse_next();
    says(&refusal(b.wait_stream(&a)), ErrorKind::Driver, &text);
    assert_eq!(b.issued(), 0);
    unordered(b.read(&x)); // The refused wait orders nothing.

    b.wait_stream(&a);
    driver.refuse_next();
    says(&refusal(b.read(&x)), ErrorKind::Driver, &text);
    assert_eq!(b.issued(), 1);
    assert_eq!(device.pinned_stats().allocated_bytes, 0);
    drop(a.fill(&x, 2.0)); // If the read of `b` had been recorded, this would be refused.
    assert_eq!(a.issued(), 2);

    let host = device.blocking_pinned::<f32>(4).unwrap();
    let address = host.as_ptr();
    driver.refuse_next();
    let error = refusal(a.copy_into(&x, host));
    says(&error, ErrorKind::Driver, &text);
    assert_eq!(Pinned::<f32>::from_error(error).expect("the buffer").as_ptr(), address);
    assert_eq!(a.issued(), 2);
    unordered(b.fill(&x, 1.0));
    assert!(device.fault().is_none());
}

// Reports of errors.

#[test]
fn an_error_nobody_saw_is_returned_by_the_next_synchronize_and_only_by_that() {
    let (_runtime, device, [owner, other]) = streams(["owner", "other"]);
    let x = owner.alloc::<f32>(8).unwrap();
    drop(owner.fill(&x, 1.0));
    drop(other.fill(&x, 2.0));
    owner.synchronize().blocking_wait().expect("it was not refused on this stream");
    drop(other.synchronize()); // This one is dropped unawaited, so it returns nothing.
    says(&refusal(other.synchronize()), ErrorKind::Unordered, &["fill on stream \"other\""]);
    other.synchronize().blocking_wait().expect("it was returned once");
    device.synchronize().blocking_wait().unwrap();

    drop(owner.fill(&x, 1.0));
    drop(other.fill(&x, 2.0));
    says(&refusal(device.synchronize()), ErrorKind::Unordered, &["fill on stream \"other\""]);
    device.synchronize().blocking_wait().unwrap();
}

#[test]
fn an_error_that_was_awaited_queried_or_passed_on_is_not_returned_again() {
    let (_runtime, _, [owner, other]) = streams(["owner", "other"]);
    let x = owner.alloc::<f32>(8).unwrap();
    drop(owner.fill(&x, 1.0));
    unordered(other.fill(&x, 2.0));
    other.synchronize().blocking_wait().expect("it was awaited");
    assert!(other.fill(&x, 2.0).queued().is_err());
    other.synchronize().blocking_wait().expect("it was returned by queued");
    assert!(other.fill(&x, 2.0).query().is_err());
    other.synchronize().blocking_wait().expect("it was returned by query");
    drop(other.fill(&x, 2.0).view(|()| Ok(())).blocking_wait().unwrap_err());
    other.synchronize().blocking_wait().expect("it was passed on, and awaited there");
}

#[test]
fn of_several_errors_nobody_saw_each_synchronize_returns_one() {
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
    says(&refusal(other.synchronize()), ErrorKind::Unordered, &["fill on stream \"other\""]);
    other.synchronize().blocking_wait().unwrap();
}

#[test]
fn other_ops_on_the_stream_go_on_after_a_refusal() {
    let (_runtime, _, [owner, other]) = streams(["owner", "other"]);
    let (x, y) = (owner.alloc::<f32>(8).unwrap(), other.alloc::<f32>(8).unwrap());
    drop(owner.fill(&x, 1.0));
    let before = other.fill(&y, 1.0);
    unordered(other.read(&x));
    let after = other.read(&y);
    before.blocking_wait().unwrap();
    assert_eq!(after.blocking_wait().unwrap(), [1.0; 8]);
    assert_eq!(other.issued(), 2, "the refused op took no ticket");
}
