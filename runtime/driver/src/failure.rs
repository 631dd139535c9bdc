//! A failure as a device's driver reported it.

use crate::error::Error;
use std::fmt;

/// A failure as a device's driver reported it: its text and, if there is one, its number.
///
/// It is the [`source`](std::error::Error::source) of an [`Error`](crate::Error) that a driver call
/// caused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverFailure {
    text: String,
    code: Option<u32>,
}

impl DriverFailure {
    /// Returns the failure with the driver's number for it, such as a `CUresult` of CUDA.
    pub fn with_code(mut self, code: u32) -> Self {
        self.code = Some(code);
        self
    }

    /// Returns the failure with another text and the same number.
    pub fn with_text(mut self, text: String) -> Self {
        self.text = text;
        self
    }

    /// Returns the driver's number for the failure, if it has one.
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

/// The failure of a call that is refused because of an earlier error: the error's text and its
/// [`cuda_code`](Error::cuda_code).
impl From<&Error> for DriverFailure {
    fn from(error: &Error) -> Self {
        DriverFailure { text: error.to_string(), code: error.cuda_code() }
    }
}

impl fmt::Display for DriverFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for DriverFailure {}
