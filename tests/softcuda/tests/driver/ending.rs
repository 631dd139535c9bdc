//! Driver calls while the process ends.

use crate::raw::*;
use crate::support::{dies_in_child, in_child};
use cudarc::driver::sys;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const DEINITIALIZED: u32 = 4;

static EVENT: AtomicU64 = AtomicU64::new(0);
static STREAM: AtomicU64 = AtomicU64::new(0);

/// Registers an exit handler. It runs before those that were registered earlier.
fn at_exit(handler: extern "C" fn()) {
    // SAFETY: the handler may run on any thread; one that panics ends the process with a signal.
    assert_eq!(unsafe { libc::atexit(handler) }, 0);
}

fn late_calls() -> u64 {
    // SAFETY: the software driver is loaded and has the function with this signature.
    unsafe { sys::culib().get::<extern "C" fn() -> u64>(b"softcudaLateCalls\0").unwrap()() }
}

/// Creates the event and the stream that the handlers query.
fn make() {
    start();
    let (event, stream) = (event(), stream());
    ok!(cuEventRecord(event, stream));
    ok!(cuStreamSynchronize(stream));
    EVENT.store(event as u64, Ordering::SeqCst);
    STREAM.store(stream as u64, Ordering::SeqCst);
}

fn event_query() -> u32 {
    cu!(cuEventQuery(EVENT.load(Ordering::SeqCst) as _))
}

extern "C" fn asks_too_late() {
    assert_eq!(event_query(), DEINITIALIZED);
    assert_eq!(cu!(cuStreamQuery(STREAM.load(Ordering::SeqCst) as _)), DEINITIALIZED);
    let (mut active, mut flags) = (0, 0);
    assert_eq!(cu!(cuDevicePrimaryCtxGetState(0, &mut flags, &mut active)), DEINITIALIZED);
    assert_eq!(cu!(cuInit(0)), DEINITIALIZED);
    assert_eq!(event_query(), DEINITIALIZED, "it is not begun again");
    assert_eq!(late_calls(), 5);
    let mut name = std::ptr::null();
    ok!(cuGetErrorName(sys::CUresult::CUDA_ERROR_DEINITIALIZED, &mut name));
    eprintln!("asked too late");
}

extern "C" fn asks_in_time() {
    assert_eq!(event_query(), 0);
    assert_eq!(late_calls(), 0);
    eprintln!("asked in time");
}

#[test]
fn handlers_that_were_registered_before_the_drivers_find_it_gone() {
    let said = in_child(&[], || {
        at_exit(asks_too_late);
        make();
        at_exit(asks_in_time);
    });
    let [first, last] = ["asked in time", "asked too late"].map(|line| said.find(line));
    assert!(first.is_some() && first < last, "{said}");
}

#[test]
fn late_calls_go_into_a_file_by_name() {
    let file = std::env::temp_dir().join(format!("softcuda-late-calls-{}", std::process::id()));
    in_child(&[("SOFTCUDA_LATE_CALLS", file.to_str().unwrap())], || {
        at_exit(asks_too_late);
        make();
    });
    let names = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let expected = ["cuEventQuery", "cuStreamQuery", "cuDevicePrimaryCtxGetState", "cuInit", "cuEventQuery"];
    assert_eq!(names.lines().collect::<Vec<_>>(), expected);
}

/// Keeps the process from ending before another thread is caught, for a minute at most.
extern "C" fn waits_to_be_caught() {
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(60) {
        std::thread::yield_now();
    }
}

#[test]
fn a_thread_that_asks_until_the_end_is_caught() {
    dies_in_child(&[("SOFTCUDA_LATE_CALLS", "abort")], || {
        // Registered before the driver's handler, so it runs afterwards.
        at_exit(waits_to_be_caught);
        make();
        std::thread::spawn(|| {
            loop {
                event_query();
                std::thread::yield_now();
            }
        });
    });
}

extern "C" fn asks_once() {
    event_query();
}

#[test]
fn a_late_call_may_end_the_process() {
    dies_in_child(&[("SOFTCUDA_LATE_CALLS", "abort")], || {
        at_exit(asks_once);
        make();
    });
}

#[test]
fn nothing_ends_a_process_that_makes_no_late_call() {
    let said = in_child(&[("SOFTCUDA_LATE_CALLS", "abort")], || {
        make();
        at_exit(asks_in_time);
    });
    assert!(said.contains("asked in time"), "{said}");
}

#[test]
fn the_child_of_a_fork_cannot_use_the_driver() {
    in_child(&[], || {
        start();
        // SAFETY: the child makes two calls, which only read and store atomics, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let codes = [cu!(cuCtxSynchronize()), cu!(cuInit(0))];
            let code = if codes == [NOT_INITIALIZED; 2] { 0 } else { 1 };
            // SAFETY: _exit ends the child without the exit handlers of its parent.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: `status` is a live variable, and the process is a child of this one.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        ok!(cuCtxSynchronize());
    });
}
