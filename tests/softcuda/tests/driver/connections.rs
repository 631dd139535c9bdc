//! `SOFTCUDA_CONNECTIONS=n`: streams that share hardware queues.

use crate::graphs::executable;
use crate::raw::*;
use crate::support::in_child;
use cudarc::driver::sys;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// True once the gate is open.
static OPEN: AtomicBool = AtomicBool::new(false);
/// The state of the gate that each host function saw: 0 if it has not run, 1 closed, 2 open.
static SEEN: [AtomicU32; 4] = [const { AtomicU32::new(0) }; 4];

extern "C" fn look(place: *mut c_void) {
    SEEN[place as usize].store(1 + OPEN.load(Ordering::SeqCst) as u32, Ordering::SeqCst);
}

/// Enqueues a host function that notes whether the gate is open.
fn looks(stream: sys::CUstream, place: usize) {
    ok!(cuLaunchHostFunc(stream, Some(look), place as *mut c_void));
}

/// Opens the gate, and waits for the streams.
fn open(gate: &Gate, streams: &[sys::CUstream]) {
    OPEN.store(true, Ordering::SeqCst);
    gate.open();
    streams.iter().for_each(|stream| ok!(cuStreamSynchronize(*stream)));
}

fn seen() -> [u32; 4] {
    [0, 1, 2, 3].map(|place| SEEN[place].load(Ordering::SeqCst))
}

#[test]
fn a_gate_holds_up_what_is_enqueued_later_on_streams_of_its_queue() {
    in_child(&[("SOFTCUDA_CONNECTIONS", "2")], || {
        start();
        let [held, apart, behind] = [stream(), stream(), stream()];
        // In the same queue, but enqueued before the gate, so it runs.
        looks(behind, 0);
        ok!(cuStreamSynchronize(behind));
        let gate = Gate::on(held);
        looks(behind, 1);
        // Long enough for the function on `behind` to run, if it could.
        for _ in 0..100 {
            looks(apart, 2);
            ok!(cuStreamSynchronize(apart));
        }
        assert_eq!(cu!(cuStreamQuery(behind)), NOT_READY);
        open(&gate, &[held, behind]);
        assert_eq!(seen(), [1, 2, 1, 0]);
    });
}

#[test]
fn a_wait_for_an_event_holds_up_its_queue() {
    in_child(&[("SOFTCUDA_CONNECTIONS", "3")], || {
        start();
        let [held, waits, apart, _third, behind] = [stream(), stream(), stream(), stream(), stream()];
        let gate = Gate::on(held);
        let event = event();
        ok!(cuEventRecord(event, held));
        ok!(cuStreamWaitEvent(waits, event, 0));
        looks(behind, 0);
        looks(apart, 1);
        ok!(cuStreamSynchronize(apart));
        open(&gate, &[held, waits, behind]);
        assert_eq!(seen(), [2, 1, 0, 0]);
    });
}

#[test]
fn a_copy_that_has_started_holds_up_its_own_stream_alone() {
    // The copy takes longer than the test, which ends while the copy is in progress.
    in_child(&[("SOFTCUDA_CONNECTIONS", "1"), ("SOFTCUDA_COPY_DELAY_US", "100000000")], || {
        start();
        let (copies, other, x, host) = (stream(), stream(), alloc(8), pinned(8));
        ok!(cuMemcpyHtoDAsync_v2(x, host, 8, copies));
        looks(other, 0);
        ok!(cuStreamSynchronize(other));
        assert_eq!(cu!(cuStreamQuery(copies)), NOT_READY);
        // This function is behind the copy and has not started, so it holds up later work of the
        // queue.
        looks(copies, 1);
        looks(other, 2);
        assert_eq!(cu!(cuStreamQuery(other)), NOT_READY);
        assert_eq!(seen(), [1, 0, 0, 0]);
    });
}

#[test]
fn a_graph_holds_up_its_queue_until_it_has_ended() {
    in_child(&[("SOFTCUDA_CONNECTIONS", "2")], || {
        start();
        let [launches, apart, behind] = [stream(), stream(), stream()];
        let word = Word::new();
        let exec = executable(launches, || {
            looks(launches, 0);
            ok!(cuStreamWaitValue64_v2(launches, word.address(), 1, 0));
            looks(launches, 1);
        });
        ok!(cuGraphLaunch(exec, launches));
        looks(behind, 2);
        looks(apart, 3);
        ok!(cuStreamSynchronize(apart));
        OPEN.store(true, Ordering::SeqCst);
        word.store(1);
        ok!(cuStreamSynchronize(behind));
        let seen = seen();
        assert_eq!(seen[1..], [2, 2, 1]);
    });
}

#[test]
fn each_context_has_queues_of_its_own() {
    in_child(&[("SOFTCUDA_CONNECTIONS", "1"), ("SOFTCUDA_DEVICES", "2")], || {
        let first = start_on(0);
        let held = stream();
        let gate = Gate::on(held);
        start_on(1);
        let other = stream();
        looks(other, 0);
        ok!(cuStreamSynchronize(other));
        ok!(cuCtxSetCurrent(first));
        open(&gate, &[held]);
        assert_eq!(seen(), [1, 0, 0, 0]);
    });
}

/// Enqueues writes and waits on `count` streams, ordered by events and words, and waits for all of
/// them.
fn ordered_work_ends_on(count: usize) {
    start();
    let streams: Vec<_> = (0..count).map(|_| stream()).collect();
    let words: Vec<_> = streams.iter().map(|_| Word::new()).collect();
    let mut random = 7u32;
    let mut below = |bound: usize| {
        random = random.wrapping_mul(1664525).wrapping_add(1013904223);
        (random >> 16) as usize % bound
    };
    for value in 1..=3000 {
        let (from, to) = (below(count), below(count));
        words[from].written_by(streams[from], value);
        let event = event();
        ok!(cuEventRecord(event, streams[from]));
        ok!(cuStreamWaitEvent(streams[to], event, 0));
        // If the event orders the streams, the word has been written when this wait starts.
        ok!(cuStreamWaitValue64_v2(streams[to], words[from].address(), value, 0));
        ok!(cuEventDestroy_v2(event));
        if value % 100 == 0 {
            let gone = stream();
            words[0].written_by(streams[0], value);
            looks(gone, 0);
            ok!(cuStreamDestroy_v2(gone));
        }
    }
    ok!(cuCtxSynchronize());
    for stream in streams {
        ok!(cuStreamQuery(stream));
    }
}

#[test]
fn work_ordered_by_events_ends_in_one_queue() {
    in_child(&[("SOFTCUDA_CONNECTIONS", "1")], || ordered_work_ends_on(7));
}

#[test]
fn work_ordered_by_events_ends_in_two_queues() {
    in_child(&[("SOFTCUDA_CONNECTIONS", "2")], || ordered_work_ends_on(7));
}

#[test]
fn work_ordered_by_events_ends_in_three_queues() {
    in_child(&[("SOFTCUDA_CONNECTIONS", "3")], || ordered_work_ends_on(7));
}

#[test]
fn a_fault_reaches_hosts_that_wait_for_streams_behind_it() {
    in_child(&[("SOFTCUDA_CONNECTIONS", "1")], || {
        start();
        let [faulty, behind, source, x] = [stream() as u64, stream() as u64, pinned(8) as u64, alloc(8)];
        let gate = Gate::on(faulty as _);
        ok!(cuMemcpyHtoDAsync_v2(x, source as _, 8, faulty as _));
        looks(behind as _, 0);
        ok!(cuMemFreeHost(source as _));
        gate.open();
        assert_eq!(cu!(cuStreamSynchronize(behind as _)), ILLEGAL_ADDRESS);
        assert_eq!(seen(), [0; 4]);
    });
}
