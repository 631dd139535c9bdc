//! The kinds of work on a stream: copies, launches, host functions, foreign work, graphs and gates.
//! Memory that is mapped for such work is here too (`virtual_memory`).

pub(crate) mod capturing;
pub(crate) mod copy;
pub(crate) mod foreign;
pub(crate) mod gate;
pub(crate) mod graph;
pub(crate) mod host_fn;
pub(crate) mod launch;
pub(crate) mod peers;
pub(crate) mod raw_streams;
pub(crate) mod virtual_memory;

use crate::api::Answer;
use capturing::Lent;
use peers::Peers;
use raw_streams::RawStreams;
use std::sync::atomic::{AtomicBool, Ordering};
use virtual_memory::mappings::Mappings;

/// The CUDA streams and the mapped memory of a context, and what is known about them.
#[derive(Debug)]
pub(crate) struct Queues {
    pub(crate) streams: RawStreams,
    pub(crate) capture_streams: RawStreams,
    pub(crate) lent: Lent,
    pub(crate) peers: Peers,
    pub(crate) mappings: Mappings,
    /// True once a launch that blocked on a full queue of CUDA has been reported.
    told_of_full_queue: AtomicBool,
}

impl Queues {
    /// Creates the queues of the current context.
    pub(crate) fn new() -> Answer<Self> {
        Ok(Queues {
            streams: RawStreams::for_work()?,
            capture_streams: RawStreams::for_captures()?,
            lent: Lent::default(),
            peers: Peers::default(),
            mappings: Mappings::default(),
            told_of_full_queue: AtomicBool::new(false),
        })
    }

    /// Notes that a launch had to wait for room in CUDA's queue. Returns true the first time.
    pub(crate) fn tell_of_full_queue(&self) -> bool {
        !self.told_of_full_queue.swap(true, Ordering::Relaxed)
    }
}
