//! `SOFTCUDA_FAULT_SEEN=stream`: the calls that report a fault first.

use crate::raw::*;
use crate::support::in_child;
use crate::twins::{ADD, ADD_PARAMS, add, register};
use cudarc::driver::sys;
use std::ffi::{CStr, c_char, c_void};

const BY_STREAM: (&str, &str) = ("SOFTCUDA_FAULT_SEEN", "stream");

/// A lost context, whose fault no call has reported yet.
struct Lost {
    faulted: sys::CUstream,
    idle: sys::CUstream,
    /// Recorded on the faulted stream, before the work that failed.
    before: sys::CUevent,
    /// Recorded on the faulted stream, behind the work that failed.
    behind: sys::CUevent,
    /// Recorded on the idle stream, and complete.
    complete: sys::CUevent,
    /// A stream that waits for `behind`.
    stalled: sys::CUstream,
    kernel: sys::CUfunction,
    word: Word,
    memory: u64,
}

/// Loses the context by freeing memory that queued work uses. The context is lost when this
/// returns.
fn lose() -> Lost {
    assert_eq!(register("add", &ADD_PARAMS, 0, add), 0);
    let (faulted, idle, stalled) = (stream(), stream(), stream());
    let (before, behind, complete) = (event(), event(), event());
    let (kernel, word, source, x) = (function(ADD, "add").unwrap(), Word::new(), pinned(8), alloc(8));
    ok!(cuEventRecord(before, faulted));
    word.written_by(idle, 1);
    ok!(cuEventRecord(complete, idle));
    ok!(cuStreamSynchronize(idle));
    let gate = Gate::on(faulted);
    ok!(cuMemcpyHtoDAsync_v2(x, source, 8, faulted));
    word.written_by(faulted, 2);
    ok!(cuEventRecord(behind, faulted));
    ok!(cuStreamWaitEvent(stalled, behind, 0));
    word.written_by(stalled, 3);
    ok!(cuMemFreeHost(source));
    gate.open();
    Lost { faulted, idle, before, behind, complete, stalled, kernel, word, memory: x }
}

impl Lost {
    fn nothing_has_been_seen(&self) {
        ok!(cuStreamQuery(self.idle));
        ok!(cuStreamSynchronize(self.idle));
        ok!(cuEventQuery(self.complete));
        ok!(cuEventSynchronize(self.complete));
        ok!(cuEventQuery(self.before));
        assert_eq!(cu!(cuStreamQuery(self.stalled)), NOT_READY);
        let mut other = std::ptr::null_mut();
        ok!(cuStreamCreate(&mut other, 1));
        ok!(cuStreamQuery(other));
        assert_eq!(self.word.load(), 1);
    }

    fn all_is_seen(&self) {
        for stream in [self.idle, self.faulted, self.stalled] {
            assert_eq!(cu!(cuStreamQuery(stream)), ILLEGAL_ADDRESS);
            assert_eq!(cu!(cuStreamSynchronize(stream)), ILLEGAL_ADDRESS);
        }
        for event in [self.before, self.behind, self.complete] {
            assert_eq!(cu!(cuEventQuery(event)), ILLEGAL_ADDRESS);
        }
        assert_eq!(self.word.load(), 1);
    }
}

/// Loses the context, and checks that `call` is the first to report the fault.
fn is_first_seen_by(call: impl FnOnce(&Lost) -> u32) {
    start();
    let lost = lose();
    lost.nothing_has_been_seen();
    assert_eq!(call(&lost), ILLEGAL_ADDRESS);
    lost.all_is_seen();
}

#[test]
fn a_query_of_the_faulted_stream_is_the_first_to_report() {
    in_child(&[BY_STREAM], || is_first_seen_by(|lost| cu!(cuStreamQuery(lost.faulted))));
}

#[test]
fn a_synchronization_of_the_faulted_stream_reports() {
    in_child(&[BY_STREAM], || is_first_seen_by(|lost| cu!(cuStreamSynchronize(lost.faulted))));
}

#[test]
fn a_query_of_an_unfinished_event_of_the_faulted_stream_reports() {
    in_child(&[BY_STREAM], || is_first_seen_by(|lost| cu!(cuEventQuery(lost.behind))));
}

#[test]
fn an_event_record_on_an_idle_stream_reports() {
    in_child(&[BY_STREAM], || is_first_seen_by(|lost| cu!(cuEventRecord(lost.complete, lost.idle))));
}

#[test]
fn a_record_of_an_event_with_timing_on_an_idle_stream_reports() {
    in_child(&[BY_STREAM], || is_first_seen_by(|lost| cu!(cuEventRecord(event_with(0), lost.idle))));
}

#[test]
fn a_launch_on_an_idle_stream_reports() {
    in_child(&[BY_STREAM], || is_first_seen_by(|lost| launch_add(lost.kernel, lost.idle, alloc(4), 1.0, 1)));
}

#[test]
fn a_copy_on_an_idle_stream_reports() {
    in_child(&[BY_STREAM], || {
        is_first_seen_by(|lost| cu!(cuMemcpyHtoDAsync_v2(alloc(8), pinned(8), 8, lost.idle)))
    });
}

#[test]
fn a_fill_on_the_null_stream_reports() {
    in_child(&[BY_STREAM], || is_first_seen_by(|_| cu!(cuMemsetD8_v2(alloc(8), 0, 8))));
}

#[test]
fn a_word_written_by_an_idle_stream_reports() {
    in_child(&[BY_STREAM], || {
        is_first_seen_by(|lost| cu!(cuStreamWriteValue64_v2(lost.idle, lost.word.address(), 9, 0)))
    });
}

#[test]
fn a_host_function_on_an_idle_stream_reports() {
    extern "C" fn nothing(_: *mut c_void) {}
    in_child(&[BY_STREAM], || {
        is_first_seen_by(|lost| cu!(cuLaunchHostFunc(lost.idle, Some(nothing), std::ptr::null_mut())))
    });
}

/// Like `is_first_seen_by`, for a call that is made in a context of another device, which gets the
/// lost context and a stream there. Makes the lost context current again.
fn is_first_seen_from_another_device(call: impl FnOnce(&Lost, sys::CUcontext, sys::CUstream) -> u32) {
    is_first_seen_by(|lost| {
        let mut here = std::ptr::null_mut();
        ok!(cuCtxGetCurrent(&mut here));
        start_on(1);
        let there = stream();
        let code = call(lost, here, there);
        ok!(cuStreamSynchronize(there));
        ok!(cuCtxSetCurrent(here));
        code
    });
}

#[test]
fn a_copy_of_a_lost_devices_memory_to_another_reports() {
    in_child(&[BY_STREAM, ("SOFTCUDA_DEVICES", "2")], || {
        is_first_seen_from_another_device(|lost, here, there| {
            let mut context = std::ptr::null_mut();
            ok!(cuCtxGetCurrent(&mut context));
            cu!(cuMemcpyPeerAsync(alloc(8), context, lost.memory, here, 8, there))
        });
    });
}

#[test]
fn a_wait_of_another_device_for_an_unfinished_event_of_the_faulted_stream_reports() {
    in_child(&[BY_STREAM, ("SOFTCUDA_DEVICES", "2")], || {
        is_first_seen_from_another_device(|lost, _, there| cu!(cuStreamWaitEvent(there, lost.behind, 0)));
    });
}

#[test]
fn what_waits_for_the_context_reports() {
    in_child(&[BY_STREAM], || is_first_seen_by(|_| cu!(cuCtxSynchronize())));
}

#[test]
fn a_free_reports_as_it_waits() {
    in_child(&[BY_STREAM], || is_first_seen_by(|_| cu!(cuMemFree_v2(alloc(8)))));
}

#[test]
fn a_host_that_waits_for_another_stream_than_the_faulted_one_is_woken() {
    in_child(&[BY_STREAM], || is_first_seen_by(|lost| cu!(cuStreamSynchronize(lost.stalled))));
}

#[test]
fn a_poisoned_launch_is_seen_by_its_stream() {
    in_child(&[BY_STREAM, ("SOFTCUDA_POISON_LAUNCH", "1:719")], || {
        start();
        assert_eq!(register("add", &ADD_PARAMS, 0, add), 0);
        let (kernel, faulted, idle, x) = (function(ADD, "add").unwrap(), stream(), stream(), alloc(4));
        let (complete, word) = (event(), Word::new());
        ok!(cuEventRecord(complete, idle));
        assert_eq!(launch_add(kernel, faulted, x, 1.0, 1), 0);
        // These succeed, whether or not the launch has run.
        for _ in 0..1000 {
            ok!(cuStreamQuery(idle));
            ok!(cuEventQuery(complete));
        }
        while cu!(cuStreamQuery(faulted)) == NOT_READY {
            ok!(cuStreamQuery(idle));
            std::thread::yield_now();
        }
        assert_eq!(cu!(cuStreamQuery(faulted)), LAUNCH_FAILED);
        assert_eq!(cu!(cuStreamQuery(idle)), LAUNCH_FAILED);
        assert_eq!(cu!(cuEventQuery(complete)), LAUNCH_FAILED);
        assert_eq!(cu!(cuStreamWriteValue64_v2(idle, word.host() as u64, 1, 0)), LAUNCH_FAILED);
    });
}

#[test]
fn without_the_setting_every_call_reports_at_once() {
    in_child(&[], || {
        start();
        lose().all_is_seen();
    });
}

/// Returns an entry point of the driver that returns its code as a number, since `CUresult` may
/// lack the code.
fn entry<F: Copy>(name: &CStr) -> F {
    // SAFETY: `F` is the C signature of the entry point, with the code as a number.
    unsafe { *sys::culib().get::<F>(name.to_bytes_with_nul()).unwrap() }
}

fn code_after_a_launch_that_poisons() -> (u32, u32, Option<String>) {
    let query: extern "C" fn(sys::CUstream) -> u32 = entry(c"cuStreamSynchronize");
    let name_of: extern "C" fn(u32, *mut *const c_char) -> u32 = entry(c"cuGetErrorName");
    start();
    assert_eq!(register("add", &ADD_PARAMS, 0, add), 0);
    let (kernel, stream, x) = (function(ADD, "add").unwrap(), stream(), alloc(4));
    assert_eq!(launch_add(kernel, stream, x, 1.0, 1), 0);
    let code = query(stream);
    let mut name = c"unset".as_ptr();
    let known = name_of(code, &mut name);
    // SAFETY: the name is not null. It is a string that ends with a NUL and is never freed.
    let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned());
    (code, known, name)
}

#[test]
fn a_fault_may_have_a_code_that_has_no_name() {
    in_child(&[("SOFTCUDA_POISON_LAUNCH", "1:9999")], || {
        assert_eq!(code_after_a_launch_that_poisons(), (9999, INVALID_VALUE, None));
    });
}

#[test]
fn codes_that_no_call_here_returns_by_itself_have_names() {
    in_child(&[("SOFTCUDA_POISON_LAUNCH", "1:810")], || {
        let name = Some("CUDA_ERROR_MPS_CLIENT_TERMINATED".into());
        assert_eq!(code_after_a_launch_that_poisons(), (810, 0, name));
    });
}
