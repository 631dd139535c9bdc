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
        Site::at(op, Location::caller())
    }

    /// The same for a line that is known already.
    #[inline]
    pub const fn at(op: &'static &'static str, location: &'static Location<'static>) -> Self {
        Site { op, location }
    }

    /// The op: a kernel's name, `copy_to_device`, `wait_stream` …
    #[inline]
    pub fn op(&self) -> &'static str {
        self.op
    }

    /// The op's name, where it stands.
    pub fn name(&self) -> &'static &'static str {
        self.op
    }

    /// The op on its stream, as errors begin: `sum on stream "side" (src/main.rs:31)`.
    pub fn on(self, stream_label: &str) -> impl fmt::Display {
        let (file, line) = (self.location.file(), self.location.line());
        fmt::from_fn(move |f| write!(f, "{} on stream \"{stream_label}\" ({file}:{line})", self.op))
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}:{})", self.op, self.location.file(), self.location.line())
    }
}
