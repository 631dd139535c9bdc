//! Keeps a reader ahead of the consumer, on tokio's blocking threads or inline.
//!
//! *On a thread*, if there is a tokio runtime at the first poll: a task asks a blocking thread to
//! read into all available pinned memory, waits until more is returned, and asks again. Nothing
//! waits while it occupies a thread. So the shutdown of a runtime never hangs on a reader whose
//! consumer has stopped polling.
//!
//! *With workers*, if there is a tokio runtime and the loader has several workers: see
//! `workers.rs`.
//!
//! *Inline*, if there is no runtime, if the device's ops run in turns, or if the loader has no
//! workers: each poll reads into the memory that was returned. The consumer gets the same batches
//! in the same order with the same tickets. Only the schedule's seed decides when each step
//! happens.
//!
//! The channels are unbounded, but hold at most as many items as there are pinned buffers.
//!
//! # Wake-ups
//! Waking the consumer costs tens of microseconds, as long as reading a small batch takes. So the
//! consumer leaves its waker only when it has nothing to yield, and quickly read batches are handed
//! over in groups. A batch that took 500 µs is handed over immediately, and so is a group of that
//! age, before the next row is read. So a batch waits for other batches, but for at most one row.
//! For this reason a dataset must not wait for the consumer of its own loader.
//!
//! A group is a third of the pinned buffers: one third is being filled, one is with the consumer,
//! and one is on its way back. With all of them in a group, reading and computing would alternate,
//! because the reader would have no memory meanwhile. Handing over each batch immediately made
//! twice as many thread switches, and less of the time was saved.
// Decision: docs/decisions/0050-reader-never-waits-on-a-blocking-thread.md

use super::plan::{Plan, Source};
use super::reader::{Loaded, Reader};
use super::sample::Sample;
use super::supply::{Host, Supply};
use super::workers::Workers;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::spawn_blocking;
use warpline_runtime::Result;

/// The longest time that a batch is kept for others to join it.
///
/// A batch that took this long to read is not kept.
const WORTH_A_WAKE_UP: Duration = Duration::from_micros(500);

type Group<S> = Vec<Result<Loaded<S>>>;

pub(super) enum Ahead<S: Sample> {
    Thread {
        filled: UnboundedReceiver<Group<S>>,
        loaded: VecDeque<Result<Loaded<S>>>,
        spares: UnboundedSender<Host<S>>,
    },
    Inline {
        reader: Box<Reader<S>>,
        spares: Vec<Host<S>>,
        loaded: VecDeque<Result<Loaded<S>>>,
        over: bool,
    },
    Workers(Workers<S>),
}

impl<S: Sample> Ahead<S> {
    /// Starts to read into the supplies.
    pub(super) fn start(plan: &Arc<Plan<S>>, epochs: Range<u64>, supplies: Vec<Supply<S>>) -> Self {
        let reader = |supplies| Reader::new(plan.clone(), epochs.clone(), supplies);
        let inline = plan.workers == 0 || plan.stream.device().runs_in_turns();
        match (Handle::try_current(), &plan.source) {
            (Ok(tokio), Source::Indexed(indexed)) if !inline && plan.workers > 1 => {
                Ahead::Workers(Workers::start(plan, indexed, epochs, tokio, supplies))
            }
            (Ok(tokio), _) if !inline => {
                let (spares, returned) = unbounded_channel();
                let (fill, filled) = unbounded_channel();
                tokio.spawn(read_ahead(reader(supplies), returned, fill));
                Ahead::Thread { filled, loaded: VecDeque::new(), spares }
            }
            _ => Ahead::Inline {
                reader: Box::new(reader(supplies)),
                spares: Vec::new(),
                loaded: VecDeque::new(),
                over: false,
            },
        }
    }

    /// Returns pinned memory to the reader, which reads into it again.
    pub(super) fn give_back(&mut self, host: Host<S>) {
        match self {
            // If the reader has ended, the memory is dropped.
            Ahead::Thread { spares, .. } => drop(spares.send(host)),
            Ahead::Inline { spares, .. } => spares.push(host),
            Ahead::Workers(workers) => workers.give_back(host),
        }
    }

    /// Returns the next batch, or the end.
    ///
    /// Returns `None` if the reader is gone without having sent an end. If all pinned memory is in
    /// use elsewhere, nothing wakes the task: the caller polls again after it has returned some.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Loaded<S>>>> {
        match self {
            Ahead::Workers(workers) => workers.poll(cx),
            Ahead::Thread { filled, loaded, .. } => {
                if loaded.is_empty() {
                    loaded.extend(ready!(filled.poll_recv(cx)).into_iter().flatten());
                }
                Poll::Ready(loaded.pop_front())
            }
            Ahead::Inline { reader, spares, loaded, over } => {
                while !*over {
                    let spare = spares.pop().map(Supply::Memory);
                    let Some(supply) = spare.or_else(|| reader.next_supply()) else { break };
                    let read = reader.read(supply, || false);
                    *over = is_last(&read);
                    loaded.push_back(read);
                }
                loaded.pop_front().map_or(Poll::Pending, |read| Poll::Ready(Some(read)))
            }
        }
    }
}

fn is_last<S: Sample>(read: &Result<Loaded<S>>) -> bool {
    !matches!(read, Ok(Loaded { batch: Some(_), .. }))
}

async fn read_ahead<S: Sample>(
    mut reader: Reader<S>,
    mut spares: UnboundedReceiver<Host<S>>,
    mut filled: UnboundedSender<Group<S>>,
) {
    let mut spare = None;
    loop {
        let turn = spawn_blocking(move || {
            let more = fill_spares(&mut reader, spare, &mut spares, &filled);
            more.then_some((reader, spares, filled))
        });
        // An error means that the runtime is shutting down.
        let Ok(Some(parts)) = turn.await else { return };
        (reader, spares, filled) = parts;
        spare = spares.recv().await;
        if spare.is_none() {
            return;
        }
    }
}

/// Reads into `spare`, into new memory, and into returned memory. Returns whether there is more to
/// read.
fn fill_spares<S: Sample>(
    reader: &mut Reader<S>,
    mut spare: Option<Host<S>>,
    spares: &mut UnboundedReceiver<Host<S>>,
    filled: &UnboundedSender<Group<S>>,
) -> bool {
    let kept = Kept { group: RefCell::default(), since: Cell::new(Instant::now()), filled };
    let stop = || {
        kept.hand_over_if(kept.is_old());
        filled.is_closed()
    };
    loop {
        let spare = spare.take().map(Supply::Memory).or_else(|| reader.next_supply());
        let supply = spare.or_else(|| spares.try_recv().ok().map(Supply::Memory));
        let Some(supply) = supply else { return kept.hand_over_if(true) };
        let read = reader.read(supply, stop);
        let quick = matches!(&read, Ok(read) if read.reading < WORTH_A_WAKE_UP);
        let last = is_last(&read);
        if last {
            // All pinned memory is back in its pool before the consumer sees the end, so that the
            // next epoch finds it there.
            spares.close();
            while spares.try_recv().is_ok() {}
        }
        let together = kept.push(read);
        if !kept.hand_over_if(last || !quick || together >= reader.group() || kept.is_old()) || last {
            return false;
        }
    }
}

/// Batches that have been read and will be handed over together.
struct Kept<'a, S: Sample> {
    group: RefCell<Group<S>>,
    /// The time at which the first of them was ready.
    since: Cell<Instant>,
    filled: &'a UnboundedSender<Group<S>>,
}

impl<S: Sample> Kept<'_, S> {
    /// Adds a batch, and returns the number of batches kept.
    fn push(&self, read: Result<Loaded<S>>) -> usize {
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

    /// Hands the batches over if `now` is `true`. Returns `false` if the consumer is gone.
    fn hand_over_if(&self, now: bool) -> bool {
        if !now {
            return true;
        }
        let group = self.group.take();
        group.is_empty() || self.filled.send(group).is_ok()
    }
}
