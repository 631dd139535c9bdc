//! The name of an op and the source line that enqueued it.

use std::fmt;
use std::panic::Location;

/// An op's name and the source line that enqueued it, for errors and traces.
///
/// It is two words long, because every op and every record of a history holds one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Site {
    op: &'static &'static str,
    /// The caller's source line.
    pub location: &'static Location<'static>,
}

impl Site {
    /// Returns the site of the calling line, with the name `op`.
    #[inline]
    #[track_caller]
    pub fn here(op: &'static &'static str) -> Self {
        Site::at(op, Location::caller())
    }

    /// Returns the site of a line that is already known, with the name `op`.
    #[inline]
    pub const fn at(op: &'static &'static str, location: &'static Location<'static>) -> Self {
        Site { op, location }
    }

    /// Returns the op's name: a kernel's name, `copy_to_device`, `wait_stream` …
    #[inline]
    pub fn op(&self) -> &'static str {
        self.op
    }

    /// Returns a reference to the op's name, as [`at`](Self::at) takes it.
    pub fn name(&self) -> &'static &'static str {
        self.op
    }

    /// Formats the op with its stream, as errors begin: `sum on stream "side" (src/main.rs:31)`.
    pub fn on(self, stream_label: &str) -> impl fmt::Display {
        let (file, line) = (self.location.file(), self.location.line());
        Formatted(move |f: &mut fmt::Formatter<'_>| {
            write!(f, "{} on stream \"{stream_label}\" ({file}:{line})", self.op)
        })
    }
}

/// A closure that formats.
///
/// It stands in for `fmt::from_fn`, which the oldest supported compiler does not have.
pub(crate) struct Formatted<F>(pub(crate) F);

impl<F: Fn(&mut fmt::Formatter<'_>) -> fmt::Result> fmt::Display for Formatted<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (self.0)(f)
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}:{})", self.op, self.location.file(), self.location.line())
    }
}
