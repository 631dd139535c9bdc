//! The refusals of a stream's calls that the program may still have to hear of: late ones, for the
//! `Pending`s that fail with them, and those that no caller received.

use super::late::Late;
use crate::order::{self, Access, Mark, Marks, StreamId, leaves_a_mark};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use warpline_driver::internal::ErrorParts;
use warpline_driver::{Error, ErrorKind};

/// The marks that a refusal leaves on what it did not write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaves {
    Nothing,
    /// A mark for everybody on the memory of other devices: no op reads that of a failed device.
    OnOtherDevices,
    /// A mark for everybody, since the bytes may have changed or the order may not be stated.
    ForEverybody,
    /// A mark that the stream carries, for those that are ordered after it.
    ForFollowers,
}

impl Leaves {
    /// Returns what the refusal `error` leaves on the bytes that were to be written, if there are
    /// any. `everybodys`: true if no op may read those bytes.
    pub(super) fn of(error: &Error, writes_any: bool, everybodys: bool) -> Self {
        match error.kind() {
            ErrorKind::Fault => Leaves::OnOtherDevices,
            kind if !writes_any || !leaves_a_mark(kind) => Leaves::Nothing,
            _ if everybodys => Leaves::ForEverybody,
            _ => Leaves::ForFollowers,
        }
    }
}

/// Marks bytes that a refusal on this stream left unwritten, for everybody.
pub(super) fn mark_for_everybody<A: Access>(stream: StreamId, written: &[&A], error: &Error) -> Arc<Mark> {
    let mark = Mark::new(stream, order::cause(error));
    order::mark(written, &mark, true);
    mark
}

/// Marks bytes that a refusal on this stream left unwritten with a mark that the stream carries.
pub(super) fn mark_for_followers<A: Access>(
    stream: StreamId,
    carried: &mut Marks,
    written: &[&A],
    error: &Error,
) -> Arc<Mark> {
    let mark = carried.mark_for(stream, order::cause(error));
    order::mark(written, &mark, false);
    carried.add(mark.clone());
    mark
}

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
    fn a_refusal_leaves_a_mark_unless_nothing_was_to_be_written_or_its_kind_leaves_none() {
        let [full, fault] = [ErrorKind::Full, ErrorKind::Fault].map(|kind| Error::new(kind, "test"));
        assert_eq!(Leaves::of(&full, true, false), Leaves::ForFollowers);
        assert_eq!(Leaves::of(&full, true, true), Leaves::ForEverybody);
        assert_eq!(Leaves::of(&full, false, true), Leaves::Nothing);
        assert_eq!(Leaves::of(&fault, false, false), Leaves::OnOtherDevices);
        let shut_down = Error::new(ErrorKind::ShutDown, "test");
        assert_eq!(Leaves::of(&shut_down, true, true), Leaves::Nothing);
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
