//! Keeps a reader ahead of the consumer: on tokio's blocking threads, or inline.
//!
//! *On threads*, where there is a tokio runtime at the first poll: a task asks a blocking thread to read into all the pinned
//! memory there is, waits for more to come back, and asks again. Nothing waits while it occupies a thread, so a runtime that
//! is shut down never hangs on a reader whose consumer has stopped asking.
//!
//! *Inline*, where there is none, or where the device's ops run in turns: each poll reads into what came back. The same batches in the
//! same order with the same tickets, and nothing but the schedule's seed decides what happens when.
//!
//! The channels have no bound of their own: as many things are in them as there are pinned buffers.
//!
//! # Who wakes whom
//! To wake the consumer costs tens of microseconds, as long as reading a small batch takes. So it leaves its waker only when it has
//! nothing to yield, and quick batches are handed over in groups. A group that has waited too long goes before the next row is
//! read: a batch waits for others, and for one row at most.

use super::reader::{Host, Loaded, Reader};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::spawn_blocking;
use warpline_runtime::Result;

/// So long a batch may be kept for others to come along, and one that took so long to read is not kept.
const WORTH_A_WAKE_UP: Duration = Duration::from_micros(500);

type Group = Vec<Result<Loaded>>;

pub(super) enum Ahead {
    Threads {
        filled: UnboundedReceiver<Group>,
        loaded: VecDeque<Result<Loaded>>,
        spares: UnboundedSender<Host>,
    },
    Inline {
        reader: Box<Reader>,
        spares: Vec<Host>,
        loaded: VecDeque<Result<Loaded>>,
        over: bool,
    },
}

impl Ahead {
    pub(super) fn start(reader: Reader) -> Self {
        match Handle::try_current() {
            Ok(tokio) if !reader.runs_in_turns() => {
                let (spares, returned) = unbounded_channel();
                let (fill, filled) = unbounded_channel();
                tokio.spawn(read_ahead(reader, returned, fill));
                Ahead::Threads { filled, loaded: VecDeque::new(), spares }
            }
            _ => Ahead::Inline {
                reader: Box::new(reader),
                spares: Vec::new(),
                loaded: VecDeque::new(),
                over: false,
            },
        }
    }

    /// Gives pinned memory back to be read into.
    pub(super) fn give_back(&mut self, host: Host) {
        match self {
            // A reader that has ended wants no more.
            Ahead::Threads { spares, .. } => drop(spares.send(host)),
            Ahead::Inline { spares, .. } => spares.push(host),
        }
    }

    /// The next batch, or the end. `None` if nobody reads any more, without an end. Pending for good if all pinned memory is
    /// elsewhere: who gives some back polls again.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Loaded>>> {
        match self {
            Ahead::Threads { filled, loaded, .. } => {
                if loaded.is_empty() {
                    loaded.extend(ready!(filled.poll_recv(cx)).into_iter().flatten());
                }
                Poll::Ready(loaded.pop_front())
            }
            Ahead::Inline { reader, spares, loaded, over } => {
                while !*over {
                    let read = match spares.pop().map_or_else(|| reader.new_host(), |host| Ok(Some(host))) {
                        Ok(Some(host)) => reader.read(host, || false),
                        Ok(None) => break,
                        Err(error) => Err(error),
                    };
                    *over = is_last(&read);
                    loaded.push_back(read);
                }
                loaded.pop_front().map_or(Poll::Pending, |read| Poll::Ready(Some(read)))
            }
        }
    }
}

fn is_last(read: &Result<Loaded>) -> bool {
    !matches!(read, Ok(Loaded { batch: Some(_), .. }))
}

async fn read_ahead(
    mut reader: Reader,
    mut spares: UnboundedReceiver<Host>,
    mut filled: UnboundedSender<Group>,
) {
    let mut spare = None;
    loop {
        let turn = spawn_blocking(move || {
            let more = fill_spares(&mut reader, spare, &mut spares, &filled);
            more.then_some((reader, spares, filled))
        });
        // An error: the runtime is shutting down.
        let Ok(Some(parts)) = turn.await else { return };
        (reader, spares, filled) = parts;
        spare = spares.recv().await;
        if spare.is_none() {
            return;
        }
    }
}

/// Reads into `spare`, into new memory, and into what has come back. Whether there is more to read.
fn fill_spares(
    reader: &mut Reader,
    mut spare: Option<Host>,
    spares: &mut UnboundedReceiver<Host>,
    filled: &UnboundedSender<Group>,
) -> bool {
    let kept = Kept { group: RefCell::default(), since: Cell::new(Instant::now()), filled };
    let stop = || {
        kept.hand_over_if(kept.is_old());
        filled.is_closed()
    };
    loop {
        let host = match spare.take() {
            Some(host) => Ok(Some(host)),
            None => reader.new_host().map(|host| host.or_else(|| spares.try_recv().ok())),
        };
        let read = match host {
            Ok(Some(host)) => reader.read(host, stop),
            Ok(None) => return kept.hand_over_if(true),
            Err(error) => Err(error),
        };
        let quick = matches!(&read, Ok(read) if read.reading < WORTH_A_WAKE_UP);
        let last = is_last(&read);
        if last {
            // All pinned memory is back in its pool before the consumer sees the end: the next epoch finds it there.
            spares.close();
            while spares.try_recv().is_ok() {}
        }
        let together = kept.push(read);
        if !kept.hand_over_if(last || !quick || together >= reader.group() || kept.is_old()) || last {
            return false;
        }
    }
}

/// Batches that were read and will be handed over together.
struct Kept<'a> {
    group: RefCell<Group>,
    /// When the first of them was there.
    since: Cell<Instant>,
    filled: &'a UnboundedSender<Group>,
}

impl Kept<'_> {
    /// How many there are with it.
    fn push(&self, read: Result<Loaded>) -> usize {
        let mut group = self.group.borrow_mut();
        if group.is_empty() {
            self.since.set(Instant::now());
        }
        group.push(read);
        group.len()
    }

    fn is_old(&self) -> bool {
        !self.group.borrow().is_empty() && self.since.get().elapsed() >= WORTH_A_WAKE_UP
    }

    /// `false`: nobody wants them any more.
    fn hand_over_if(&self, now: bool) -> bool {
        if !now {
            return true;
        }
        let group = self.group.take();
        group.is_empty() || self.filled.send(group).is_ok()
    }
}
