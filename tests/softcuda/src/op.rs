//! Operations: work that moves bytes, runs kernels, stores and compares words, and calls the host.
//!
//! A stream executes an operation once. A graph that captured it executes it at each launch.

use crate::abi::HostFn;
use crate::context::{self, Context};
use crate::copy::{CopyWork, FillWork};
use crate::faults;
use crate::launch::LaunchWork;
use crate::plan;
use crate::work::{Fault, HostRange, Ready};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// One operation.
pub(crate) enum Op {
    /// Moves bytes.
    Copy(Box<CopyWork>),
    /// Repeats a pattern.
    Fill(Box<FillWork>),
    /// Stores a word.
    WriteWord(Word),
    /// Delays later work until a word passes a comparison.
    WaitWord { word: Word, compare: Compare },
    /// Runs a kernel.
    Launch(Box<LaunchWork>),
    /// Calls a host function, on the host-function thread.
    Call(HostCall),
}

/// A word in memory that was checked when the work was enqueued.
#[derive(Clone, Copy)]
pub(crate) struct Word {
    /// The host address, aligned to the word's size.
    pub(crate) address: usize,
    /// The value to store or to compare with.
    pub(crate) value: u64,
    /// True for a word of 8 bytes, false for one of 4.
    pub(crate) wide: bool,
}

/// The comparison of a word with a value.
#[derive(Clone, Copy)]
pub(crate) enum Compare {
    /// The word is not before the value, in wrapping arithmetic.
    AtLeast,
    /// The word equals the value.
    Equal,
    /// The word and the value have a set bit in common.
    AnyBit,
}

impl Word {
    /// Stores the value. A host thread that loads it with acquire ordering also sees all earlier
    /// work of the stream.
    pub(crate) fn store(self) {
        if self.wide {
            // SAFETY: `from_ptr` needs an aligned address in live memory. Both were checked at the
            // call; a graph checks its memory again before the node runs. Device memory stays
            // mapped. Releasing page-locked memory first poisons the contexts of queued work on it
            // and waits for the running work.
            let word = unsafe { AtomicU64::from_ptr(self.address as *mut u64) };
            word.store(self.value, Ordering::Release);
        } else {
            // SAFETY: the address is aligned to 4 bytes, and the memory is live for the same
            // reasons as that of a wide word.
            let word = unsafe { AtomicU32::from_ptr(self.address as *mut u32) };
            word.store(self.value as u32, Ordering::Release);
        }
    }

    fn holds(self, compare: Compare) -> bool {
        if self.wide {
            // SAFETY: the address is aligned and in live memory, as `store` explains. The caller
            // holds the stream's queue lock and found its context intact. Releasing page-locked
            // memory poisons that context, then takes this lock, and only then unmaps the memory.
            let word = unsafe { AtomicU64::from_ptr(self.address as *mut u64) };
            let now = word.load(Ordering::Acquire);
            match compare {
                Compare::AtLeast => now.wrapping_sub(self.value) as i64 >= 0,
                Compare::Equal => now == self.value,
                Compare::AnyBit => now & self.value != 0,
            }
        } else {
            // SAFETY: the address is aligned to 4 bytes, and the held lock keeps the memory live as
            // it does for a wide word.
            let word = unsafe { AtomicU32::from_ptr(self.address as *mut u32) };
            let (now, value) = (word.load(Ordering::Acquire), self.value as u32);
            match compare {
                Compare::AtLeast => now.wrapping_sub(value) as i32 >= 0,
                Compare::Equal => now == value,
                Compare::AnyBit => now & value != 0,
            }
        }
    }

    fn range(self) -> HostRange {
        HostRange { start: self.address, len: if self.wide { 8 } else { 4 } }
    }
}

/// A host function and its argument.
pub(crate) struct HostCall {
    pub(crate) function: HostFn,
    pub(crate) data: usize,
}

impl HostCall {
    /// Calls the function on this thread.
    pub(crate) fn run(&self) {
        context::set_in_host_function(true);
        // SAFETY: the caller of cuLaunchHostFunc promises that the function may be called with this
        // argument, once each time the operation runs.
        unsafe { (self.function)(self.data as *mut c_void) };
        context::set_in_host_function(false);
    }
}

/// The shortest and the longest pause between two checks of a word.
const PAUSES: [Duration; 2] = [Duration::from_micros(20), Duration::from_micros(500)];

impl Op {
    /// Returns when the operation can start. `since` keeps the time of the first such check.
    pub(crate) fn ready(&self, since: &mut Option<Instant>) -> Ready {
        match self {
            Op::WaitWord { word, compare } if !word.holds(*compare) => {
                let now = Instant::now();
                let waited = now - *since.get_or_insert(now);
                Ready::At(now + (waited / 16).clamp(PAUSES[0], PAUSES[1]))
            }
            Op::Copy(copy) if copy.delayed => {
                let Some(delay) = plan::get().copy_delay else { return Ready::Now };
                let now = Instant::now();
                let due = *since.get_or_insert(now) + delay;
                if now < due { Ready::Underway(due) } else { Ready::Now }
            }
            Op::Call(_) => Ready::OnHostThread,
            _ => Ready::Now,
        }
    }

    /// Executes the operation.
    pub(crate) fn execute(&self, context: &'static Context) -> Result<(), Fault> {
        match self {
            Op::WaitWord { .. } => {}
            Op::Copy(copy) => copy.execute(),
            Op::Fill(fill) => fill.execute(),
            Op::WriteWord(word) => {
                if !faults::lost_write() {
                    word.store();
                }
            }
            Op::Launch(launch) => return launch.execute(context),
            Op::Call(call) => call.run(),
        }
        Ok(())
    }

    /// Returns an address in each piece of memory that the operation names.
    pub(crate) fn addresses(&self) -> Vec<usize> {
        match self {
            Op::Copy(copy) => copy.addresses().to_vec(),
            Op::Fill(fill) => vec![fill.address()],
            Op::WriteWord(word) | Op::WaitWord { word, .. } => vec![word.address],
            Op::Launch(launch) => {
                launch.pointers().into_iter().map(|(address, _)| address as usize).collect()
            }
            Op::Call(_) => Vec::new(),
        }
    }

    /// Returns the page-locked and mapped memory that the operation uses. The range of a word is
    /// included wherever the word is.
    pub(crate) fn host_ranges(&self) -> Vec<HostRange> {
        match self {
            Op::Copy(copy) => copy.host_ranges(),
            Op::Fill(fill) => fill.host_ranges(),
            Op::WriteWord(word) | Op::WaitWord { word, .. } => vec![word.range()],
            Op::Launch(launch) => launch.host_ranges(),
            Op::Call(_) => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(now: u64, compare: Compare, value: u64, wide: bool) -> bool {
        let memory = now;
        Word { address: &raw const memory as usize, value, wide }.holds(compare)
    }

    #[test]
    fn words_compare_as_the_header_says() {
        assert!(holds(5, Compare::AtLeast, 5, true));
        assert!(!holds(4, Compare::AtLeast, 5, true));
        assert!(holds(3, Compare::AtLeast, u64::MAX, true), "3 is after the largest value");
        assert!(holds(0x1_0000_0007, Compare::Equal, 7, false), "a narrow word is the low half");
        assert!(!holds(0x1_0000_0007, Compare::Equal, 7, true));
        assert!(holds(6, Compare::AnyBit, 2, true) && !holds(6, Compare::AnyBit, 1, true));
    }
}
