//! The newest use of the memory by each stream: the work to wait for before the memory is used
//! again, or by a wait for all uses. It is kept even if nothing is checked, and decides no verdict.

use super::clock::{StreamId, Ticket, Use};
use super::observed::Observed;
use smallvec::SmallVec;
use std::collections::HashMap;

/// The maximum number of streams that are found by looking at each of them.
const MOST_FEW: usize = 8;

/// The streams that used the memory, each with its newest ticket.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    list: SmallVec<[Use; 2]>,
    /// The place of each stream in `list`, if that is long.
    #[expect(clippy::box_collection, reason = "few lists are long, and every history has a list")]
    places: Option<Box<HashMap<StreamId, usize>>>,
}

impl Uses {
    /// Notes the first use.
    #[inline]
    pub(crate) fn begin(&mut self, used: Use) {
        self.list.push(used);
    }

    #[inline]
    pub(crate) fn list(&self) -> &[Use] {
        &self.list
    }

    #[inline]
    fn find(&self, stream: StreamId) -> Option<usize> {
        match &self.places {
            None => self.list.iter().position(|used| used.stream == stream),
            Some(places) => places.get(&stream).copied(),
        }
    }

    /// Returns the ticket of the newest use by a stream.
    pub(crate) fn by(&self, stream: StreamId) -> Option<Ticket> {
        self.find(stream).map(|at| self.list[at].ticket)
    }

    /// Notes a use. If the list would grow, first drops the uses of streams that are gone, and
    /// returns true if there were any.
    #[inline]
    pub(crate) fn note(&mut self, used: Use, observed: &Observed) -> bool {
        let known = match &self.places {
            None => self.list.iter_mut().find(|known| known.stream == used.stream),
            Some(places) => places.get(&used.stream).map(|at| &mut self.list[*at]),
        };
        if let Some(known) = known {
            known.ticket = known.ticket.max(used.ticket);
            return false;
        }
        self.note_first(used, observed)
    }

    #[cold]
    fn note_first(&mut self, used: Use, observed: &Observed) -> bool {
        let before = self.list.len();
        if before == self.list.capacity() {
            self.retain(|used| !observed.is_gone(used.stream));
            // The uses that are left have to double before the next search, so searching costs
            // little per use. Room for those that were dropped would let the list grow with the
            // number of streams that have ever used the memory.
            self.list.reserve_exact(self.list.len());
        }
        let some_are_gone = self.list.len() < before;
        self.set(used);
        some_are_gone
    }

    /// Sets the newest use by a stream.
    pub(crate) fn set(&mut self, used: Use) {
        if let Some(at) = self.find(used.stream) {
            self.list[at] = used;
            return;
        }
        self.list.push(used);
        match &mut self.places {
            Some(places) => drop(places.insert(used.stream, self.list.len() - 1)),
            None if self.list.len() > MOST_FEW => self.find_places(),
            None => {}
        }
    }

    /// Keeps the uses that satisfy `keep`, in their order.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&Use) -> bool) {
        self.list.retain(|used| keep(used));
        self.find_places();
    }

    fn find_places(&mut self) {
        let places = || self.list.iter().enumerate().map(|(at, used)| (used.stream, at)).collect();
        self.places = (self.list.len() > MOST_FEW).then(|| Box::new(places()));
    }

    /// Takes all uses out of another list that are newer than the ones here.
    pub(crate) fn take_newer(&mut self, other: Uses) {
        for used in other.list {
            match self.by(used.stream) {
                Some(ticket) if ticket >= used.ticket => {}
                _ => self.set(used),
            }
        }
    }
}
