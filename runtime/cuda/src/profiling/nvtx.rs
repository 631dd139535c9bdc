//! NVTX ranges for profilers, one for each op that is enqueued.
//!
//! A range lasts as long as the op's CUDA calls, and a profiler shows it in the host's row.
//! Nsight Systems shows the ranges, and so does any other tool that takes part in the NVTX protocol
//! ([`tool`]). They belong to the domain `warpline` and to the calling thread, and nest with other
//! code's ranges. So a tool that traces CUDA can also show what the device did for them. A range's
//! text is that of errors, `saxpy on stream "compute" (src/step.rs:88)`. It is the same for each op
//! of a source line, so that tools can add the ops up. Its payload is the ticket.
//!
//! The tool is looked up once per process, when the first CUDA device is opened. If there is none,
//! an op costs one load and one branch.

mod tool;

use std::marker::PhantomData;
use std::sync::{Once, OnceLock};
use tool::Domain;
use warpline_driver::Site;
use warpline_driver::timeline::Ticket;

static DOMAIN: OnceLock<Domain> = OnceLock::new();

/// Attaches the profiler, if one wants to take part.
pub(crate) fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| match tool::attach(c"warpline") {
        Ok(Some(domain)) => DOMAIN.set(domain).unwrap_or_else(|_| unreachable!("it is set once")),
        Ok(None) => {}
        Err(why) => crate::report::no_profiler(&why),
    });
}

/// Begins the range of an op on the stream with that label. Returns `None` if no profiler takes
/// part.
#[inline]
pub(crate) fn range(site: Site, label: &str, ticket: Ticket) -> Option<Range> {
    DOMAIN.get().map(|domain| Range::begin(domain, site, label, ticket))
}

/// The range of an op, on the thread that began it. It ends when this is dropped.
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
