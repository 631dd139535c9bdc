//! The diagnosis of a device from the error codes that CUDA answers.
//!
//! # Rules
//! 1. A code whose description in cuda.h says that the process has to be relaunched is a **fault**.
//!    From a call that touches one context it needs no confirmation.
//! 2. Some codes say nothing about the device: it is busy, it is out of memory, the process is
//!    ending, or the call was made at the wrong moment of a capture. They are **innocent**,
//!    whichever call answers them and however often.
//! 3. Every other code **may** be the caller's mistake, another device's error, or a death that no
//!    current header names. It is believed only from a stream of ours without work, and only if
//!    that stream keeps answering it while no work on the device completes ([`Doubt`]).
//!
//! Therefore no answer of CUDA leaves a task waiting for ever: a device that does not answer
//! properly is declared dead.
// Decision: docs/decisions/0033-cuda-errors-are-believed-with-care.md

use crate::api::Failed;
use std::time::{Duration, Instant};

/// The shortest interval of checks of a device while something waits for it and nothing completes.
pub(crate) const ASKED_EVERY: Duration = Duration::from_millis(2);
/// The time for which a stream without work has to answer errors before its device counts as dead.
const DOUBT_LASTS: Duration = Duration::from_millis(100);
/// The least number of such answers: two that are far apart may be unrelated.
const ANSWERS: u32 = 10;
/// The longest time that a caller whose call failed waits for the doubt to end. It is longer than
/// the doubt lasts, because work that completes on the device restarts the doubt.
pub(crate) const LONGEST_DOUBT: Duration = Duration::from_millis(250);

/// The meaning of a code for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    Innocent,
    Fault,
    Unclear,
}

impl Failed {
    /// Returns the meaning of the code for the device. Source: the descriptions of `CUresult` in
    /// cuda.h 13.0.
    pub(crate) fn meaning(self) -> Meaning {
        match self.code {
            // Success and not ready; out of memory; not initialized, also in the child of a fork;
            // the process is ending; not permitted, as in a host function; and what captures
            // forbid.
            0 | 600 | 2 | 3 | 4 | 800 | 900..=908 => Meaning::Innocent,
            // Uncorrectable errors of memory and NVLink (214, 220); errors that leave the process
            // "in an inconsistent state" (226, 700, 702, 710, 714 to 719, 721, 911); an MPS client
            // that its server has terminated (810).
            214 | 220 | 226 | 700 | 702 | 710 | 714..=719 | 721 | 810 | 911 => Meaning::Fault,
            _ => Meaning::Unclear,
        }
    }

    /// Returns true if the error means that the device is lost.
    pub(crate) fn is_fault(self) -> bool {
        self.meaning() == Meaning::Fault
    }

    /// Returns true if the error may be that of another device, which the call touches as well. It
    /// may be a device that the call names, the device whose context was current before, or any
    /// device where memory is mapped for all of them. Calls of virtual memory name no context.
    pub(crate) fn may_be_anothers(self) -> bool {
        matches!(
            self.call,
            "cuStreamWaitEvent"
                | "cuMemcpyPeerAsync"
                | "cuMemcpy3DPeerAsync"
                | "cuCtxEnablePeerAccess"
                | "cuCtxGetCurrent"
                | "cuCtxSetCurrent"
                | "cuMemHostAlloc"
                | "cuMemFreeHost"
                | "cuMemHostRegister_v2"
                | "cuMemHostUnregister"
                | "cuMemAlloc_v2"
                | "cuMemFree_v2"
                | "cuMemAddressReserve"
                | "cuMemAddressFree"
                | "cuMemCreate"
                | "cuMemRelease"
                | "cuMemMap"
                | "cuMemUnmap"
                | "cuMemSetAccess"
        )
    }
}

/// Unclear answers of one stream that nothing has contradicted.
#[derive(Debug, Default)]
pub(crate) struct Doubt(Option<Unclear>);

#[derive(Debug)]
struct Unclear {
    since: Instant,
    answers: u32,
    completed: u64,
}

impl Doubt {
    /// Notes an unclear answer at `now`. `completed` is how much work had completed by then.
    /// Returns true once the doubt has lasted long enough.
    pub(crate) fn deepens(&mut self, now: Instant, completed: u64) -> bool {
        let unclear = self.0.get_or_insert(Unclear { since: now, answers: 0, completed });
        if completed > unclear.completed {
            (unclear.since, unclear.answers) = (now, 0);
        }
        // `completed` falls when a stream is dropped.
        unclear.completed = completed;
        unclear.answers += 1;
        unclear.answers >= ANSWERS && now.saturating_duration_since(unclear.since) >= DOUBT_LASTS
    }

    /// Notes a proper answer, which ends the doubt.
    pub(crate) fn ends(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meaning(code: u32) -> Meaning {
        Failed::of("cuStreamQuery", code).meaning()
    }

    #[test]
    fn a_code_is_innocent_a_fault_or_unclear_whatever_its_number() {
        for code in [0, 2, 3, 4, 600, 800, 900, 908] {
            assert_eq!(meaning(code), Meaning::Innocent, "{code}");
        }
        for code in [214, 226, 700, 719, 810, 911] {
            assert_eq!(meaning(code), Meaning::Fault, "{code}");
        }
        // An invalid context, a destroyed context, "unknown", and numbers that have no name yet.
        for code in [1, 46, 201, 225, 709, 899, 909, 999, 4711, u32::MAX] {
            assert_eq!(meaning(code), Meaning::Unclear, "{code}");
        }
    }

    /// Notes an unclear answer every two milliseconds from `since` on. Returns the number of
    /// milliseconds after which the doubt has lasted long enough.
    fn lasts(doubt: &mut Doubt, since: Instant, completed: impl Fn(u64) -> u64) -> Option<u64> {
        (0..500).map(|n| n * 2).find(|&ms| doubt.deepens(since + Duration::from_millis(ms), completed(ms)))
    }

    #[test]
    fn a_doubt_that_nothing_contradicts_lasts_a_tenth_of_a_second() {
        assert_eq!(lasts(&mut Doubt::default(), Instant::now(), |_| 7), Some(100));
    }

    #[test]
    fn work_that_completes_begins_the_doubt_anew_and_streams_that_go_do_not() {
        let now = Instant::now();
        assert_eq!(lasts(&mut Doubt::default(), now, |ms| ms / 50), None);
        assert_eq!(lasts(&mut Doubt::default(), now, |ms| u64::from(ms >= 60)), Some(160));
        assert_eq!(lasts(&mut Doubt::default(), now, |ms| 1000 - ms), Some(100));
    }

    #[test]
    fn a_proper_answer_ends_it_and_a_few_answers_are_not_enough() {
        let (now, mut doubt) = (Instant::now(), Doubt::default());
        assert!(!doubt.deepens(now, 0));
        assert!(!doubt.deepens(now + Duration::from_secs(600), 0), "two answers, far apart");
        doubt.ends();
        assert_eq!(lasts(&mut doubt, now + Duration::from_secs(601), |_| 0), Some(100));
    }
}
