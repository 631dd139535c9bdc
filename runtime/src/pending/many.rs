//! Waiting for several streams together.
// Decision: docs/decisions/0018-many-streams-are-awaited-one-by-one.md

use super::output::Output;
use super::{Pending, Refusal, Work};
use crate::shared::StreamCore;
use std::sync::Arc;
use std::task::{Context, Poll};
use warpline_driver::{Error, Result, reentry};

/// Resolves when all of its parts have, to the first error if there is one.
///
/// All parts have to finish, so the order of polling does not matter. Only one part is waited for
/// at a time. A wake-up polls that part, then the next ones up to the first that is not done.
/// Polling all of them at each wake-up would be quadratic. The results are taken once all parts
/// have finished, so a waiter that gives up earlier takes no error away.
pub(super) struct Many {
    parts: Vec<Pending<()>>,
    /// True once each part has been asked to arrange for its completion to be reported.
    asked: bool,
    /// The number of parts, from the first, that have finished.
    over: usize,
    /// The number of parts, from the first, whose results were taken.
    taken: usize,
    /// The first error of a part.
    failed: Option<Error>,
}

impl Many {
    pub(super) fn new(parts: Vec<Pending<()>>) -> Self {
        Many { parts, asked: false, over: 0, taken: 0, failed: None }
    }

    pub(super) fn len(&self) -> usize {
        self.parts.len()
    }

    pub(super) fn awaited_core(&self) -> Option<&Arc<StreamCore>> {
        self.parts.iter().find_map(Pending::awaited_core)
    }

    pub(super) fn unobserve(&mut self) {
        self.parts = std::mem::take(&mut self.parts).into_iter().map(Pending::unobserved).collect();
    }

    /// Returns a wait for the same work, beside this one.
    pub(super) fn looked_at(&self) -> Self {
        let left = self.parts.get(self.taken..).unwrap_or_default();
        Many::new(left.iter().map(|part| part.view_of(|&()| Ok(()))).collect())
    }

    pub(super) fn query(&mut self) -> Result<bool> {
        // Query all of them, since each asks for the marker it needs.
        let mut done = true;
        for part in &mut self.parts {
            done &= part.query()?;
        }
        Ok(done)
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        if !std::mem::replace(&mut self.asked, true) {
            self.parts.iter_mut().for_each(Pending::ask);
        }
        while let Some(part) = self.parts.get_mut(self.over) {
            match part.poll_work(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    self.failed.get_or_insert(error);
                }
            }
            self.over += 1;
        }
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Err(error));
        }
        while let Some(part) = self.parts.get_mut(self.taken) {
            let is_read = part.is_read();
            if let Some(result) = part.make() {
                self.taken += 1;
                if result.is_err() {
                    return Poll::Ready(result);
                }
            }
            // Other tasks run between the steps, also between those of two parts.
            if is_read && self.taken < self.parts.len() {
                reentry::wake(cx.waker());
                return Poll::Pending;
            }
        }
        self.parts.clear();
        Poll::Ready(Ok(()))
    }
}

impl Pending<()> {
    /// Joins `parts` into one `Pending`, which resolves when all of their work has finished. Their
    /// values are dropped.
    ///
    /// Without parts it is ready.
    ///
    /// # Errors
    /// In the `Pending`: the error of the first part that was refused, immediately. The other parts
    /// are then dropped like any `Pending`, so their work runs. Otherwise the error of the first
    /// part that fails, once all have finished. Refusals of further parts are reported like those
    /// of dropped `Pending`s.
    ///
    /// # Examples
    /// ```
    /// use warpline::{Device, Pending, Tensor, TensorOps};
    ///
    /// # fn main() -> warpline::Result<()> {
    /// let device = Device::best()?;
    /// let tensors = [Tensor::zeros([2], &device).queued()?, Tensor::ones([3], &device).queued()?];
    /// Pending::join_all(tensors.iter().map(|x| x.add_(1.0))).blocking_wait()?;
    /// assert_eq!(tensors[1].to_vec::<f32>().blocking_wait()?, [2.0; 3]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn join_all<T: 'static>(parts: impl IntoIterator<Item = Pending<T>>) -> Pending<()> {
        let (mut works, mut step, mut refused) = (Vec::new(), None, None);
        for part in parts {
            match part.with_output(Output::without_value).into_parts() {
                (Work::Failed(refusal), _) if refused.is_none() => refused = Some(refusal),
                // Nothing of a capture can be awaited, so one of its steps stands for all.
                (captured @ Work::Captured(_), _) => step = Some(captured),
                (work, output) => works.push(Pending { work, output }),
            }
        }
        match (refused, step) {
            (Some(refusal), _) => Refusal::pass_on(refusal),
            (None, Some(work)) => Pending { work, output: Some(Output::Value(())) },
            (None, None) => Pending::many(works, ()),
        }
    }
}
