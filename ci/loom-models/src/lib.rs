//! Loom models of the lock-free parts of the crates under `runtime/`, on the production source.
//!
//! The modules below are files of those crates, compiled against the `sync` of this crate instead
//! of that of `warpline-driver`. The models are tests. `ci/loom` runs them. `ci/loom --weakened`
//! shows that each fence they rely on is needed.

#![allow(dead_code, unused_imports, missing_docs, unreachable_pub)]

// The files below name this crate in place of the driver's.
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
mod book;

#[cfg(test)]
mod core;

#[cfg(test)]
mod driver;
#[cfg(test)]
use driver::*;
#[cfg(test)]
use health::Health;

/// Stands in for the background threads. No model needs one, because each thread may signal.
mod background {
    pub(crate) fn detach(_job: impl FnOnce()) {
        unreachable!("the driver may signal on each thread");
    }
}

/// Stands in for the marks of refused ops. No model refuses any.
mod order {
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

/// Stands in for page-locked memory.
mod memory {
    #[derive(Clone, Copy)]
    pub(crate) struct HostEnd;

    impl HostEnd {
        pub(crate) fn address(self) -> u64 {
            1
        }
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
    pub struct Site;
}

/// Stands in for the record of which code the runtime is calling. No model reads it.
mod reentry {
    pub(crate) enum Caller {
        Waker,
    }

    pub(crate) struct Calling;

    pub(crate) fn calling(_caller: Caller) -> Calling {
        Calling
    }
}

/// Stands in for the runtime's reports. A report fails the model.
mod report {
    pub(crate) fn waker_panicked() {
        panic!("a waker panicked");
    }
}

#[cfg(test)]
mod models {
    mod delegation;
    mod exit;
    mod following;
    mod hand_over;
    mod idle;
    mod late;
    mod ledger;
    mod line;
    mod markers;
    mod strand;
    mod timeline;
}
