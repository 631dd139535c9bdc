//! The error for text that cannot be lowered.

use std::fmt;

/// A PTX text that parses but cannot be run: an instruction that is not supported, or a name or an
/// operand that does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LowerError {
    /// The line of the text, from 1. It is 0 if the problem has no line.
    pub line: u32,
    /// The problem and the remedy.
    pub problem: String,
}

impl fmt::Display for LowerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.problem),
            line => write!(f, "line {line}: {}", self.problem),
        }
    }
}

impl std::error::Error for LowerError {}
