//! Stream capture: the calls that it accepts, and those that break it.

use crate::raw::*;
use crate::support::in_child;
use cudarc::driver::sys::{self, CUstreamCaptureMode as Mode, CUstreamCaptureStatus as Status};

const UNSUPPORTED: u32 = 900;
const INVALIDATED: u32 = 901;

fn begin(stream: sys::CUstream) {
    ok!(cuStreamBeginCapture_v2(stream, Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
}

fn end(stream: sys::CUstream) -> (u32, sys::CUgraph) {
    let mut graph = std::ptr::null_mut();
    (cu!(cuStreamEndCapture(stream, &mut graph)), graph)
}

fn status(stream: sys::CUstream) -> Status {
    let mut status = Status::CU_STREAM_CAPTURE_STATUS_NONE;
    ok!(cuStreamIsCapturing(stream, &mut status));
    status
}

#[test]
fn what_is_captured_does_not_run() {
    in_child(&[], || {
        start();
        let (stream, word) = (stream(), Word::new());
        begin(stream);
        assert_eq!(status(stream), Status::CU_STREAM_CAPTURE_STATUS_ACTIVE);
        word.written_by(stream, 1);
        let (code, graph) = end(stream);
        assert_eq!(code, 0);
        ok!(cuGraphDestroy(graph));
        assert_eq!(cu!(cuGraphDestroy(graph)), INVALID_VALUE);
        word.written_by(stream, 2);
        ok!(cuStreamSynchronize(stream));
        assert_eq!(word.load(), 2);
        assert_eq!(end(stream).0, 401, "it is not capturing");
    });
}

#[test]
fn a_query_of_a_capturing_stream_breaks_the_capture() {
    let said = in_child(&[], || {
        start();
        let (stream, word) = (stream(), Word::new());
        begin(stream);
        assert_eq!(cu!(cuStreamQuery(stream)), UNSUPPORTED);
        assert_eq!(status(stream), Status::CU_STREAM_CAPTURE_STATUS_INVALIDATED);
        assert_eq!(cu!(cuStreamWriteValue64_v2(stream, word.address(), 1, 0)), INVALIDATED);
        let (code, graph) = end(stream);
        assert_eq!((code, graph), (INVALIDATED, std::ptr::null_mut()));
        ok!(cuStreamQuery(stream));
        for breaks in [
            || cu!(cuCtxSynchronize()),
            || {
                let mut address = 0;
                cu!(cuMemAlloc_v2(&mut address, 8))
            },
        ] {
            begin(stream);
            assert_eq!(breaks(), UNSUPPORTED);
            assert_eq!(end(stream).0, INVALIDATED);
        }
    });
    assert!(said.contains("the stream is capturing; the capture is broken"), "{said}");
}

#[test]
fn a_launch_of_a_graph_breaks_the_capture() {
    in_child(&[], || {
        start();
        let (stream, word) = (stream(), Word::new());
        begin(stream);
        word.written_by(stream, 7);
        let (_, graph) = end(stream);
        let mut exec = std::ptr::null_mut();
        ok!(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
        begin(stream);
        assert_eq!(cu!(cuGraphLaunch(exec, stream)), UNSUPPORTED);
        assert_eq!(end(stream).0, INVALIDATED);
        ok!(cuGraphLaunch(exec, stream));
        ok!(cuStreamSynchronize(stream));
        assert_eq!(word.load(), 7);
    });
}

#[test]
fn a_thread_local_capture_does_not_mind_other_threads() {
    in_child(&[], || {
        let context = start() as usize;
        let stream = stream();
        let elsewhere = event();
        begin(stream);
        let event = elsewhere as usize;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                ok!(cuCtxSetCurrent(context as _));
                alloc(8);
                ok!(cuEventQuery(event as _));
            });
        });
        assert_eq!(end(stream).0, 0);
    });
}

#[test]
fn a_stream_comes_in_by_a_wait_and_must_be_joined() {
    in_child(&[], || {
        start();
        let (origin, side, word) = (stream(), stream(), Word::new());
        let (fork, join) = (event(), event());
        begin(origin);
        ok!(cuEventRecord(fork, origin));
        ok!(cuStreamWaitEvent(side, fork, 0));
        assert_eq!(status(side), Status::CU_STREAM_CAPTURE_STATUS_ACTIVE);
        assert_eq!(end(side).0, 903, "it began elsewhere");
        assert_eq!(end(origin).0, INVALIDATED);
        begin(origin);
        ok!(cuEventRecord(fork, origin));
        ok!(cuStreamWaitEvent(side, fork, 0));
        word.written_by(side, 1);
        assert_eq!(end(origin).0, 904, "the side stream was not joined");
        begin(origin);
        ok!(cuEventRecord(fork, origin));
        ok!(cuStreamWaitEvent(side, fork, 0));
        word.written_by(side, 1);
        ok!(cuEventRecord(join, side));
        ok!(cuStreamWaitEvent(origin, join, 0));
        assert_eq!(end(origin).0, 0);
        assert_eq!(status(side), Status::CU_STREAM_CAPTURE_STATUS_NONE);
        assert_eq!(word.load(), 0);
    });
}

#[test]
fn a_stream_may_be_joined_through_others_but_with_all_its_work() {
    in_child(&[], || {
        start();
        let (origin, side, further, word) = (stream(), stream(), stream(), Word::new());
        let wait = |to, from| {
            let event = event();
            ok!(cuEventRecord(event, from));
            ok!(cuStreamWaitEvent(to, event, 0));
        };
        begin(origin);
        wait(side, origin);
        wait(further, side);
        word.written_by(further, 1);
        wait(side, further);
        wait(origin, side);
        assert_eq!(end(origin).0, 0, "the origin waits for what waited");
        begin(origin);
        wait(side, origin);
        wait(origin, side);
        word.written_by(side, 1);
        assert_eq!(end(origin).0, 904, "there is work after the join");
        begin(origin);
        wait(side, origin);
        wait(further, side);
        wait(origin, side);
        word.written_by(further, 1);
        wait(side, further);
        assert_eq!(end(origin).0, 904, "the side stream waits for it, but after it was joined itself");
        begin(origin);
        wait(side, origin);
        assert_eq!(end(origin).0, 904, "nobody waits for the side stream, though it did nothing");
        ok!(cuStreamQuery(side));
    });
}
