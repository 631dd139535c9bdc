//! A failure as a device's driver reported it.

use std::fmt;

/// A failure as a device's driver reported it: in words, and by number where it has one.
///
/// The [`source`](std::error::Error::source) of an [`Error`](crate::Error) that a driver call
/// caused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverFailure {
    text: String,
    code: Option<u32>,
}

impl DriverFailure {
    /// Returns the failure with the driver's number of it: of CUDA, a `CUresult`.
    pub fn with_code(mut self, code: u32) -> Self {
        self.code = Some(code);
        self
    }

    /// The driver's number of the failure.
    pub const fn code(&self) -> Option<u32> {
        self.code
    }
}

impl From<String> for DriverFailure {
    fn from(text: String) -> Self {
        DriverFailure { text, code: None }
    }
}

impl From<&str> for DriverFailure {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl fmt::Display for DriverFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for DriverFailure {}
