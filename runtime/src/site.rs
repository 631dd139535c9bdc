//! What an op is called and which line asked for it.

use std::fmt;
use std::panic::Location;

/// An op's name and the source line that enqueued it, for errors and traces.
///
/// Two words, because it goes along with every op and into every record of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Site {
    op: &'static &'static str,
    /// The caller's line.
    pub location: &'static Location<'static>,
}

impl Site {
    /// The calling line, under the name `op`.
    #[inline]
    #[track_caller]
    pub fn here(op: &'static &'static str) -> Self {
        Site { op, location: Location::caller() }
    }

    /// The op: a kernel's name, `copy_to_device`, `wait_stream` …
    #[inline]
    pub fn op(&self) -> &'static str {
        self.op
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}:{})", self.op, self.location.file(), self.location.line())
    }
}
