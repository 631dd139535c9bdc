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
//! Every batch is handed over at once: a reader that blocks in the next row keeps none from the consumer. But to be woken costs tens
//! of microseconds, as long as reading a small batch takes. So the consumer leaves its waker only when it has nothing to yield,
//! and each of its polls takes all that is there.

use super::reader::{Host, Loaded, Reader};
use std::collections::VecDeque;
use std::task::{Context, Poll};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::spawn_blocking;
use warpline_runtime::Result;

pub(super) enum Ahead {
    Threads { filled: UnboundedReceiver<Result<Loaded>>, spares: UnboundedSender<Host> },
    Inline { reader: Box<Reader>, spares: Vec<Host>, loaded: VecDeque<Result<Loaded>>, over: bool },
}

impl Ahead {
    pub(super) fn start(reader: Reader) -> Self {
        match Handle::try_current() {
            Ok(tokio) if !reader.runs_in_turns() => {
                let (spares, returned) = unbounded_channel();
                let (fill, filled) = unbounded_channel();
                tokio.spawn(read_ahead(reader, returned, fill));
                Ahead::Threads { filled, spares }
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
            Ahead::Threads { filled, .. } => filled.poll_recv(cx),
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
    mut filled: UnboundedSender<Result<Loaded>>,
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
    filled: &UnboundedSender<Result<Loaded>>,
) -> bool {
    loop {
        let host = match spare.take() {
            Some(host) => Ok(Some(host)),
            None => reader.new_host().map(|host| host.or_else(|| spares.try_recv().ok())),
        };
        let read = match host {
            Ok(Some(host)) => reader.read(host, || filled.is_closed()),
            Ok(None) => return true,
            Err(error) => Err(error),
        };
        let last = is_last(&read);
        if last {
            // All pinned memory is back in its pool before the consumer sees the end: the next epoch finds it there.
            spares.close();
            while spares.try_recv().is_ok() {}
        }
        if filled.send(read).is_err() || last {
            return false;
        }
    }
}
