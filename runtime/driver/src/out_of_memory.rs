//! Details of a refused allocation of device memory: the sizes, and the lines that hold the most.

use crate::{ByteSize, DeviceId};
use std::fmt;

/// The details of a refused allocation of device memory, which
/// [`Error::out_of_memory`](crate::Error::out_of_memory) returns. All sizes are in bytes, at the
/// time of the refusal.
///
/// Its `Display` is the text of the error, without the op and the line that allocated.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct OutOfMemory {
    /// The device that has too little memory.
    pub device: DeviceId,
    /// The size of the refused allocation.
    pub requested_bytes: usize,
    /// The reason why there was no more memory.
    pub shortage: MemoryShortage,
    /// Bytes of live allocations, each at its rounded length.
    pub allocated_bytes: usize,
    /// Bytes of free memory that the allocator holds. No free block was large enough, or the large
    /// ones are still in use by streams.
    pub cached_bytes: usize,
    /// Bytes of `cached_bytes` that unfinished work still uses.
    pub waiting_bytes: usize,
    /// The host code that this unfinished work waits for, and its line, if it waits for some: a
    /// host function, a closed gate, foreign work. Memory is not waited for behind such code,
    /// since the code may wait for the thread that asks.
    pub held_up_by: Option<String>,
    /// The number of earlier requests that wait for memory.
    pub earlier_requests: usize,
    /// The bytes that these requests wait for.
    pub earlier_bytes: usize,
    /// Bytes that are free now and kept for the launches of captured graphs. They are not part of
    /// `cached_bytes`.
    pub graph_bytes: usize,
    /// Bytes that are granted to budgets, whether in use or not.
    pub budget_bytes: usize,
    /// Bytes that cannot be granted to budgets: the pieces of memory with live allocations outside
    /// of them. 0 if there are no budgets.
    pub outside_bytes: usize,
    /// Bytes that the driver refused to free. They stay allocated until the process ends, and
    /// limits count them.
    pub not_freed_bytes: usize,
    /// The source lines that hold the most live memory, largest first, at most
    /// [`MOST_HOLDERS`](Self::MOST_HOLDERS).
    pub holders: Vec<MemoryHolder>,
}

/// The reason why a device has no more memory for its allocator.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum MemoryShortage {
    /// The device itself has too little free memory. Other processes may use the rest.
    Device {
        /// Bytes that were still free.
        free_bytes: usize,
        /// Bytes of the device in total.
        total_bytes: usize,
    },
    /// The system provides no more, and knows no sizes. CPU devices without a limit end here.
    System,
    /// The runtime's `memory_limit` is reached.
    Limit {
        /// Bytes that the limit leaves.
        free_bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// The runtime's `memory_fraction` of the device's memory is reached.
    Fraction {
        /// Bytes that the limit leaves.
        free_bytes: usize,
        /// The limit: `fraction` of `total_bytes`.
        limit_bytes: usize,
        /// The fraction, more than 0 and at most 1.
        fraction: f64,
        /// Bytes of the device in total.
        total_bytes: usize,
    },
    /// The budget that the allocation counts against is too small. The other sizes are those of
    /// the device.
    Budget {
        /// Bytes that the allocation would count as.
        counted_bytes: usize,
        /// Bytes of the budget that nothing counts against.
        free_bytes: usize,
        /// Bytes of the budget.
        budget_bytes: usize,
    },
    /// A fault plan of a test refused the allocation.
    Planned,
    /// No device could address that much memory.
    Unaddressable,
}

/// A source line with the live memory that it allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryHolder {
    /// The path of the source file, as the compiler was given it.
    pub file: &'static str,
    /// The line that called the allocating method.
    pub line: u32,
    /// The number of live allocations.
    pub allocations: usize,
    /// Bytes of these allocations together, each at its rounded length.
    pub bytes: usize,
}

impl OutOfMemory {
    /// The number of lines that [`holders`](Self::holders) has at most.
    pub const MOST_HOLDERS: usize = 5;

    /// Creates details with nothing in use, whose other fields the allocator sets.
    #[doc(hidden)]
    pub fn new(device: DeviceId, requested_bytes: usize, shortage: MemoryShortage) -> Self {
        OutOfMemory {
            device,
            requested_bytes,
            shortage,
            allocated_bytes: 0,
            cached_bytes: 0,
            waiting_bytes: 0,
            held_up_by: None,
            earlier_requests: 0,
            earlier_bytes: 0,
            graph_bytes: 0,
            budget_bytes: 0,
            outside_bytes: 0,
            not_freed_bytes: 0,
            holders: Vec::new(),
        }
    }

    fn write_holders(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut word = "; largest holders:";
        for holder in &self.holders {
            write!(f, "{word} {holder}")?;
            word = ",";
        }
        Ok(())
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (asked, shortage) = (ByteSize(self.requested_bytes), self.shortage);
        if let MemoryShortage::Budget { counted_bytes, .. } = shortage {
            let counts = match counted_bytes == self.requested_bytes {
                true => String::new(),
                false => format!(", which count as {}", ByteSize(counted_bytes)),
            };
            write!(f, "the budget on {} is spent: {asked} asked{counts}, {shortage}", self.device)?;
            self.write_holders(f)?;
            return f.write_str("; drop tensors of this budget, or ask for a larger one");
        }
        write!(f, "{} is out of memory: {asked} asked, {shortage}", self.device)?;
        write!(f, " ({} in use, {} cached", ByteSize(self.allocated_bytes), ByteSize(self.cached_bytes))?;
        if self.graph_bytes > 0 {
            write!(f, ", {} kept for launches of graphs", ByteSize(self.graph_bytes))?;
        }
        if self.waiting_bytes > 0 {
            write!(f, ", {} of it behind unfinished work", ByteSize(self.waiting_bytes))?;
        }
        if let Some(code) = &self.held_up_by {
            write!(f, ", which waits for {code}")?;
        }
        if self.earlier_requests > 0 {
            write!(f, ", and earlier requests wait for {}", ByteSize(self.earlier_bytes))?;
        }
        if self.budget_bytes > 0 {
            let (granted, outside) = (ByteSize(self.budget_bytes), ByteSize(self.outside_bytes));
            write!(f, ", {granted} granted to budgets, {outside} in use outside of them")?;
        }
        if self.not_freed_bytes > 0 {
            write!(f, ", {} that the driver did not free", ByteSize(self.not_freed_bytes))?;
        }
        f.write_str(")")?;
        self.write_holders(f)?;
        f.write_str("; drop tensors or lower the batch size")?;
        match shortage {
            MemoryShortage::Limit { .. } => f.write_str(", or raise memory_limit")?,
            MemoryShortage::Fraction { .. } => f.write_str(", or raise memory_fraction")?,
            _ => {}
        }
        if self.budget_bytes == 0 && self.allocated_bytes > 0 {
            f.write_str("; requests that run at the same time can wait for a Device::budget")?;
        }
        Ok(())
    }
}

impl fmt::Display for MemoryShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            MemoryShortage::Device { free_bytes, total_bytes } => {
                write!(f, "{} free of {}", ByteSize(free_bytes), ByteSize(total_bytes))
            }
            MemoryShortage::System => f.write_str("more than the system provides"),
            MemoryShortage::Limit { free_bytes, limit_bytes } => {
                write!(f, "{} free of the limit of {}", ByteSize(free_bytes), ByteSize(limit_bytes))
            }
            MemoryShortage::Fraction { free_bytes, limit_bytes, fraction, total_bytes } => {
                let (free, limit, total) =
                    (ByteSize(free_bytes), ByteSize(limit_bytes), ByteSize(total_bytes));
                write!(
                    f,
                    "{free} free of the limit of {limit}, which is memory_fraction {fraction} of {total}"
                )
            }
            MemoryShortage::Budget { free_bytes, budget_bytes, .. } => {
                write!(f, "{} free of the budget of {}", ByteSize(free_bytes), ByteSize(budget_bytes))
            }
            MemoryShortage::Planned => f.write_str("refused by the fault plan"),
            MemoryShortage::Unaddressable => f.write_str("more than can be addressed"),
        }
    }
}

impl fmt::Display for MemoryHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {}:{}", ByteSize(self.bytes), self.file, self.line)?;
        if self.allocations > 1 {
            write!(f, " ({} allocations)", self.allocations)?;
        }
        Ok(())
    }
}
