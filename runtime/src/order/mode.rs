//! What happens when the check finds a missing edge.

use crate::error::{Error, ErrorKind};
use std::str::FromStr;

/// What the order check does about an op that is not ordered after an earlier conflicting use of the same memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OrderMode {
    /// Refuse the op.
    #[default]
    Deny,
    /// Warn once for each pair of source lines, and run it. The warning is a `tracing` event, or a
    /// line on standard error where no subscriber is set.
    Warn,
    /// Insert the missing edge and run it.
    Wait,
    /// Do not check.
    Off,
}

impl FromStr for OrderMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "deny" => Ok(OrderMode::Deny),
            "warn" => Ok(OrderMode::Warn),
            "wait" => Ok(OrderMode::Wait),
            "off" => Ok(OrderMode::Off),
            _ => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("\"{text}\" is not an order mode: expected deny, warn, wait or off"),
            )),
        }
    }
}
