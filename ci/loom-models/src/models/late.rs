//! Each late refusal reaches its `Pending`, or is returned once for the stream to report, and
//! nothing is kept in the end.

use crate::Error;
use crate::late::Late;
use crate::sync::{Arc, AtomicU64, Ordering};
use loom::thread;

/// A stream with two ops in its backlog: the first is refused at its hand-over, the second is not.
#[derive(Default)]
struct Stream {
    late: Late,
    reached: AtomicU64,
}

impl Stream {
    /// Hands the backlog over. Returns the refusal if the stream has to report it.
    fn hand_over(&self) -> Option<Error> {
        let unseen = self.late.refuse(1, Error);
        self.reached.store(2, Ordering::Release);
        self.late.ends();
        unseen
    }

    fn is_reached(&self, ticket: u64) -> bool {
        self.reached.load(Ordering::Acquire) >= ticket
    }

    /// Drops the `Pending` of a ticket. Returns the refusal if the stream has to report it.
    fn drop_pending(&self, ticket: u64) -> Option<Error> {
        self.late.drop_pending(ticket, || self.is_reached(ticket))
    }
}

/// Returns a stream with its ops in the backlog, as the calls that return the `Pending`s leave it.
fn stream() -> Arc<Stream> {
    let stream = Arc::new(Stream::default());
    stream.late.begins();
    stream
}

fn handing_over(stream: &Arc<Stream>) -> thread::JoinHandle<Option<Error>> {
    let stream = stream.clone();
    thread::spawn(move || stream.hand_over())
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_refusal_whose_pending_is_dropped_is_reported_once_and_nothing_stays() {
    loom::model(|| {
        let stream = stream();
        let hand_over = handing_over(&stream);
        assert!(stream.drop_pending(2).is_none(), "this op was not refused");
        let told = [stream.drop_pending(1), hand_over.join().unwrap()];
        assert_eq!(told.iter().flatten().count(), 1, "lost, or reported twice");
        assert!(stream.late.is_empty(), "something is kept for nobody");
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_pending_that_is_polled_past_its_ticket_fails() {
    loom::model(|| {
        let stream = stream();
        let hand_over = handing_over(&stream);
        if stream.is_reached(1) {
            assert!(stream.late.refusal(1).is_some(), "it resolved without its error");
            assert!(stream.late.refusal(2).is_none());
        }
        let told = [stream.drop_pending(1), stream.drop_pending(2), hand_over.join().unwrap()];
        assert_eq!(told.iter().flatten().count(), 1, "the stream looks whether the error was seen");
        assert!(stream.late.is_empty());
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_pending_that_is_dropped_while_the_next_backlog_begins_leaves_nothing() {
    loom::model(|| {
        let stream = stream();
        let next = thread::spawn({
            let stream = stream.clone();
            move || {
                let unseen = stream.hand_over();
                stream.late.begins();
                stream.late.ends();
                unseen
            }
        });
        let told = [stream.drop_pending(1), stream.drop_pending(2), next.join().unwrap()];
        assert_eq!(told.iter().flatten().count(), 1, "lost, or reported twice");
        assert!(stream.late.is_empty(), "something is kept for nobody");
    });
}
