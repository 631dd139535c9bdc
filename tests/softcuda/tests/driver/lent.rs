//! A stream that its owner lends to a library and then captures: the effects on the library's
//! markers.

use crate::raw::*;
use crate::support::in_child;
use cudarc::driver::sys::{self, CUstreamCaptureMode as Mode};

const CAPTURED_EVENT: u32 = 907;

/// Marks the stream like a library that ignores captures: another thread writes a ticket and
/// records an event.
fn mark(context: sys::CUcontext, stream: sys::CUstream, word: Word, ticket: u64, event: sys::CUevent) {
    let [context, stream, event] = [context as usize, stream as usize, event as usize];
    std::thread::scope(|scope| {
        scope.spawn(move || {
            ok!(cuCtxSetCurrent(context as _));
            word.written_by(stream as _, ticket);
            ok!(cuEventRecord(event as _, stream as _));
        });
    });
}

#[test]
fn each_launch_of_the_owners_graph_stores_the_librarys_tickets_again() {
    in_child(&[], || {
        let context = start();
        let (lent, word, marker) = (stream(), Word::new(), event());
        mark(context, lent, word, 1, marker);
        ok!(cuStreamSynchronize(lent));
        ok!(cuEventQuery(marker));
        ok!(cuStreamBeginCapture_v2(lent, Mode::CU_STREAM_CAPTURE_MODE_GLOBAL));
        mark(context, lent, word, 2, marker);
        mark(context, lent, word, 3, marker);
        let (mut graph, mut exec, mut nodes) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
        ok!(cuStreamEndCapture(lent, &mut graph));
        ok!(cuGraphGetNodes(graph, std::ptr::null_mut(), &mut nodes));
        assert_eq!(nodes, 2, "each store is a node, a record is none");
        assert_eq!(cu!(cuEventQuery(marker)), CAPTURED_EVENT, "until it is recorded again");
        ok!(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
        ok!(cuStreamSynchronize(lent));
        assert_eq!(word.load(), 1, "what was captured has not run");
        mark(context, lent, word, 9, marker);
        for _ in 0..3 {
            ok!(cuGraphLaunch(exec, lent));
            ok!(cuStreamSynchronize(lent));
            assert_eq!(word.load(), 3, "a launch takes the word back");
            // By now the word has another use.
            word.store(100);
        }
        ok!(cuEventQuery(marker));
    });
}

#[test]
fn a_launch_stores_into_a_word_that_serves_another_stream_by_then() {
    in_child(&[], || {
        let context = start();
        let (lent, other, word, marker) = (stream(), stream(), Word::new(), event());
        ok!(cuStreamBeginCapture_v2(lent, Mode::CU_STREAM_CAPTURE_MODE_RELAXED));
        mark(context, lent, word, 7, marker);
        let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
        ok!(cuStreamEndCapture(lent, &mut graph));
        ok!(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
        let gate = Gate::on(other);
        word.written_by(other, 5);
        ok!(cuGraphLaunch(exec, lent));
        ok!(cuStreamSynchronize(lent));
        assert_eq!(word.load(), 7, "ticket 5 looks reached");
        assert_eq!(cu!(cuStreamQuery(other)), NOT_READY, "and has not run");
        gate.open();
        ok!(cuStreamSynchronize(other));
        assert_eq!(word.load(), 5);
    });
}

#[test]
fn a_wait_for_a_marker_of_the_captured_stream_drags_the_waiter_in() {
    in_child(&[], || {
        let context = start();
        let (lent, own, word, marker) = (stream(), stream(), Word::new(), event());
        let status = || {
            let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
            ok!(cuStreamIsCapturing(own, &mut status));
            status as u32
        };
        ok!(cuStreamBeginCapture_v2(lent, Mode::CU_STREAM_CAPTURE_MODE_RELAXED));
        mark(context, lent, word, 1, marker);
        assert_eq!(status(), 0);
        ok!(cuStreamWaitEvent(own, marker, 0));
        assert_eq!(status(), 1);
        word.written_by(own, 2);
        let mut graph = std::ptr::null_mut();
        assert_eq!(cu!(cuStreamEndCapture(lent, &mut graph)), 904, "the owner does not join it");
        ok!(cuStreamSynchronize(own));
        assert_eq!(word.load(), 0, "its work is gone");
    });
}
