//! Reads batch after batch into pinned memory.
//!
//! The reader is called where blocking is allowed, or inline: see `ahead.rs`. It is not used again
//! after an error or the end. Several workers share an order of batches instead of a reader: see
//! `workers.rs`.

use super::caught::{Stop, caught};
use super::collate::BatchPlace;
use super::indexed::Order;
use super::plan::{Plan, Source};
use super::sample::Sample;
use super::sequential::Passes;
use super::supply::{Host, Supply};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use warpline_runtime::Result;
use warpline_runtime::trace::HostTrack;

/// A batch in pinned memory, whose first `place.rows` rows are filled.
pub(super) struct Read<S: Sample> {
    pub(super) host: Host<S>,
    pub(super) place: BatchPlace,
}

/// One batch, or the end of the last epoch, with the time that reading took.
pub(super) struct Loaded<S: Sample> {
    pub(super) batch: Option<Read<S>>,
    pub(super) reading: Duration,
}

impl<S: Sample> Loaded<S> {
    /// Reads a batch into `supply` by calling `fill`, and collates it.
    ///
    /// `fill` returns the batch's place, or `None` at the end and if `stop` returned `true`.
    pub(super) fn read(
        plan: &Arc<Plan<S>>,
        track: &HostTrack,
        supply: Supply<S>,
        stop: Stop<'_>,
        fill: impl FnOnce(&mut Host<S>) -> Result<Option<BatchPlace>>,
    ) -> Result<Self> {
        let began = Instant::now();
        let mut host = plan.memory.full_host(supply)?;
        let mut span = track.span("read");
        let mut place = fill(&mut host)?;
        if let (Some(place), Some(collate)) = (place, &plan.collate) {
            caught("the collate function", place.epoch, place.index, || {
                collate.collate(place, host.slots(0..place.rows))
            })?;
        }
        let rows = place.map_or(0, |place| place.rows);
        span.set_bytes((rows * plan.sample_bytes) as u64);
        drop(span);
        let reading = began.elapsed();
        place = place.filter(|_| !stop());
        Ok(Loaded { batch: place.map(|place| Read { host, place }), reading })
    }
}

/// A reader that one thread uses.
pub(super) struct Reader<S: Sample> {
    plan: Arc<Plan<S>>,
    rows: Source<Passes<S>, Order<S>>,
    group: usize,
    /// Memory that has not been read into.
    supplies: Vec<Supply<S>>,
}

impl<S: Sample> Reader<S> {
    pub(super) fn new(plan: Arc<Plan<S>>, epochs: Range<u64>, supplies: Vec<Supply<S>>) -> Self {
        let rows = match &plan.source {
            Source::Sequential(source) => {
                Source::Sequential(Passes::new(plan.clone(), source.clone(), epochs))
            }
            Source::Indexed(source) => Source::Indexed(Order::new(plan.clone(), source.clone(), epochs)),
        };
        Reader { plan, rows, group: supplies.len() / 3, supplies }
    }

    /// Returns memory that has not been read into, or `None` if there is no more.
    pub(super) fn next_supply(&mut self) -> Option<Supply<S>> {
        self.supplies.pop()
    }

    /// Returns the number of quickly read batches to hand over together.
    ///
    /// With as many more in the consumer's hands and as many on their way back, the reader does not
    /// run out of memory.
    pub(super) fn group(&self) -> usize {
        self.group
    }

    /// Reads a batch into `supply`. Ends early if `stop` returns `true`.
    pub(super) fn read(&mut self, supply: Supply<S>, stop: impl Fn() -> bool) -> Result<Loaded<S>> {
        let Reader { plan, rows, .. } = self;
        Loaded::read(plan, &plan.loading, supply, &stop, |host| match rows {
            Source::Sequential(passes) => passes.fill(host, &stop),
            Source::Indexed(order) => {
                let Some(job) = order.next()? else { return Ok(None) };
                Ok(order.indexed().fill(&job, host, &stop)?.then_some(job.place))
            }
        })
    }
}
