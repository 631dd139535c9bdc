//! Several streams waited for at once.

use super::Pending;
use std::task::{Context, Poll};
use warpline_driver::{Error, Result};

/// Resolved when all of them are, to the first error if there is one.
///
/// Their end is one thing, so it does not matter in which order they are looked at: only one is waited for at a time, and a wake-up looks
/// at that one and those behind it that are done. To look at all of them at each would be quadratic. What comes of each is taken when
/// all are over, so that who gives up meanwhile takes nobody's error along.
pub(super) struct Many {
    parts: Vec<Pending<()>>,
    /// Whether each was asked to see to it that its end will be known.
    asked: bool,
    /// So many, from the first on, are over.
    over: usize,
    /// The first of them that never will be done.
    failed: Option<Error>,
}

impl Many {
    pub(super) fn new(parts: Vec<Pending<()>>) -> Self {
        Many { parts, asked: false, over: 0, failed: None }
    }

    pub(super) fn len(&self) -> usize {
        self.parts.len()
    }

    pub(super) fn unobserve(&mut self) {
        self.parts = std::mem::take(&mut self.parts).into_iter().map(Pending::unobserved).collect();
    }

    pub(super) fn query(&mut self) -> Result<bool> {
        // All of them, since each asks for the marker it needs.
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
        Poll::Ready(match self.failed.take() {
            Some(error) => Err(error),
            None => std::mem::take(&mut self.parts).into_iter().try_for_each(|mut part| part.take()),
        })
    }
}
