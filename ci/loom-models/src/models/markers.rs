//! An awaited ticket gets a marker of its own, whatever other threads enqueue.

use crate::core::StreamCore;
use crate::driver::Call::{Signal, Submit};
use crate::sync::{Arc, AtomicBool, Ordering};
use loom::thread;

/// Returns a stream with ticket 1, which is awaited.
fn stream() -> Arc<StreamCore> {
    let stream = StreamCore::new();
    stream.enqueue();
    stream
}

/// Starts a thread that calls `f` with the stream.
fn beside(stream: &Arc<StreamCore>, f: impl FnOnce(&StreamCore) + Send + 'static) -> thread::JoinHandle<()> {
    let stream = stream.clone();
    thread::spawn(move || f(&stream))
}

#[test]
fn an_awaited_ticket_gets_its_own_marker_before_the_next_op() {
    loom::model(|| {
        let stream = stream();
        let owner = beside(&stream, |it| it.want_marker(1));
        stream.enqueue();
        owner.join().unwrap();
        assert_eq!(stream.calls.all(), [Submit(1), Signal(1), Submit(2)]);
    });
}

#[test]
fn a_ticket_that_was_passed_on_needs_no_marker() {
    loom::model(|| {
        let (stream, noted) = (stream(), Arc::new(AtomicBool::new(false)));
        let owner = beside(&stream, {
            let noted = noted.clone();
            move |it| {
                it.progress.note_passed_on(1);
                noted.store(true, Ordering::Release);
            }
        });
        let is_noted = noted.load(Ordering::Acquire);
        stream.enqueue();
        owner.join().unwrap();
        match stream.calls.all()[..] {
            [Submit(1), Submit(2)] => {}
            [Submit(1), Signal(1), Submit(2)] => assert!(!is_noted, "an unneeded marker"),
            ref other => panic!("{other:?}"),
        }
    });
}

#[test]
fn passing_an_older_ticket_on_leaves_the_newest_its_marker() {
    loom::model(|| {
        let stream = stream();
        let owner = beside(&stream, |it| it.progress.note_passed_on(1));
        stream.enqueue();
        stream.enqueue();
        owner.join().unwrap();
        let calls = stream.calls.all();
        assert!(calls.ends_with(&[Submit(2), Signal(2), Submit(3)]), "{calls:?}");
    });
}

#[test]
fn two_threads_that_enqueue_leave_each_ticket_its_marker() {
    loom::model(|| {
        let stream = StreamCore::new();
        let other = beside(&stream, |it| _ = it.enqueue());
        stream.enqueue();
        stream.enqueue();
        other.join().unwrap();
        let calls = [Submit(1), Signal(1), Submit(2), Signal(2), Submit(3)];
        assert_eq!(stream.calls.all(), calls, "a task waits for later work");
    });
}

#[test]
fn two_tasks_that_poll_while_other_threads_hold_the_lock_get_their_markers() {
    loom::model(|| {
        let stream = stream();
        let owner = beside(&stream, |it| it.want_marker(1));
        let holder = beside(&stream, |it| drop(it.state.lock()));
        stream.enqueue();
        stream.want_marker(2);
        owner.join().unwrap();
        holder.join().unwrap();
        assert_eq!(stream.calls.all(), [Submit(1), Signal(1), Submit(2), Signal(2)]);
    });
}
