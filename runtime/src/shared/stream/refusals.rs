//! The refusals of a stream's calls that the program may still have to hear of: late ones, for the
//! `Pending`s that fail with them, and those that no caller received.

use super::late::Late;
use parking_lot::Mutex;
use std::collections::VecDeque;
use warpline_driver::Error;
use warpline_driver::internal::ErrorParts;

/// The maximum number of errors that a stream keeps for `synchronize`, whose docs state it.
const MOST_UNSEEN: usize = 64;

/// The refusals of a stream that the program has not seen. The locks are leaves.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Refusals {
    pub(crate) late: Late,
    /// Errors that no caller has received, oldest first.
    unseen: Mutex<VecDeque<Error>>,
}

impl Refusals {
    /// Keeps an error that no caller received for a `synchronize`, unless the maximum is kept.
    /// Returns whether it is the only one. The error drops the value that it would have handed
    /// back, such as a pinned buffer, which other clients may wait for.
    pub(super) fn keep_unseen(&self, error: &Error) -> bool {
        drop(error.take_given());
        let mut unseen = self.unseen.lock();
        unseen.retain(|error| !error.is_seen());
        let is_first = unseen.is_empty();
        if unseen.len() < MOST_UNSEEN {
            unseen.push_back(error.clone());
        }
        is_first
    }

    /// Takes the oldest unseen error, which `synchronize` returns once.
    pub(crate) fn take_unseen(&self) -> Option<Error> {
        let mut unseen = self.unseen.lock();
        unseen.retain(|error| !error.is_seen());
        unseen.pop_front()
    }

    /// Drops the unseen errors of a stream that closes.
    pub(super) fn forget_unseen(&self) {
        let unseen = std::mem::take(&mut *self.unseen.lock());
        drop(unseen);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warpline_driver::ErrorKind;

    fn error(number: usize) -> Error {
        Error::new(ErrorKind::Full, number.to_string())
    }

    #[test]
    fn unseen_errors_come_back_in_order_and_seen_ones_do_not() {
        let refusals = Refusals::default();
        let errors = [0, 1, 2].map(error);
        let are_first = errors.each_ref().map(|error| refusals.keep_unseen(error));
        assert_eq!(are_first, [true, false, false]);
        errors[0].set_seen();
        let taken = std::iter::from_fn(|| refusals.take_unseen()).map(|error| error.to_string());
        assert_eq!(taken.collect::<Vec<_>>(), ["1", "2"]);
        assert!(refusals.keep_unseen(&error(3)), "nothing was left");
    }

    #[test]
    fn at_most_64_errors_are_kept_and_a_closing_stream_forgets_them() {
        let refusals = Refusals::default();
        (0..=MOST_UNSEEN).for_each(|number| _ = refusals.keep_unseen(&error(number)));
        let taken: Vec<_> = std::iter::from_fn(|| refusals.take_unseen()).collect();
        assert_eq!(taken.len(), MOST_UNSEEN);
        assert_eq!(taken[0].to_string(), "0", "the oldest are kept");
        refusals.keep_unseen(&error(0));
        refusals.forget_unseen();
        assert!(refusals.take_unseen().is_none());
    }

    #[test]
    fn a_late_refusal_is_there_until_its_pending_is_dropped() {
        let late = &Refusals::default().late;
        late.begins();
        assert!(late.refusal(1).is_none());
        assert!(late.refuse(1, error(1)).is_none(), "its `Pending` may still look");
        late.ends();
        assert_eq!(late.refusal(1).expect("it was refused").to_string(), "1");
        assert!(late.drop_pending(2, || true).is_none());
        assert!(late.drop_pending(1, || true).is_some() && late.refusal(1).is_none());
        assert!(late.is_empty());
    }
}
