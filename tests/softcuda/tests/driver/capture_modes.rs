//! Effects of other threads' calls on a capture, by the mode of the capture and that of the thread.

use crate::raw::*;
use crate::support::in_child;
use crate::twins::ADD;
use cudarc::driver::sys::{self, CUstreamCaptureMode as Mode};
use std::ffi::{CString, c_void};
use std::sync::Mutex;

const GLOBAL: Mode = Mode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const THREAD_LOCAL: Mode = Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const RELAXED: Mode = Mode::CU_STREAM_CAPTURE_MODE_RELAXED;

const UNSUPPORTED: u32 = 900;
const INVALIDATED: u32 = 901;
const IMPLICIT: u32 = 906;

/// Handles and memory for the calls, made before the capture begins.
#[derive(Clone, Copy)]
struct Things {
    context: usize,
    /// An event with timing, which was recorded on `stream`.
    event: usize,
    stream: usize,
    memory: u64,
    host: usize,
    module: usize,
    pool: usize,
}

impl Things {
    fn new() -> Self {
        let context = start() as usize;
        let (event, stream, mut pool) = (event_with(0), stream(), std::ptr::null_mut());
        ok!(cuEventRecord(event, stream));
        ok!(cuStreamSynchronize(stream));
        ok!(cuDeviceGetDefaultMemPool(&mut pool, 0));
        Things {
            context,
            event: event as usize,
            stream: stream as usize,
            memory: alloc(8),
            host: pinned(8) as usize,
            module: module(),
            pool: pool as usize,
        }
    }
}

fn module() -> usize {
    let (mut module, text) = (std::ptr::null_mut(), CString::new(ADD).unwrap());
    ok!(cuModuleLoadData(&mut module, text.as_ptr().cast()));
    module as usize
}

/// A call and its name. It returns the driver's code, and may be made once on the same `Things`.
type Call = (&'static str, fn(Things) -> u32);

/// Calls that are known to be potentially unsafe.
const UNSAFE: &[Call] = &[
    ("cuEventQuery", |things| cu!(cuEventQuery(things.event as _))),
    ("cuEventSynchronize", |things| cu!(cuEventSynchronize(things.event as _))),
    ("cuMemAlloc", |_| cu!(cuMemAlloc_v2(&mut 0, 8))),
    ("cuMemHostAlloc", |_| cu!(cuMemHostAlloc(&mut std::ptr::null_mut(), 8, 0))),
    ("cuMemAllocHost", |_| cu!(cuMemAllocHost_v2(&mut std::ptr::null_mut(), 8))),
    ("cuMemHostRegister", |_| {
        // The driver may use it until the process ends.
        static REGISTERED: Mutex<Vec<Vec<u64>>> = Mutex::new(Vec::new());
        let mut memory = vec![0u64; 8];
        let code = cu!(cuMemHostRegister_v2(memory.as_mut_ptr().cast(), 64, 0));
        REGISTERED.lock().unwrap().push(memory);
        code
    }),
    ("cuMemFreeHost", |things| cu!(cuMemFreeHost(things.host as *mut c_void))),
    ("cuMemcpyDtoH", |things| {
        let mut word = 0u64;
        cu!(cuMemcpyDtoH_v2((&raw mut word).cast(), things.memory, 8))
    }),
    ("cuMemsetD8", |things| cu!(cuMemsetD8_v2(things.memory, 1, 8))),
    ("cuMemFree", |things| cu!(cuMemFree_v2(things.memory))),
    ("cuModuleLoadData", |_| {
        let (mut module, text) = (std::ptr::null_mut(), CString::new(ADD).unwrap());
        cu!(cuModuleLoadData(&mut module, text.as_ptr().cast()))
    }),
    ("cuModuleUnload", |things| cu!(cuModuleUnload(things.module as _))),
    ("cuMemPoolGetAttribute", |things| {
        let (mut bytes, which) = (0u64, sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
        cu!(cuMemPoolGetAttribute(things.pool as _, which, (&raw mut bytes).cast()))
    }),
    ("cuMemPoolSetAttribute", |things| {
        let (mut bytes, which) = (1u64, sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
        cu!(cuMemPoolSetAttribute(things.pool as _, which, (&raw mut bytes).cast()))
    }),
];

/// Calls that are refused in strict mode only.
const DOUBTFUL: &[Call] = &[
    ("cuStreamQuery", |things| cu!(cuStreamQuery(things.stream as _))),
    ("cuStreamSynchronize", |things| cu!(cuStreamSynchronize(things.stream as _))),
    ("cuStreamCreate", |_| cu!(cuStreamCreate(&mut std::ptr::null_mut(), 1))),
    ("cuEventElapsedTime", |things| cu!(cuEventElapsedTime(&mut 0.0, things.event as _, things.event as _))),
    ("cuMemGetInfo", |_| cu!(cuMemGetInfo_v2(&mut 0, &mut 0))),
    ("cuModuleGetFunction", |things| {
        cu!(cuModuleGetFunction(&mut std::ptr::null_mut(), things.module as _, c"add".as_ptr()))
    }),
];

/// Calls that are safe: enqueuing work, and questions about handles.
const SAFE: &[Call] = &[
    ("cuEventRecord", |things| cu!(cuEventRecord(things.event as _, things.stream as _))),
    ("cuStreamWaitEvent", |things| cu!(cuStreamWaitEvent(things.stream as _, things.event as _, 0))),
    ("cuMemsetD8Async", |things| cu!(cuMemsetD8Async(things.memory, 1, 8, things.stream as _))),
    ("cuEventCreate", |_| cu!(cuEventCreate(&mut std::ptr::null_mut(), 2))),
    ("cuStreamIsCapturing", |things| {
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        cu!(cuStreamIsCapturing(things.stream as _, &mut status))
    }),
    ("cuCtxGetDevice", |_| cu!(cuCtxGetDevice(&mut 0))),
];

fn set_thread_mode(mut mode: Mode) {
    ok!(cuThreadExchangeStreamCaptureMode(&mut mode));
    assert_eq!(mode, GLOBAL, "what a thread has at first");
}

/// Makes a call during a capture in mode `captures`, on another thread in mode `calls`, or on this
/// thread if `calls` is `None`. Returns the codes of the call and of the end of the capture.
fn beside(captures: Mode, calls: Option<Mode>, call: Call) -> (u32, u32) {
    let (things, capturing, mut graph) = (Things::new(), stream(), std::ptr::null_mut());
    ok!(cuStreamBeginCapture_v2(capturing, captures));
    let code = match calls {
        None => call.1(things),
        Some(mode) => std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                ok!(cuCtxSetCurrent(things.context as _));
                set_thread_mode(mode);
                call.1(things)
            });
            thread.join().unwrap()
        }),
    };
    (code, cu!(cuStreamEndCapture(capturing, &mut graph)))
}

fn all_are_allowed(captures: Mode, calls: Option<Mode>, what: &[Call]) {
    for call in what {
        assert_eq!(beside(captures, calls, *call), (0, 0), "{}", call.0);
    }
}

fn all_are_refused(captures: Mode, calls: Option<Mode>, what: &[Call]) {
    for call in what {
        assert_eq!(beside(captures, calls, *call), (UNSUPPORTED, INVALIDATED), "{}", call.0);
    }
}

#[test]
fn unsafe_calls_of_any_thread_break_a_global_capture() {
    in_child(&[], || {
        all_are_refused(GLOBAL, Some(GLOBAL), UNSAFE);
        all_are_refused(GLOBAL, None, UNSAFE);
        all_are_allowed(GLOBAL, Some(GLOBAL), SAFE);
        all_are_allowed(GLOBAL, Some(GLOBAL), DOUBTFUL);
    });
}

#[test]
fn a_thread_that_is_relaxed_or_minds_itself_breaks_no_capture_of_others() {
    in_child(&[], || {
        for mode in [THREAD_LOCAL, RELAXED] {
            all_are_allowed(GLOBAL, Some(mode), UNSAFE);
        }
    });
}

#[test]
fn a_thread_local_capture_is_broken_by_its_own_thread_alone() {
    in_child(&[], || {
        all_are_allowed(THREAD_LOCAL, Some(GLOBAL), UNSAFE);
        all_are_refused(THREAD_LOCAL, None, UNSAFE);
    });
}

#[test]
fn a_relaxed_capture_is_broken_by_no_unsafe_call() {
    in_child(&[], || {
        all_are_allowed(RELAXED, Some(GLOBAL), UNSAFE);
        all_are_allowed(RELAXED, None, UNSAFE);
    });
}

#[test]
fn a_capturing_thread_may_relax_its_own_mode() {
    in_child(&[], || {
        start();
        set_thread_mode(RELAXED);
        all_are_allowed(GLOBAL, None, UNSAFE);
    });
}

#[test]
fn in_strict_mode_doubtful_calls_are_unsafe_too() {
    in_child(&[("SOFTCUDA_CAPTURE_STRICT", "1")], || {
        all_are_refused(GLOBAL, Some(GLOBAL), DOUBTFUL);
        all_are_allowed(GLOBAL, Some(RELAXED), DOUBTFUL);
        all_are_allowed(GLOBAL, Some(GLOBAL), SAFE);
    });
}

#[test]
fn even_a_relaxed_thread_may_not_ask_the_context_or_a_captured_event() {
    in_child(&[], || {
        let sync: Call = ("cuCtxSynchronize", |_| cu!(cuCtxSynchronize()));
        all_are_refused(RELAXED, Some(RELAXED), &[sync]);
        let (capturing, event, mut graph) = (stream(), event(), std::ptr::null_mut());
        ok!(cuStreamBeginCapture_v2(capturing, RELAXED));
        ok!(cuEventRecord(event, capturing));
        assert_eq!(cu!(cuEventQuery(event)), 907);
        assert_eq!(cu!(cuStreamEndCapture(capturing, &mut graph)), INVALIDATED);
    });
}

#[test]
fn the_null_stream_is_not_asked_while_a_blocking_stream_captures() {
    in_child(&[], || {
        let context = start() as usize;
        let (mut blocking, mut graph) = (std::ptr::null_mut(), std::ptr::null_mut());
        ok!(cuStreamCreate(&mut blocking, 0));
        for ask in
            [|| cu!(cuStreamQuery(std::ptr::null_mut())), || cu!(cuStreamSynchronize(std::ptr::null_mut()))]
        {
            ok!(cuStreamBeginCapture_v2(blocking, THREAD_LOCAL));
            let asked = std::thread::spawn(move || {
                ok!(cuCtxSetCurrent(context as _));
                ask()
            });
            assert_eq!(asked.join().unwrap(), IMPLICIT);
            assert_eq!(cu!(cuStreamEndCapture(blocking, &mut graph)), INVALIDATED);
            let apart = stream();
            ok!(cuStreamBeginCapture_v2(apart, THREAD_LOCAL));
            assert_eq!(ask(), 0, "a non-blocking stream is nothing to it");
            ok!(cuStreamEndCapture(apart, &mut graph));
        }
    });
}
