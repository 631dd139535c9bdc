//! What a profiler shows in the host's row: a range for each op that is put on a stream, as long as its driver calls take.
//!
//! Ranges are NVTX's: Nsight Systems and whatever else takes part in that protocol ([`tool`]) shows them. They are of the domain
//! `warpline` and of the calling thread, nested with the ranges of others, so that a tool which traces CUDA can also show what the
//! device did for them. A range's text is that of errors, `saxpy on stream "compute" (src/step.rs:88)`: the same for each op of a
//! line, for who adds them up. Its payload is the ticket.
//!
//! The tool is looked for once a process, when the first CUDA device is opened. Where there is none an op costs one load and one
//! branch.

mod tool;

use std::marker::PhantomData;
use std::sync::{Once, OnceLock};
use tool::Domain;
use warpline_driver::Site;
use warpline_driver::timeline::Ticket;

static DOMAIN: OnceLock<Domain> = OnceLock::new();

/// Lets a profiler take part that wants to.
pub(crate) fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| match tool::attach(c"warpline") {
        Ok(Some(domain)) => DOMAIN.set(domain).unwrap_or_else(|_| unreachable!("it is set once")),
        Ok(None) => {}
        Err(why) => crate::report::no_profiler(&why),
    });
}

/// Begins the range of an op on the stream of that label. `None` if nobody profiles.
#[inline]
pub(crate) fn range(site: Site, label: &str, ticket: Ticket) -> Option<Range> {
    DOMAIN.get().map(|domain| Range::begin(domain, site, label, ticket))
}

/// The range of an op, on the thread that began it, until this is dropped.
pub(crate) struct Range {
    domain: &'static Domain,
    of_this_thread: PhantomData<*const ()>,
}

impl Range {
    #[cold]
    fn begin(domain: &'static Domain, site: Site, label: &str, ticket: Ticket) -> Self {
        domain.push(site.on(label), ticket);
        Range { domain, of_this_thread: PhantomData }
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        self.domain.pop();
    }
}
