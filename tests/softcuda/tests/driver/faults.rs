//! Planned faults, and what still works in a lost context.

use crate::raw::*;
use crate::support::in_child;
use crate::twins::{ADD, ADD_PARAMS, add, calls, register, reset_counts};

#[test]
fn a_poisoned_launch_freezes_the_words() {
    let said = in_child(&[("SOFTCUDA_POISON_LAUNCH", "2")], || {
        start();
        assert_eq!(register("add", &ADD_PARAMS, 0, add), 0);
        let (kernel, stream, word, x) =
            (function(ADD, "add").unwrap(), stream(), Word::new(), upload(&[0.0]));
        let (other, other_word) = (crate::raw::stream(), Word::new());
        let gate = Gate::on(stream);
        let after = event();
        for round in 1..=3 {
            assert_eq!(launch_add(kernel, stream, x, 1.0, 1), 0);
            word.written_by(stream, round);
        }
        ok!(cuEventRecord(after, stream));
        ok!(cuStreamWaitEvent(other, after, 0));
        other_word.written_by(other, 1);
        gate.open();
        assert_eq!(cu!(cuStreamSynchronize(stream)), ILLEGAL_ADDRESS);
        assert_eq!(word.load(), 1);
        assert_eq!(other_word.load(), 0);
        assert_eq!(cu!(cuStreamQuery(other)), ILLEGAL_ADDRESS);
        assert_eq!(cu!(cuEventQuery(after)), ILLEGAL_ADDRESS);
        let mut address = 0;
        assert_eq!(cu!(cuMemAlloc_v2(&mut address, 8)), ILLEGAL_ADDRESS);
        assert_eq!(cu!(cuMemFree_v2(x)), ILLEGAL_ADDRESS);
        let mut count = 0;
        ok!(cuDeviceGetCount(&mut count));
    });
    assert!(said.contains("device 0: CUDA_ERROR_ILLEGAL_ADDRESS: kernel add fails as planned"), "{said}");
}

#[test]
fn a_host_that_waits_is_told_of_the_fault() {
    in_child(&[("SOFTCUDA_POISON_LAUNCH", "1:719")], || {
        let context = start() as usize;
        assert_eq!(register("add", &ADD_PARAMS, 0, add), 0);
        let (kernel, faulty, held, x) =
            (function(ADD, "add").unwrap(), stream(), stream() as usize, upload(&[0.0]));
        let _never = Gate::on(held as _);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(move || {
                ok!(cuCtxSetCurrent(context as _));
                cu!(cuStreamSynchronize(held as _))
            });
            assert_eq!(launch_add(kernel, faulty, x, 1.0, 1), 0);
            assert_eq!(waiting.join().unwrap(), LAUNCH_FAILED);
        });
    });
}

#[test]
fn a_lost_write_stores_nothing_and_the_stream_goes_on() {
    in_child(&[("SOFTCUDA_LOSE_WRITE", "2")], || {
        start();
        let (stream, words) = (stream(), [Word::new(), Word::new(), Word::new()]);
        for word in words {
            word.written_by(stream, 1);
        }
        ok!(cuStreamSynchronize(stream));
        assert_eq!(words.map(Word::load), [1, 0, 1]);
    });
}

#[test]
fn the_nth_call_fails_as_planned() {
    let said = in_child(&[("SOFTCUDA_FAIL", "cuStreamCreate:2:999,cuEventCreate:1:2:sticky")], || {
        start();
        let first = stream();
        let mut second = std::ptr::null_mut();
        assert_eq!(cu!(cuStreamCreate(&mut second, 1)), 999);
        assert!(second.is_null());
        ok!(cuStreamCreate(&mut second, 1));
        ok!(cuStreamSynchronize(first));
        let mut event = std::ptr::null_mut();
        assert_eq!(cu!(cuEventCreate(&mut event, 0)), OUT_OF_MEMORY);
        assert_eq!(cu!(cuStreamSynchronize(first)), OUT_OF_MEMORY, "sticky");
    });
    assert!(said.contains("cuStreamCreate fails as planned, at call 2"), "{said}");
}

#[test]
fn without_stream_memory_operations_they_are_refused() {
    in_child(&[("SOFTCUDA_NO_MEMOPS", "1")], || {
        start();
        let (stream, word) = (stream(), Word::new());
        assert_eq!(cu!(cuStreamWriteValue64_v2(stream, word.address(), 1, 0)), NOT_SUPPORTED);
        assert_eq!(cu!(cuStreamWaitValue64_v2(stream, word.address(), 1, 0)), NOT_SUPPORTED);
        ok!(cuStreamSynchronize(stream));
    });
}

#[test]
fn calls_are_counted_over_all_threads_and_printed_at_exit() {
    let said = in_child(&[("SOFTCUDA_COUNTS", "1")], || {
        let context = start() as usize;
        reset_counts();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(move || {
                    ok!(cuCtxSetCurrent(context as _));
                    stream();
                });
            }
        });
        assert_eq!(calls("cuStreamCreate"), 3);
        assert_eq!(calls("cuCtxSetCurrent"), 3);
        assert_eq!(calls("cuInit"), 0);
        assert_eq!(calls("cuNothing"), u64::MAX);
    });
    assert!(said.contains("cuStreamCreate 3\n") && !said.contains("cuInit"), "{said}");
}
