//! Loom models of the lock-free parts of the crates under `runtime/`, and of the requests that
//! wait for memory or a budget, on the production source.
//!
//! The modules below are files of those crates, compiled against the `sync` of this crate instead
//! of that of `warpline-driver`. The models are tests. `ci/loom` runs them. `ci/loom --weakened`
//! shows that each fence they rely on is needed.

#![allow(dead_code, unused_imports, missing_docs, unreachable_pub, unexpected_cfgs)]

// The files below name this crate in place of the driver's, and of tokio.
#[cfg(test)]
extern crate self as tokio;
#[cfg(test)]
extern crate self as warpline_driver;

#[cfg(test)]
#[path = "../../../runtime/src/shared/stream/backlog.rs"]
mod backlog;
#[cfg(test)]
#[path = "../../../runtime/src/shared/stream/coming.rs"]
mod coming;
#[cfg(test)]
#[path = "../../../runtime/src/delegation.rs"]
mod delegation;
#[cfg(test)]
#[path = "../../../runtime/driver/src/exit.rs"]
mod exit;
#[cfg(test)]
#[path = "../../../runtime/driver/src/health.rs"]
mod health;
#[cfg(test)]
#[path = "../../../runtime/cpu/src/idle.rs"]
mod idle;
#[cfg(test)]
#[path = "../../../runtime/src/shared/stream/late.rs"]
mod late;
#[cfg(test)]
#[path = "../../../runtime/order/src/ledger.rs"]
mod ledger;
#[cfg(test)]
#[path = "../../../runtime/cpu/src/line.rs"]
mod line;
#[cfg(test)]
#[path = "../../../runtime/src/shared/stream/markers.rs"]
mod markers;
#[cfg(test)]
#[path = "../../../runtime/src/shared/stream/progress.rs"]
mod progress;
#[cfg(test)]
#[path = "../../../runtime/cpu/src/strand.rs"]
mod strand;
#[cfg(test)]
mod sync;
#[cfg(test)]
#[path = "../../../runtime/driver/src/timeline/mod.rs"]
mod timeline;

#[cfg(test)]
#[path = "../../../runtime/cuda/src/completion/watch.rs"]
mod watch;

/// Stands in for the error type.
#[derive(Clone, Debug)]
pub struct Error;

/// Stands in for the ticket type of the order check.
pub type Ticket = u64;

#[cfg(test)]
mod background;

#[cfg(test)]
mod block_on;

#[cfg(test)]
mod book;

#[cfg(test)]
mod core;

#[cfg(test)]
mod driver;
#[cfg(test)]
mod memory;
#[cfg(test)]
mod shared;
#[cfg(test)]
use driver::*;
#[cfg(test)]
use health::Health;

/// Stands in for the state of the process.
mod process {
    /// Returns true once the model has failed. Loom's locks must not be used then, and in a forked
    /// process no destructor takes a lock.
    pub(crate) fn is_forked() -> bool {
        std::thread::panicking()
    }

    pub(crate) fn is_ending() -> bool {
        false
    }
}

/// Stands in for the order check, and the marks of refused ops. No model refuses any.
mod order {
    pub(crate) use crate::clock::{StreamId, Use};
    pub(crate) use crate::site::Site;

    #[derive(Clone, Default)]
    pub(crate) struct Marks;

    impl Marks {
        pub(crate) fn merge(&mut self, _other: &Marks) -> bool {
            false
        }
    }
}

/// Stands in for the memory that refused ops left unwritten.
mod unwritten {
    pub(crate) struct BacklogOperand;

    #[derive(Clone, Default)]
    pub(crate) struct Unwritten {
        pub(crate) marks: crate::order::Marks,
    }
}

/// Stands in for the streams and uses of the order check.
mod clock {
    pub(crate) use crate::Ticket;

    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct StreamId(pub(crate) u32);

    impl StreamId {
        pub(crate) fn number(self) -> u32 {
            self.0
        }
    }

    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Use {
        pub(crate) stream: StreamId,
        pub(crate) ticket: Ticket,
    }
}

/// Stands in for the source lines of the order check.
mod site {
    #[derive(Clone, Copy, Debug)]
    pub struct Site;

    impl std::fmt::Display for Site {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("site")
        }
    }
}

/// Stands in for the record of which code the runtime is calling. No model calls any that may not
/// wait.
mod reentry {
    pub(crate) enum Caller {
        Waker,
    }

    pub(crate) struct Calling;

    pub(crate) fn calling(_caller: Caller) -> Calling {
        Calling
    }

    pub(crate) fn may_block() -> bool {
        true
    }

    pub(crate) fn may_ask<T>(_what: &T) -> Result<(), crate::Error> {
        Ok(())
    }

    pub(crate) fn refused<T>(_what: &T) -> crate::Error {
        crate::Error
    }

    pub(crate) fn holds_a_device() -> bool {
        false
    }
}

/// Stands in for the runtime's reports. A report fails the model.
mod report {
    pub(crate) fn waker_panicked() {
        panic!("a waker panicked");
    }

    /// Most requests of the models meet the cap.
    pub(crate) fn pinned_cap_reached(_device: &str, _len_bytes: usize, _reserved: usize, _cap: usize) {}
}

#[cfg(test)]
mod models {
    mod budget_waits;
    mod delegation;
    mod exit;
    mod following;
    mod hand_over;
    mod idle;
    mod late;
    mod ledger;
    mod line;
    mod markers;
    mod memory_waits;
    mod pinned_waits;
    mod strand;
    mod timeline;
}
