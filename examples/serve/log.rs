//! The lines that the service writes about itself.
//!
//! `println!` panics once the reader of the output has gone, and so would end a service in the
//! middle of its drain. A line that cannot be written is dropped instead.

use std::fmt::Display;
use std::io::{self, Write};

/// Writes a line to the standard output.
pub(crate) fn say(line: impl Display) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// Writes a line to the standard error.
pub(crate) fn warn(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}
