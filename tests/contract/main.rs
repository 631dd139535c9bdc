//! Tests of what every device does, one test per behaviour. Each test runs on the CPU device with
//! threads, on the CPU device with seeded schedules, on a driver written outside Warpline, and on
//! CUDA. The software CUDA driver stands in for a GPU.
//!
//! A test is an async function of one or more devices of one runtime. At its end, exactly as much
//! device and pinned memory is in use as before.

#[path = "../support/mod.rs"]
mod support;

#[path = "../support/note.rs"]
mod note;

mod between_backends;
mod budgets;
mod buffers;
mod copies;
mod device_code;
mod external;
mod fault_sweep;
mod graphs;
mod host_functions;
mod kernels;
mod memory;
mod memory_programs;
mod nn;
mod op_events;
mod outside;
mod peers;
mod pinned_waiting;
mod pinning;
mod positions;
mod reentry;
mod semantics;
mod streams;
mod tensors;
mod transfers;
mod types;
mod views;
mod waiting;
mod zeroing;

use std::future::{Future, IntoFuture};
use support::software::{Third, run_third_of_cuda_tests};
use warpline::prelude::*;
use warpline::{Result, RuntimeBuilder, testing};
use warpline_outside_driver::{BACKEND, ThreadDevice};
use warpline_test_counts::count;

/// Returns the number of interleavings that each test runs in.
fn seeds() -> u64 {
    count(6, 12)
}

/// Turns each function into a module with one test per backend: `mod name { threads, seeded,
/// outside, cuda }`.
macro_rules! contract {
    ($($(#[$attr:meta])* async fn $name:ident([$($device:ident),+]) $body:block)*) => {$(
        $(#[$attr])*
        mod $name {
            #[allow(unused_imports, reason = "few tests use all of them")]
            use super::*;

            const DEVICES: usize = [$(stringify!($device)),+].len();

            async fn body([$($device),+]: [Device; DEVICES]) -> warpline::Result<()> {
                $body
                Ok(())
            }

            #[test]
            fn threads() {
                crate::on_threads(body);
            }

            #[test]
            fn seeded() {
                crate::seeded(body);
            }

            #[test]
            fn outside() {
                crate::on_outside_driver(body);
            }

            #[test]
            #[ignore = "needs a CUDA device"]
            fn cuda() {
                crate::on_cuda(body);
            }
        }
    )*};
}
pub(crate) use contract;

/// The setting for as many devices as any of the tests takes.
const DEVICES: (&str, &str) = ("SOFTCUDA_DEVICES", "3");

/// Runs the tests that need a CUDA device. They need no GPU, because the software CUDA driver
/// answers the same calls.
#[test]
fn the_contract_holds_on_the_software_cuda_driver() {
    support::software::run_cuda_tests("", &[DEVICES]);
}

/// Runs every test that needs a CUDA device on a machine with one. Exactly the tests that take
/// several devices are reported as skipped.
#[test]
fn on_one_cuda_device_only_tests_of_several_devices_are_skipped() {
    let skipped = support::software::run_cuda_tests_on_one_device("");
    assert!(!skipped.is_empty());
    for line in &skipped {
        let needed = [
            " needs 2 CUDA devices, and this machine has 1",
            " needs 3 CUDA devices, and this machine has 1",
        ];
        assert!(needed.iter().any(|needed| line.ends_with(needed)), "{line:?}");
    }
    for several in [
        "tensors::to_moves_a_tensor_between_devices needs 2",
        "peers::a_stream_of_a_third_device_copies_between_two needs 3",
    ] {
        assert!(skipped.iter().any(|line| line.starts_with(several)), "{several:?} is not in {skipped:?}");
    }
}

#[test]
fn the_contract_holds_on_the_software_cuda_driver_with_event_completion() {
    let said = support::software::run_cuda_tests(
        "",
        &[DEVICES, ("WARPLINE_COMPLETION", "event"), ("SOFTCUDA_COUNTS", "1")],
    );
    let calls = fault_sweep::counts(&said);
    assert_eq!(
        calls["cuStreamWriteValue64_v2"], 3,
        "each device tests its words, and nothing else writes one"
    );
}

#[test]
fn the_contract_holds_on_the_software_cuda_driver_at_low_latency_and_low_power() {
    for (number, wake_up) in ["low-latency", "low-power"].into_iter().enumerate() {
        run_third_of_cuda_tests(
            &Third { number, ..Third::default() },
            &[DEVICES, ("WARPLINE_WAKE_UP", wake_up)],
        );
    }
}

/// Tests that hold more than one stream at once.
const SEVERAL_GATES: [&str; 8] = [
    "between_backends::wait_event_covers_what_came_before_the_record",
    "between_backends::wait_stream_covers_what_was_enqueued_before_it_and_nothing_later",
    "streams::an_event_is_a_future_of_its_place",
    "streams::synchronize_of_a_device_covers_exactly_what_its_streams_had_before",
    "streams::synchronize_of_a_stream_covers_exactly_what_was_enqueued_before",
    "streams::wait_event_covers_what_came_before_the_record_and_nothing_later",
    "streams::wait_for_orders_a_stream_after_every_user_of_the_memory",
    "streams::wait_stream_covers_what_was_enqueued_before_it_and_nothing_later",
];

#[test]
fn the_contract_holds_where_the_driver_registers_and_maps_no_memory() {
    // Gates are host functions then, and only one of them can be closed at a time.
    let one_at_a_time = ("RUST_TEST_THREADS", "1");
    run_third_of_cuda_tests(
        &Third { number: 2, and_all: &["streams::"], skipped: &SEVERAL_GATES },
        &[DEVICES, ("SOFTCUDA_NO_REGISTER", "1"), ("SOFTCUDA_VIRTUAL_MEMORY", "0"), one_at_a_time],
    );
}

#[test]
fn the_contract_holds_where_a_fault_is_seen_by_its_stream_first() {
    run_third_of_cuda_tests(
        &Third { and_all: &["panic", "fails_its"], ..Third::default() },
        &[DEVICES, ("SOFTCUDA_FAULT_SEEN", "stream")],
    );
}

/// Runs several tests at once on a driver whose calls wait for each other. A call that frees memory
/// waits for the device, and other calls wait for that call. A test that holds a stream must not
/// wait for a neighbour whose runtime ends.
#[test]
fn the_contract_holds_where_driver_calls_wait_for_each_other() {
    for (number, completion) in ["word", "event"].into_iter().enumerate() {
        run_third_of_cuda_tests(
            &Third { number, and_all: &["memory"], ..Third::default() },
            &[
                DEVICES,
                ("SOFTCUDA_ONE_AT_A_TIME", "1"),
                ("SOFTCUDA_DEPTH", "1000"),
                ("RUST_TEST_THREADS", "4"),
                ("WARPLINE_COMPLETION", completion),
            ],
        );
    }
}

#[test]
fn the_contract_holds_where_devices_cannot_reach_each_other() {
    let third = Third { number: 1, and_all: &["peers::", "transfers::"], ..Third::default() };
    run_third_of_cuda_tests(&third, &[DEVICES, ("SOFTCUDA_PEER", "0")]);
}

#[test]
fn the_contract_holds_where_a_library_makes_the_products() {
    let library = warpline_softcuda::cublas_library().expect("the library was built with this test");
    run_third_of_cuda_tests(
        &Third { number: 2, and_all: &["tensors::", "nn::"], ..Third::default() },
        &[DEVICES, ("WARPLINE_CUBLAS", library.to_str().expect("a path in UTF-8"))],
    );
}

fn on_threads<const N: usize, Fut: Future<Output = Result<()>>>(
    body: impl Fn([Device; N]) -> Fut + Send + 'static,
) {
    support::within_a_minute(|| {
        let runtime = support::runtime(N as u32);
        let devices = runtime.devices().try_into().expect("as many as were asked for");
        support::block_on(and_nothing_is_left(body, devices)).unwrap();
    });
}

fn on_outside_driver<const N: usize, Fut: Future<Output = Result<()>>>(
    body: impl Fn([Device; N]) -> Fut + Send + 'static,
) {
    support::within_a_minute(|| {
        let runtime = with_outside_devices(Runtime::builder(), N).build().unwrap();
        let id = |n| DeviceId::Other { backend: BACKEND, ordinal: n as u32 };
        let devices = std::array::from_fn(|n| runtime.device(id(n)).unwrap());
        support::block_on(and_nothing_is_left(body, devices)).unwrap();
    });
}

/// Adds `thread:0`, `thread:1` and so on.
fn with_outside_devices(builder: RuntimeBuilder, devices: usize) -> RuntimeBuilder {
    let add = |builder: RuntimeBuilder, n| builder.driver(move |health| Ok(ThreadDevice::open(n, health)));
    (0..devices as u32).fold(builder, add)
}

/// Opens the device in another runtime, whose settings `set` adds to the usual ones.
fn with_settings(
    device: &Device,
    set: impl FnOnce(RuntimeBuilder) -> RuntimeBuilder,
) -> Result<(Runtime, Device)> {
    let mut builder = set(RuntimeBuilder::from_env()?);
    if device.runs_in_turns() {
        builder = builder.schedule(Schedule::Seeded(1));
    }
    if matches!(device.id(), DeviceId::Other { .. }) {
        builder = with_outside_devices(builder, 1);
    }
    let runtime = builder.build()?;
    let device = runtime.device(device.id())?;
    Ok((runtime, device))
}

fn seeded<const N: usize, Fut: Future<Output = Result<()>>>(body: impl Fn([Device; N]) -> Fut) {
    let builder = support::builder().cpu_devices(N as u32);
    testing::for_each_seed_on(builder, 0..seeds(), |devices| {
        and_nothing_is_left(&body, devices.try_into().expect("as many as were asked for"))
    });
}

/// Runs `body` on the first CUDA devices. On a machine with fewer, but at least one, it reports
/// that the test is skipped.
fn on_cuda<const N: usize, Fut: Future<Output = Result<()>>>(
    body: impl Fn([Device; N]) -> Fut + Send + 'static,
) {
    let found = warpline::cuda::device_count().unwrap();
    if 0 < found && (found as usize) < N {
        // `body` is `contract::module::test::body`.
        let name = std::any::type_name_of_val(&body).trim_start_matches("contract::");
        let name = name.trim_end_matches("::body");
        support::software::report_skipped(&format!(
            "{name} needs {N} CUDA devices, and this machine has {found}"
        ));
        return;
    }
    support::within_a_minute(|| {
        // A runtime of its own, because concurrent tests use memory too.
        let runtime = Runtime::new().unwrap();
        let devices = std::array::from_fn(|n| runtime.device(DeviceId::Cuda(n as u32)).unwrap());
        devices.iter().for_each(|device: &Device| warm_up(device).unwrap());
        support::block_on(and_nothing_is_left(body, devices)).unwrap();
    });
}

/// Loads kernels and grows pools before a test holds a stream, because both may wait for the whole
/// device.
fn warm_up(device: &Device) -> Result<()> {
    device.load(warpline::kernels::ALL.iter().copied())?;
    let pinned = [1 << 12, 1 << 16, 1 << 20].map(|len| [(); 4].map(|()| device.blocking_pinned::<u8>(len)));
    let stream = device.new_stream()?;
    let memory = [1 << 10, 4 << 20].map(|len| stream.alloc::<u8>(len));
    drop((pinned, memory));
    stream.synchronize().blocking_wait()
}

/// Runs `body`, waits for the devices, and checks that as much memory is in use as before.
async fn and_nothing_is_left<const N: usize, Fut: Future<Output = Result<()>>>(
    body: impl Fn([Device; N]) -> Fut,
    devices: [Device; N],
) -> Result<()> {
    let in_use = || {
        let bytes =
            |device: &Device| (device.memory_stats().allocated_bytes, device.pinned_stats().allocated_bytes);
        devices.iter().map(bytes).collect::<Vec<_>>()
    };
    let before = in_use();
    body(devices.clone()).await?;
    for device in &devices {
        device.synchronize().await?;
    }
    assert_eq!(in_use(), before, "bytes of device and pinned memory in use, a pair a device");
    Ok(())
}

/// Returns the error that awaiting `pending` gives. Panics if it succeeds.
#[track_caller]
fn refused<T: std::fmt::Debug>(
    pending: impl IntoFuture<IntoFuture = Pending<T>>,
) -> impl Future<Output = Error> {
    let caller = std::panic::Location::caller();
    async move {
        match pending.await {
            Ok(value) => panic!("{caller}: accepted, with {value:?}"),
            Err(error) => error,
        }
    }
}

/// Returns a pinned buffer with these elements.
async fn pinned<T: warpline::Element>(device: &Device, elements: &[T]) -> Result<Pinned<T>> {
    let mut host = device.pinned(elements.len()).await?;
    host.copy_from_slice(elements);
    Ok(host)
}
