//! Operations: the work that moves bytes, runs kernels, stores and compares words and calls the host. A stream does it
//! once; a graph that captured it does it at every launch.

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
    /// Move bytes.
    Copy(Box<CopyWork>),
    /// Repeat a pattern.
    Fill(Box<FillWork>),
    /// Store a word.
    WriteWord(Word),
    /// Hold back what comes after until a word compares.
    WaitWord { word: Word, compare: Compare },
    /// Run a kernel's twin.
    Launch(Box<LaunchWork>),
    /// Call the host, on the thread for that.
    Call(HostCall),
}

/// A word in memory that was checked when the work was enqueued.
#[derive(Clone, Copy)]
pub(crate) struct Word {
    /// The host address of it, aligned to its size.
    pub(crate) address: usize,
    /// The value to store or to compare with.
    pub(crate) value: u64,
    /// 8 bytes, or 4.
    pub(crate) wide: bool,
}

/// How a word is compared.
#[derive(Clone, Copy)]
pub(crate) enum Compare {
    /// It is not before the value, in wrapping arithmetic.
    AtLeast,
    /// It is the value.
    Equal,
    /// It shares a bit with the value.
    AnyBit,
}

impl Word {
    /// Stores the value, as seen from the host after all that the stream did before.
    pub(crate) fn store(self) {
        if self.wide {
            // SAFETY: the address was checked to be aligned and in live memory, for a graph just now; whoever frees
            // page-locked memory poisons the stream first or waits for it.
            let word = unsafe { AtomicU64::from_ptr(self.address as *mut u64) };
            word.store(self.value, Ordering::Release);
        } else {
            // SAFETY: as above.
            let word = unsafe { AtomicU32::from_ptr(self.address as *mut u32) };
            word.store(self.value as u32, Ordering::Release);
        }
    }

    fn holds(self, compare: Compare) -> bool {
        if self.wide {
            // SAFETY: as in `store`.
            let word = unsafe { AtomicU64::from_ptr(self.address as *mut u64) };
            let now = word.load(Ordering::Acquire);
            match compare {
                Compare::AtLeast => now.wrapping_sub(self.value) as i64 >= 0,
                Compare::Equal => now == self.value,
                Compare::AnyBit => now & self.value != 0,
            }
        } else {
            // SAFETY: as in `store`.
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
    /// Calls it on this thread.
    pub(crate) fn run(&self) {
        context::set_in_host_function(true);
        // SAFETY: the caller of cuLaunchHostFunc gave a function to be called with this argument, once for each time that
        // its work runs.
        unsafe { (self.function)(self.data as *mut c_void) };
        context::set_in_host_function(false);
    }
}

/// The shortest and the longest pause between two looks at a word.
const PAUSES: [Duration; 2] = [Duration::from_micros(20), Duration::from_micros(500)];

impl Op {
    /// Whether it can start. `since` is when that was first asked.
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

    /// Does it.
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

    /// An address in each piece of memory that it names.
    pub(crate) fn addresses(&self) -> Vec<usize> {
        match self {
            Op::Copy(copy) => copy.addresses().to_vec(),
            Op::Fill(fill) => vec![fill.address()],
            Op::WriteWord(word) | Op::WaitWord { word, .. } => vec![word.address],
            Op::Launch(launch) => launch.pointers().map(|(address, _)| address as usize).collect(),
            Op::Call(_) => Vec::new(),
        }
    }

    /// The page-locked memory it touches.
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
