//! Streams, events, words and host functions.

use crate::raw::*;
use crate::support::in_child;
use cudarc::driver::sys;
use std::ffi::c_void;

#[test]
fn a_wait_on_a_never_recorded_event_does_nothing() {
    in_child(&[], || {
        start();
        let (stream, event) = (stream(), event());
        ok!(cuStreamWaitEvent(stream, event, 0));
        ok!(cuEventQuery(event));
        ok!(cuEventSynchronize(event));
        ok!(cuStreamSynchronize(stream));
    });
}

#[test]
fn an_event_is_done_when_its_stream_got_there() {
    in_child(&[], || {
        start();
        let (stream, event) = (stream(), event());
        let gate = Gate::on(stream);
        ok!(cuEventRecord(event, stream));
        assert_eq!(cu!(cuEventQuery(event)), NOT_READY);
        assert_eq!(cu!(cuStreamQuery(stream)), NOT_READY);
        gate.open();
        ok!(cuEventSynchronize(event));
        ok!(cuEventQuery(event));
        ok!(cuStreamQuery(stream));
    });
}

#[test]
fn recording_again_moves_no_wait_that_was_issued() {
    in_child(&[], || {
        start();
        let (first, second, waiting) = (stream(), stream(), stream());
        let (event, word) = (event(), Word::new());
        let gate = Gate::on(first);
        ok!(cuEventRecord(event, first));
        ok!(cuStreamWaitEvent(waiting, event, 0));
        word.written_by(waiting, 7);
        let never = Gate::on(second);
        ok!(cuEventRecord(event, second));
        gate.open();
        ok!(cuStreamSynchronize(waiting));
        assert_eq!(word.load(), 7);
        assert_eq!(cu!(cuEventQuery(event)), NOT_READY, "the event stands for the second stream now");
        never.open();
        ok!(cuEventSynchronize(event));
    });
}

#[test]
fn a_destroyed_event_still_holds_who_waits_for_it() {
    in_child(&[], || {
        start();
        let (first, second, event, word) = (stream(), stream(), event(), Word::new());
        let gate = Gate::on(first);
        ok!(cuEventRecord(event, first));
        ok!(cuStreamWaitEvent(second, event, 0));
        word.written_by(second, 1);
        ok!(cuEventDestroy_v2(event));
        assert_eq!(cu!(cuStreamQuery(second)), NOT_READY);
        assert_eq!(word.load(), 0);
        gate.open();
        ok!(cuStreamSynchronize(second));
        assert_eq!(word.load(), 1);
    });
}

#[test]
fn order_passes_on_from_stream_to_stream() {
    in_child(&[], || {
        start();
        let streams: Vec<_> = (0..50).map(|_| stream()).collect();
        let words: Vec<_> = (0..50).map(|_| Word::new()).collect();
        let gate = Gate::on(streams[0]);
        for (place, stream) in streams.iter().enumerate() {
            words[place].written_by(*stream, 1);
            let event = event();
            ok!(cuEventRecord(event, *stream));
            if let Some(next) = streams.get(place + 1) {
                ok!(cuStreamWaitEvent(*next, event, 0));
            }
            ok!(cuEventDestroy_v2(event));
        }
        assert_eq!(cu!(cuStreamQuery(streams[49])), NOT_READY);
        gate.open();
        ok!(cuStreamSynchronize(streams[49]));
        assert!(words.iter().all(|word| word.load() == 1));
    });
}

#[test]
fn times_are_asked_of_events_that_have_them() {
    let said = in_child(&[], || {
        start();
        let (stream, start, end, untimed) = (stream(), event_with(0), event_with(0), event());
        let mut elapsed = -1.0;
        assert_eq!(cu!(cuEventElapsedTime(&mut elapsed, start, end)), INVALID_HANDLE, "never recorded");
        ok!(cuEventRecord(start, stream));
        let gate = Gate::on(stream);
        ok!(cuEventRecord(end, stream));
        ok!(cuEventRecord(untimed, stream));
        assert_eq!(cu!(cuEventElapsedTime(&mut elapsed, start, end)), NOT_READY);
        assert_eq!(cu!(cuEventElapsedTime(&mut elapsed, start, untimed)), INVALID_HANDLE);
        gate.open();
        ok!(cuEventSynchronize(end));
        ok!(cuEventElapsedTime(&mut elapsed, start, end));
        assert!(elapsed >= 0.0);
    });
    assert!(said.contains("an event was made without timing"), "{said}");
}

#[test]
fn ten_thousand_streams_need_few_threads() {
    in_child(&[], || {
        start();
        let (first, word) = (stream(), Word::new());
        let gate = Gate::on(first);
        let opened = event();
        ok!(cuEventRecord(opened, first));
        let streams: Vec<_> = (0..10_000).map(|_| stream()).collect();
        for stream in &streams {
            ok!(cuStreamWaitEvent(*stream, opened, 0));
            word.written_by(*stream, 1);
        }
        let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
        assert!(threads < 40, "{threads} threads");
        assert_eq!(word.load(), 0);
        gate.open();
        ok!(cuCtxSynchronize());
        assert_eq!(word.load(), 1);
        for stream in streams {
            ok!(cuStreamDestroy_v2(stream));
        }
    });
}

#[test]
fn many_gates_hold_no_worker() {
    in_child(&[], || {
        start();
        let gates: Vec<_> = (0..200).map(|_| Gate::on(stream())).collect();
        let (free, word) = (stream(), Word::new());
        word.written_by(free, 1);
        ok!(cuStreamSynchronize(free));
        assert_eq!(word.load(), 1);
        gates.iter().for_each(Gate::open);
        ok!(cuCtxSynchronize());
    });
}

#[test]
fn words_are_waited_for_as_they_compare() {
    in_child(&[], || {
        start();
        for (flags, held, wanted, opening) in [(0, 4, 5, 6), (1, 6, 5, 5), (2, 4, 3, 2)] {
            let (stream, word) = (stream(), Word::new());
            word.store(held);
            ok!(cuStreamWaitValue64_v2(stream, word.address(), wanted, flags));
            let after = Word::new();
            after.written_by(stream, 1);
            assert_eq!(cu!(cuStreamQuery(stream)), NOT_READY);
            word.store(opening);
            after.wait_for(1);
            ok!(cuStreamWaitValue32_v2(stream, word.address(), wanted as u32, flags));
            ok!(cuStreamWriteValue32_v2(stream, after.address() + 4, 3, 0));
            ok!(cuStreamSynchronize(stream));
            assert_eq!(after.load(), 3 << 32 | 1);
        }
    });
}

#[test]
fn words_must_be_aligned_and_in_memory_that_is_mapped() {
    in_child(&[], || {
        start();
        let (stream, word, own, device) = (stream(), Word::new(), 0u64, alloc(8));
        let write = |address| cu!(cuStreamWriteValue64_v2(stream, address, 1, 0));
        assert_eq!(write(word.address() + 4), INVALID_VALUE);
        assert_eq!(write(&raw const own as u64), INVALID_VALUE, "pageable");
        assert_eq!(write(device + 8), INVALID_VALUE, "past the end");
        assert_eq!(write(device), 0);
        ok!(cuStreamSynchronize(stream));
    });
}

extern "C" fn note(data: *mut c_void) {
    Word::at(data).store(cu!(cuCtxSynchronize()) as u64);
}

#[test]
fn a_host_function_runs_in_order_and_may_not_call_the_driver() {
    let said = in_child(&[], || {
        start();
        let (stream, word, after) = (stream(), Word::new(), Word::new());
        let gate = Gate::on(stream);
        ok!(cuLaunchHostFunc(stream, Some(note), word.host()));
        after.written_by(stream, 1);
        assert_eq!(word.load(), 0);
        gate.open();
        ok!(cuStreamSynchronize(stream));
        assert_eq!(word.load(), NOT_PERMITTED as u64);
        assert_eq!(after.load(), 1);
    });
    assert!(said.contains("called from a host function"), "{said}");
}

extern "C" fn block(data: *mut c_void) {
    Word::at(data).wait_for(1);
}

#[test]
fn a_host_function_that_blocks_holds_its_stream_only() {
    in_child(&[], || {
        start();
        let (word, other, done) = (Word::new(), stream(), Word::new());
        let held = stream();
        ok!(cuLaunchHostFunc(held, Some(block), word.host()));
        for value in 1..100 {
            done.written_by(other, value);
        }
        ok!(cuStreamSynchronize(other));
        assert_eq!(cu!(cuStreamQuery(held)), NOT_READY);
        word.store(1);
        ok!(cuStreamSynchronize(held));
    });
}

#[test]
fn the_null_stream_waits_for_blocking_streams_and_they_for_it() {
    in_child(&[], || {
        start();
        let mut blocking: sys::CUstream = std::ptr::null_mut();
        ok!(cuStreamCreate(&mut blocking, 0));
        let (null, free, word) = (std::ptr::null_mut(), stream(), Word::new());
        let gate = Gate::on(blocking);
        word.written_by(null, 1);
        word.written_by(free, 2);
        ok!(cuStreamSynchronize(free));
        assert_eq!(cu!(cuStreamQuery(null)), NOT_READY);
        gate.open();
        ok!(cuStreamSynchronize(null));
        assert_eq!(word.load(), 1);
        let gate = Gate::on(null);
        word.written_by(blocking, 3);
        assert_eq!(cu!(cuStreamQuery(blocking)), NOT_READY);
        gate.open();
        ok!(cuStreamSynchronize(blocking));
        assert_eq!(word.load(), 3);
    });
}

#[test]
fn waits_that_cross_between_threads_all_end() {
    in_child(&[], || {
        const THREADS: usize = 4;
        const ROUNDS: u64 = 2000;
        let context = start() as usize;
        let events: Vec<usize> = (0..THREADS).map(|_| event() as usize).collect();
        let events = &events;
        std::thread::scope(|scope| {
            for own in 0..THREADS {
                scope.spawn(move || {
                    ok!(cuCtxSetCurrent(context as sys::CUcontext));
                    let (streams, word) = ([stream(), stream()], Word::new());
                    for round in 1..=ROUNDS {
                        let stream = streams[round as usize % 2];
                        let other = events[(own + round as usize) % THREADS];
                        ok!(cuStreamWaitEvent(stream, events[own] as sys::CUevent, 0));
                        ok!(cuStreamWaitEvent(stream, other as sys::CUevent, 0));
                        word.written_by(stream, round);
                        ok!(cuEventRecord(events[own] as sys::CUevent, stream));
                    }
                    ok!(cuEventSynchronize(events[own] as sys::CUevent));
                    assert_eq!(word.load(), ROUNDS, "each round waits for the one before");
                });
            }
        });
    });
}

#[test]
fn a_destroyed_stream_runs_what_it_has() {
    in_child(&[], || {
        start();
        let (stream, word) = (stream(), Word::new());
        let gate = Gate::on(stream);
        word.written_by(stream, 1);
        ok!(cuStreamDestroy_v2(stream));
        gate.open();
        word.wait_for(1);
    });
}

#[test]
fn threads_that_submit_at_once_keep_each_stream_in_order() {
    in_child(&[], || {
        let context = start() as usize;
        let (x, n) = (upload(&[0.0; 4]), 4);
        assert_eq!(crate::twins::register("add", &crate::twins::ADD_PARAMS, 0, crate::twins::add), 0);
        let add = function(crate::twins::ADD, "add").unwrap() as usize;
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(move || {
                    ok!(cuCtxSetCurrent(context as sys::CUcontext));
                    let (stream, y, word) = (stream(), upload(&[0.0; 4]), Word::new());
                    for round in 1..=500 {
                        assert_eq!(launch_add(add as sys::CUfunction, stream, y, 1.0, n), 0);
                        word.written_by(stream, round);
                    }
                    word.wait_for(500);
                    assert_eq!(floats::<4>(y), [500.0; 4]);
                });
            }
        });
        assert_eq!(floats::<4>(x), [0.0; 4]);
    });
}
