//! Reads epoch after epoch into pinned memory.
//!
//! The reader is called where blocking is allowed, or inline: see `ahead.rs`. It is not used again
//! after an error or the end.

use super::epoch::{Epoch, Stop};
use super::loader::{Loader, Plan};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use warpline_runtime::{Error, ErrorKind, Pinned, Result};

/// Pinned memory for one batch.
pub(super) struct Host {
    pub(super) x: Pinned<f32>,
    pub(super) labels: Pinned<i64>,
}

impl Host {
    pub(super) fn features(&self) -> usize {
        self.x.len() / self.labels.len()
    }
}

/// A batch in pinned memory, whose first `rows` rows are filled.
pub(super) struct Read {
    pub(super) host: Host,
    pub(super) rows: usize,
    pub(super) index: u64,
    pub(super) epoch: u64,
}

/// One batch, or the end of the last epoch, with the time that reading took.
pub(super) struct Loaded {
    pub(super) batch: Option<Read>,
    pub(super) reading: Duration,
}

pub(super) struct Reader {
    plan: Arc<Plan>,
    /// The epochs after the current one.
    epochs: Range<u64>,
    epoch: Option<Epoch>,
    /// The epoch after the current one, or the error from reading it.
    ///
    /// Its shuffle buffer fills while the current epoch's buffer empties.
    next: Option<Result<Epoch>>,
    hosts: usize,
    /// The number of batches read from the current epoch.
    batches: u64,
}

impl Reader {
    pub(super) fn new(plan: Arc<Plan>, epochs: Range<u64>) -> Self {
        Reader { plan, epochs, epoch: None, next: None, hosts: 0, batches: 0 }
    }

    /// Returns whether every op of the device runs inside a poll.
    pub(super) fn runs_in_turns(&self) -> bool {
        self.plan.stream.device().runs_in_turns()
    }

    /// Returns new pinned memory, or `None` if there may be no more.
    ///
    /// The memory comes from the device's pool, to which earlier epochs have returned theirs.
    pub(super) fn new_host(&mut self) -> Result<Option<Host>> {
        if self.hosts > self.plan.loader.prefetch {
            return Ok(None);
        }
        let host = self.host()?;
        self.hosts += 1;
        Ok(Some(host))
    }

    /// Returns the number of quickly read batches to hand over together.
    ///
    /// With as many more in the consumer's hands and as many on their way back, the reader does not
    /// run out of memory.
    pub(super) fn group(&self) -> usize {
        (self.plan.loader.prefetch + 1) / 3
    }

    fn host(&self) -> Result<Host> {
        let (loader, device) = (&self.plan.loader, self.plan.stream.device());
        let x = device.blocking_pinned(loader.batch_size * loader.dataset.features())?;
        Ok(Host { x, labels: device.blocking_pinned(loader.batch_size)? })
    }

    /// Reads a batch into `host`. Ends early if `stop` returns `true`.
    pub(super) fn read(&mut self, mut host: Host, stop: impl Fn() -> bool) -> Result<Loaded> {
        let began = Instant::now();
        let plan = self.plan.clone();
        if host.labels.len() < plan.loader.batch_size {
            // The buffers were truncated for the shorter batch at an epoch's end. The pool has them
            // at full length.
            drop(host);
            host = self.host()?;
        }
        let mut span = plan.loading.span("read");
        let rows = self.fill(&mut host, &stop)?;
        span.set_bytes((rows * (host.features() * size_of::<f32>() + size_of::<i64>())) as u64);
        drop(span);
        let reading = began.elapsed();

        let batch = match &self.epoch {
            Some(epoch) if rows > 0 && !stop() => {
                self.batches += 1;
                Some(Read { host, rows, index: self.batches - 1, epoch: epoch.number })
            }
            _ => None,
        };
        Ok(Loaded { batch, reading })
    }

    /// Fills `host` from the current epoch or, if that has ended, from the next.
    ///
    /// Returns the number of rows, 0 if there are none.
    fn fill(&mut self, host: &mut Host, stop: Stop<'_>) -> Result<usize> {
        loop {
            let Some(number) = self.begin()? else { return Ok(0) };
            let rows = caught(number, self.batches, || self.fill_from_epoch(host, stop))?;
            if stop() {
                return Ok(0);
            }
            let loader = &self.plan.loader;
            if rows == loader.batch_size || (rows > 0 && !loader.drop_last) {
                return Ok(rows);
            }
            if self.batches == 0 {
                return Err(self.no_batch(number, rows));
            }
            self.epoch = None;
        }
    }

    /// Returns the number of the current epoch, and starts the next epoch if there is no current
    /// one.
    ///
    /// Returns `None` after the last epoch.
    fn begin(&mut self) -> Result<Option<u64>> {
        if self.epoch.is_none() {
            let Some(next) = self.next.take().or_else(|| self.open_next()) else { return Ok(None) };
            self.epoch = Some(next?);
            self.batches = 0;
        }
        Ok(self.epoch.as_ref().map(|epoch| epoch.number))
    }

    fn open_next(&mut self) -> Option<Result<Epoch>> {
        let number = self.epochs.next()?;
        Some(caught(number, 0, || Epoch::open(&self.plan.loader, number)))
    }

    fn fill_from_epoch(&mut self, host: &mut Host, stop: Stop<'_>) -> Result<usize> {
        let features = host.features();
        let mut rows = 0;
        for (x, label) in host.x.chunks_exact_mut(features).zip(host.labels.iter_mut()) {
            let Some(epoch) = &mut self.epoch else { break };
            let Some(next) = epoch.next_row(stop, x)? else { break };
            *label = next;
            rows += 1;
            if epoch.is_read() {
                self.read_ahead(stop);
            }
        }
        Ok(rows)
    }

    /// Reads one row of the next epoch.
    ///
    /// This is called for each row that the current epoch only has to draw, so reading continues at
    /// the same pace. An error or a panic is kept for the next epoch.
    fn read_ahead(&mut self, stop: Stop<'_>) {
        if self.next.is_none() {
            self.next = self.open_next();
        }
        if let Some(Ok(next)) = &mut self.next
            && let Err(error) = caught(next.number, 0, || next.read_ahead(stop))
        {
            self.next = Some(Err(error));
        }
    }

    #[cold]
    fn no_batch(&self, epoch: u64, rows: usize) -> Error {
        let Loader { dataset, batch_size, .. } = &self.plan.loader;
        Error::new(
            ErrorKind::Data,
            format!(
                "epoch {epoch} has no batch: {} has {rows} rows and batch_size is {batch_size}; \
                 lower batch_size, or keep the smaller last batch",
                dataset.name()
            ),
        )
    }
}

/// Returns the result of `read`, which calls the dataset for this batch.
///
/// A panic becomes an error that names the batch and the epoch.
fn caught<T>(epoch: u64, batch: u64, read: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|panic| {
        let why = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("with no message");
        Err(Error::new(
            ErrorKind::Data,
            format!("the dataset panicked at batch {batch} of epoch {epoch}: {why}; correct its reader"),
        ))
    })
}
