//! A stream that is closed during a hand-over gets its last marker, and each stream that follows
//! one of its events gets its own work.

use crate::backlog::{After, Staging};
use crate::coming::{Coming, Follower};
use crate::core::StreamCore;
use crate::driver::Call::{Record, Signal, Submit};
use crate::driver::{Command, Copy, CopyKind, DeviceId, Point};
use crate::memory::HostEnd;
use crate::sync::{Arc, AtomicU64, Ordering};
use loom::thread;

/// Enqueues a copy whose memory does not exist yet.
fn copy_later(stream: &StreamCore) -> Arc<Staging> {
    let memory = Arc::new(Staging::default());
    let mut state = stream.state.lock();
    stream.hold_back(&mut state, After::Memory(memory.clone()));
    let copy = Copy { kind: CopyKind::HostToDevice, src: 0, dst: 1 };
    stream.submit(&mut state, Command::Copy(copy));
    memory
}

/// Records an event behind the backlog.
fn record(stream: &StreamCore) -> Arc<Coming> {
    let mut state = stream.state.lock();
    state.backlog.as_mut().expect("a copy is held back").record().expect("it is not abandoned")
}

/// Stands in for the thread `warpline-pin`: makes the memory, and hands the stream over.
fn pinning(stream: &Arc<StreamCore>, memory: Arc<Staging>) -> thread::JoinHandle<()> {
    let stream = stream.clone();
    thread::spawn(move || {
        memory.set(Ok(HostEnd));
        stream.hand_over();
    })
}

/// A stream that counts how often it is handed over as a follower.
struct Counted {
    stream: Arc<StreamCore>,
    times: AtomicU64,
}

impl Follower for Counted {
    fn device(&self) -> DeviceId {
        "cuda:0"
    }

    fn hand_over_what_is_ready(&self) -> Vec<std::sync::Arc<dyn Follower>> {
        self.times.fetch_add(1, Ordering::AcqRel);
        self.stream.hand_over();
        Vec::new()
    }
}

#[test]
fn a_stream_closed_during_hand_overs_gets_its_marker_behind_all_of_them() {
    loom::model(|| {
        let stream = StreamCore::new();
        let first = copy_later(&stream);
        record(&stream);
        let second = copy_later(&stream);
        let [first, second] = [first, second].map(|memory| pinning(&stream, memory));
        stream.close();
        first.join().unwrap();
        second.join().unwrap();
        assert_eq!(stream.calls.all(), [Submit(1), Record, Submit(2), Signal(2)]);
    });
}

#[test]
fn a_follower_sees_the_event_or_is_handed_over_once() {
    loom::model(|| {
        let (stream, follower) = (StreamCore::new(), StreamCore::new());
        let counted = std::sync::Arc::new(Counted { stream: follower.clone(), times: AtomicU64::new(0) });
        let memory = copy_later(&stream);
        let coming = record(&stream);
        let pinning = pinning(&stream, memory);
        let closing = thread::spawn({
            let stream = stream.clone();
            move || stream.close()
        });
        let mut state = follower.state.lock();
        let seen = coming.or_follow(|| Some(counted.clone()));
        let event = seen.clone().and_then(|event| event.expect("it was recorded"));
        if seen.is_none() {
            follower.hold_back(&mut state, After::Event(coming));
        }
        let timeline = stream.progress.timeline.clone();
        follower.submit(&mut state, Command::Wait(Point { timeline, ticket: 1, event }));
        drop(state);
        follower.close();
        pinning.join().unwrap();
        closing.join().unwrap();
        assert_eq!(counted.times.load(Ordering::Acquire), u64::from(seen.is_none()));
        assert_eq!(follower.calls.all(), [Submit(1), Signal(1)]);
        assert_eq!(stream.calls.all(), [Submit(1), Record, Signal(1)]);
    });
}
