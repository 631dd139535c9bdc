//! `SOFTCUDA_DEPTH=n`: streams that take a limited amount of work.

use crate::raw::*;
use crate::support::in_child;
use crate::twins::calls;
use std::sync::atomic::{AtomicBool, Ordering};

const DEPTH: (&str, &str) = ("SOFTCUDA_DEPTH", "4");

/// A stream, a context or an event, as a number that other threads may use.
#[derive(Clone, Copy)]
struct Handle(usize);

impl Handle {
    fn of<T>(handle: *mut T) -> Self {
        Handle(handle as usize)
    }

    fn get<T>(self) -> *mut T {
        self.0 as *mut T
    }
}

/// Fills the stream to its depth, behind a gate.
fn full(stream: cudarc::driver::sys::CUstream, word: Word) -> Gate {
    let gate = Gate::on(stream);
    (1..4).for_each(|value| word.written_by(stream, value));
    gate
}

#[test]
fn what_finds_a_stream_full_waits_for_room_and_holds_up_no_other_call() {
    in_child(&[DEPTH], || {
        let context = Handle::of(start());
        let (held, other, timed) = (stream(), stream(), event_with(0));
        let (word, elsewhere) = (Word::new(), Word::new());
        let gate = full(held, word);
        let entered = [AtomicBool::new(false), AtomicBool::new(false)];
        let (stream, event) = (Handle::of(held), Handle::of(timed));
        let before = [calls("cuStreamWriteValue64_v2"), calls("cuEventRecord")];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                ok!(cuCtxSetCurrent(context.get()));
                word.written_by(stream.get(), 4);
                entered[0].store(true, Ordering::SeqCst);
            });
            scope.spawn(|| {
                ok!(cuCtxSetCurrent(context.get()));
                ok!(cuEventRecord(event.get(), stream.get()));
                entered[1].store(true, Ordering::SeqCst);
            });
            while calls("cuStreamWriteValue64_v2") == before[0] || calls("cuEventRecord") == before[1] {
                std::thread::yield_now();
            }
            for value in 1..100 {
                elsewhere.written_by(other, value);
                assert_eq!(cu!(cuStreamQuery(held)), NOT_READY);
            }
            ok!(cuStreamSynchronize(other));
            assert!(entered.iter().all(|entered| !entered.load(Ordering::SeqCst)), "there is no room yet");
            assert_eq!(word.load(), 0);
            gate.open();
        });
        ok!(cuStreamSynchronize(held));
        ok!(cuEventQuery(timed));
        assert_eq!(word.load(), 4);
    });
}

#[test]
fn where_calls_come_one_at_a_time_the_others_of_that_context_wait_too() {
    in_child(&[DEPTH, ("SOFTCUDA_ONE_AT_A_TIME", "1"), ("SOFTCUDA_DEVICES", "2")], || {
        let context = Handle::of(start());
        let (held, other, word) = (stream(), stream(), Word::new());
        let gate = full(held, word);
        let opened = AtomicBool::new(false);
        let (full, idle) = (Handle::of(held), Handle::of(other));
        std::thread::scope(|scope| {
            let before = calls("cuStreamWriteValue64_v2");
            scope.spawn(|| {
                ok!(cuCtxSetCurrent(context.get()));
                word.written_by(full.get(), 4);
            });
            while calls("cuStreamWriteValue64_v2") == before {
                std::thread::yield_now();
            }
            scope.spawn(|| {
                ok!(cuCtxSetCurrent(context.get()));
                while !opened.load(Ordering::SeqCst) {
                    ok!(cuStreamQuery(idle.get()));
                }
            });
            // Waits until a query blocks behind the call that waits for room. Otherwise the queries
            // would continue.
            let (mut asked, mut unchanged) = (0, 0);
            while unchanged < 1000 {
                let now = calls("cuStreamQuery");
                unchanged = if now > 0 && now == asked { unchanged + 1 } else { 0 };
                asked = now;
                std::thread::yield_now();
            }
            // Calls in another context take another lock, and waits for the device take none.
            start_on(1);
            let (next, there) = (stream(), Word::new());
            there.written_by(next, 1);
            ok!(cuStreamSynchronize(next));
            ok!(cuCtxSetCurrent(context.get()));
            ok!(cuStreamSynchronize(other));
            opened.store(true, Ordering::SeqCst);
            gate.open();
        });
        ok!(cuStreamSynchronize(held));
        assert_eq!(word.load(), 4);
    });
}

#[test]
fn a_fault_ends_the_wait_for_room() {
    in_child(&[DEPTH, ("SOFTCUDA_FAIL", "cuStreamQuery:1:700:sticky")], || {
        let context = Handle::of(start());
        let (held, word) = (stream(), Word::new());
        let gate = full(held, word);
        let stream = Handle::of(held);
        let before = calls("cuStreamWriteValue64_v2");
        std::thread::scope(|scope| {
            let refused = scope.spawn(|| {
                ok!(cuCtxSetCurrent(context.get()));
                cu!(cuStreamWriteValue64_v2(stream.get(), word.address(), 4, 0))
            });
            while calls("cuStreamWriteValue64_v2") == before {
                std::thread::yield_now();
            }
            assert_eq!(cu!(cuStreamQuery(held)), ILLEGAL_ADDRESS);
            assert_eq!(refused.join().unwrap(), ILLEGAL_ADDRESS);
        });
        gate.open();
    });
}
