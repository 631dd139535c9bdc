//! Reads one epoch: rows, shuffled, into pinned memory, and from there onto the copy stream.
//!
//! Called wherever blocking is allowed, or inline; see `ahead.rs`. It is not used again after an error or the end.

use super::batch::{Batch, Sent, send};
use super::dataset::Rows;
use super::loader::Plan;
use super::shuffle::Shuffle;
use std::any::Any;
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

/// One batch on its way, or the end of the epoch, and how long reading it took.
pub(super) struct Loaded {
    pub(super) batch: Option<(Batch, Sent)>,
    pub(super) reading: Duration,
}

pub(super) struct Reader {
    plan: Arc<Plan>,
    epoch: u64,
    source: Option<(Box<dyn Rows>, Option<Shuffle>)>,
    /// Whether the source has ended. It is not asked again.
    ended: bool,
    hosts: usize,
    batches: u64,
}

impl Reader {
    pub(super) fn new(plan: Arc<Plan>, epoch: u64) -> Self {
        Reader { plan, epoch, source: None, ended: false, hosts: 0, batches: 0 }
    }

    /// Whether every op runs in somebody's poll.
    pub(super) fn runs_in_turns(&self) -> bool {
        self.plan.stream.device().runs_in_turns()
    }

    /// New pinned memory, as long as there may be more. It comes from the device's pool, where other epochs left theirs.
    pub(super) fn new_host(&mut self) -> Result<Option<Host>> {
        let loader = &self.plan.loader;
        if self.hosts > loader.prefetch {
            return Ok(None);
        }
        let device = self.plan.stream.device();
        let x = device.pinned_blocking(loader.batch_size * loader.dataset.features())?;
        let labels = device.pinned_blocking(loader.batch_size)?;
        self.hosts += 1;
        Ok(Some(Host { x, labels }))
    }

    /// Reads a batch into `host` and enqueues its copies. Ends early if `stop` says so.
    pub(super) fn read(&mut self, mut host: Host, stop: impl Fn() -> bool) -> Result<Loaded> {
        let began = Instant::now();
        let plan = self.plan.clone();
        let mut span = plan.loading.span("read");
        let rows = catch_unwind(AssertUnwindSafe(|| self.fill(&mut host, &stop)));
        let rows = rows.unwrap_or_else(|panic| Err(self.panicked(&*panic)))?;
        span.set_bytes((rows * (host.features() * size_of::<f32>() + size_of::<i64>())) as u64);
        drop(span);
        let reading = began.elapsed();

        if stop() {
            return Ok(Loaded { batch: None, reading });
        }
        let loader = &plan.loader;
        if rows == 0 || (rows < loader.batch_size && loader.drop_last) {
            if self.batches == 0 {
                return Err(self.no_batch(rows));
            }
            return Ok(Loaded { batch: None, reading });
        }
        let sent = send(&plan.stream, host, rows, self.batches, self.epoch)?;
        self.batches += 1;
        Ok(Loaded { batch: Some(sent), reading })
    }

    /// How many rows there were.
    fn fill(&mut self, host: &mut Host, stop: &dyn Fn() -> bool) -> Result<usize> {
        if self.ended {
            return Ok(0);
        }
        let loader = &self.plan.loader;
        let features = loader.dataset.features();
        if self.source.is_none() {
            let shuffle =
                loader.seed.map(|seed| Shuffle::new(loader.shuffle_capacity, features, seed, self.epoch));
            self.source = Some((loader.dataset.open()?, shuffle));
        }
        let (source, shuffle) = self.source.as_mut().expect("it was opened above");
        let mut read = |x: &mut [f32]| if stop() { Ok(None) } else { source.next_row(x) };
        let mut rows = 0;
        for (x, label) in host.x.chunks_exact_mut(features).zip(host.labels.iter_mut()) {
            let next = match shuffle {
                Some(shuffle) => shuffle.next_row(&mut read, x)?,
                None => read(x)?,
            };
            let Some(next) = next else {
                self.ended = true;
                break;
            };
            *label = next;
            rows += 1;
        }
        Ok(rows)
    }

    #[cold]
    fn panicked(&self, panic: &(dyn Any + Send)) -> Error {
        let why = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("with no message");
        Error::new(
            ErrorKind::Data,
            format!(
                "the dataset panicked at batch {} of epoch {}: {why}; mend its reader",
                self.batches, self.epoch
            ),
        )
    }

    #[cold]
    fn no_batch(&self, rows: usize) -> Error {
        Error::new(
            ErrorKind::Data,
            format!(
                "epoch {} has no batch: the dataset has {rows} rows and batch_size is {}; lower batch_size, or keep the last \
                 batch",
                self.epoch, self.plan.loader.batch_size
            ),
        )
    }
}
