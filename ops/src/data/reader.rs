//! Reads epoch after epoch into pinned memory.
//!
//! Called wherever blocking is allowed, or inline; see `ahead.rs`. It is not used again after an error or the end.

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

/// One batch, or the end of the last epoch, and how long reading it took.
pub(super) struct Loaded {
    pub(super) batch: Option<Read>,
    pub(super) reading: Duration,
}

pub(super) struct Reader {
    plan: Arc<Plan>,
    /// Those that come after the present one.
    epochs: Range<u64>,
    epoch: Option<Epoch>,
    /// The epoch after it, whose shuffle buffer fills while that of the present one runs empty; or why it could not be read.
    next: Option<Result<Epoch>>,
    hosts: usize,
    /// Of the present epoch.
    batches: u64,
}

impl Reader {
    pub(super) fn new(plan: Arc<Plan>, epochs: Range<u64>) -> Self {
        Reader { plan, epochs, epoch: None, next: None, hosts: 0, batches: 0 }
    }

    /// Whether every op runs in somebody's poll.
    pub(super) fn runs_in_turns(&self) -> bool {
        self.plan.stream.device().runs_in_turns()
    }

    /// New pinned memory, as long as there may be more. It comes from the device's pool, where other epochs left theirs.
    pub(super) fn new_host(&mut self) -> Result<Option<Host>> {
        if self.hosts > self.plan.loader.prefetch {
            return Ok(None);
        }
        let host = self.host()?;
        self.hosts += 1;
        Ok(Some(host))
    }

    /// How many quick batches to hand over at once: with as many more in the consumer's hands and as many on their way back, the
    /// reader does not run out of memory.
    pub(super) fn group(&self) -> usize {
        (self.plan.loader.prefetch + 1) / 3
    }

    fn host(&self) -> Result<Host> {
        let (loader, device) = (&self.plan.loader, self.plan.stream.device());
        let x = device.pinned_blocking(loader.batch_size * loader.dataset.features())?;
        Ok(Host { x, labels: device.pinned_blocking(loader.batch_size)? })
    }

    /// Reads a batch into `host`. Ends early if `stop` says so.
    pub(super) fn read(&mut self, mut host: Host, stop: impl Fn() -> bool) -> Result<Loaded> {
        let began = Instant::now();
        let plan = self.plan.clone();
        if host.labels.len() < plan.loader.batch_size {
            // It comes back from the shorter batch at an epoch's end: the pool has it whole.
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

    /// Fills `host` from the present epoch or, where that is over, from the next. How many rows; 0 if there is none.
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

    /// The number of the present epoch or, where there is none, of the next, with which it goes on; `None` if that was the last.
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

    /// One row of the next epoch for each that the present one only has to draw: reading goes on at the same pace. Whatever goes
    /// wrong, a panic as well, waits for that epoch.
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
                "epoch {epoch} has no batch: {} has {rows} rows and batch_size is {batch_size}; lower batch_size, or keep the \
                 last batch",
                dataset.name()
            ),
        )
    }
}

/// What `read` gives, which calls the dataset for this batch; a panic is an error that says where.
fn caught<T>(epoch: u64, batch: u64, read: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|panic| {
        let why = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("with no message");
        Err(Error::new(
            ErrorKind::Data,
            format!("the dataset panicked at batch {batch} of epoch {epoch}: {why}; mend its reader"),
        ))
    })
}
