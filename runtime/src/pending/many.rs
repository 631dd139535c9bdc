//! Several streams waited for at once.

use super::Pending;
use crate::error::{Error, Result};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Resolved when all of them are, to the first error if there is one.
///
/// Their end is one thing, so it does not matter in which order they are looked at: only one is waited for at a time, and a wake-up looks
/// at that one and those behind it that are done. To look at all of them at each would be quadratic.
pub(super) struct Many {
    /// In reverse.
    left: Vec<Pending<()>>,
    /// Whether each was asked to see to it that its end will be known.
    asked: bool,
    first_error: Option<Error>,
}

impl Many {
    pub(super) fn new(mut parts: Vec<Pending<()>>) -> Self {
        parts.reverse();
        Many { left: parts, asked: false, first_error: None }
    }

    pub(super) fn len(&self) -> usize {
        self.left.len()
    }

    pub(super) fn unobserve(&mut self) {
        self.left = std::mem::take(&mut self.left).into_iter().map(Pending::unobserved).collect();
    }

    pub(super) fn query(&mut self) -> Result<bool> {
        // All of them, since each asks for the marker it needs.
        let mut done = true;
        for part in self.left.iter_mut().rev() {
            done &= part.query()?;
        }
        Ok(done)
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        if !std::mem::replace(&mut self.asked, true) {
            self.left.iter_mut().rev().for_each(Pending::ask);
        }
        while let Some(part) = self.left.last_mut() {
            match Pin::new(part).poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    self.first_error.get_or_insert(error);
                }
            }
            self.left.pop();
        }
        Poll::Ready(self.first_error.take().map_or(Ok(()), Err))
    }
}
