//! Planned faults: calls that fail, launches that poison their context, writes that are lost.

use crate::entries::{Entry, NAMES};
use crate::errors::Code;
use crate::plan;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The planned failure of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Planned {
    pub(crate) code: Code,
    /// True if the failure also poisons the current context.
    pub(crate) sticky: bool,
}

/// The calls that fail. Empty unless `SOFTCUDA_FAIL` is set.
#[derive(Default)]
pub(crate) struct Failures(Vec<Failing>);

/// The planned failures of one entry point.
struct Failing {
    entry: usize,
    calls: AtomicU64,
    /// The calls that fail, counted from 1, in no order.
    at: Vec<(u64, Planned)>,
}

impl Failures {
    /// Parses a comma-separated list of `name:nth:code[:sticky]`.
    pub(crate) fn parse(text: &str) -> Option<Failures> {
        let mut failures = Failures::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let fields: Vec<&str> = part.split(':').collect();
            let (name, nth, code, sticky) = match fields[..] {
                [name, nth, code] => (name, nth, code, false),
                [name, nth, code, "sticky"] => (name, nth, code, true),
                _ => return None,
            };
            let entry = Entry::index_of(name)?;
            let nth: u64 = nth.parse().ok().filter(|nth| *nth > 0)?;
            let code = Code(code.parse().ok().filter(|code| *code > 0)?);
            let place = failures.0.iter().position(|failing| failing.entry == entry).unwrap_or_else(|| {
                failures.0.push(Failing { entry, calls: AtomicU64::new(0), at: Vec::new() });
                failures.0.len() - 1
            });
            failures.0[place].at.push((nth, Planned { code, sticky }));
        }
        Some(failures)
    }

    /// Counts a call if its entry point has a plan, and returns the failure planned for this call.
    #[inline]
    pub(crate) fn planned(&self, entry: Entry) -> Option<Planned> {
        if self.0.is_empty() { None } else { self.counted(entry) }
    }

    #[cold]
    fn counted(&self, entry: Entry) -> Option<Planned> {
        let failing = self.0.iter().find(|failing| failing.entry == entry as usize)?;
        let call = failing.calls.fetch_add(1, Relaxed) + 1;
        let (_, planned) = failing.at.iter().find(|(nth, _)| *nth == call)?;
        crate::errors::say(&format!("{} fails as planned, at call {call}", NAMES[entry as usize]));
        Some(*planned)
    }
}

/// Returns the code with which the launch about to execute poisons its context, if planned.
pub(crate) fn poisoned_launch() -> Option<Code> {
    static LAUNCHES: AtomicU64 = AtomicU64::new(0);
    let poisons = &plan::get().poison_launch;
    if poisons.is_empty() {
        return None;
    }
    let launch = LAUNCHES.fetch_add(1, Relaxed) + 1;
    poisons.iter().find(|(nth, _)| *nth == launch).map(|(_, code)| *code)
}

/// Returns true if the write about to execute is planned to be lost.
pub(crate) fn lost_write() -> bool {
    static WRITES: AtomicU64 = AtomicU64::new(0);
    plan::get().lose_write.is_some_and(|nth| WRITES.fetch_add(1, Relaxed) + 1 == nth)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nth_call_fails_and_no_other() {
        let plan = Failures::parse("cuEventRecord:2:400,cuMemAlloc_v2:1:2:sticky,cuEventRecord:3:1").unwrap();
        let record = || plan.planned(Entry::cuEventRecord).map(|planned| (planned.code.0, planned.sticky));
        assert_eq!(record(), None);
        assert_eq!(record(), Some((400, false)));
        assert_eq!(record(), Some((1, false)));
        assert_eq!(record(), None);
        let alloc = plan.planned(Entry::cuMemAlloc_v2);
        assert_eq!(alloc, Some(Planned { code: Code::OUT_OF_MEMORY, sticky: true }));
        assert_eq!(plan.planned(Entry::cuInit), None);
    }

    #[test]
    fn malformed_plans_are_refused() {
        for text in
            ["cuNothing:1:1", "cuInit", "cuInit:0:1", "cuInit:1:0", "cuInit:1:1:stuck", "cuInit:one:1"]
        {
            assert!(Failures::parse(text).is_none(), "{text}");
        }
        assert!(Failures::parse("").is_some_and(|plan| plan.planned(Entry::cuInit).is_none()));
    }
}
