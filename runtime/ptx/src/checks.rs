//! The checks that a launch may ask for.

use std::fmt;
use std::str::FromStr;

/// The checks of a launch that cost time. Alignment, masks of lanes and deadlocks are always
/// checked, and so are bounds, except with [`Memory::Unchecked`](crate::Memory::Unchecked).
///
/// A launch with checks runs on one thread of the host.
///
/// # Examples
/// ```
/// use warpline_ptx::Checks;
///
/// let checks: Checks = "races,init".parse()?;
/// assert_eq!(checks, Checks { races: true, init: true, sync: false });
/// let error = "races,bounds".parse::<Checks>().unwrap_err();
/// assert!(error.to_string().starts_with("\"bounds\" is not a check of kernels"));
/// # Ok::<(), warpline_ptx::UnknownCheck>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    /// Reports two accesses to the same bytes, at least one of them a write, that nothing orders.
    pub races: bool,
    /// Reports reads of bytes that nothing has written, and bytes of an operand with
    /// [`is_undefined`](crate::Region::is_undefined) that the launch has not written at its end.
    pub init: bool,
    /// Reports a barrier of all threads of the block or cluster that some of them do not reach,
    /// one of the block that they reach at two instructions, and a shuffle from a lane that has
    /// exited.
    pub sync: bool,
}

impl Checks {
    /// All checks.
    pub const ALL: Checks = Checks { races: true, init: true, sync: true };

    /// Returns whether there is any.
    pub const fn any(self) -> bool {
        self.races || self.init || self.sync
    }
}

impl FromStr for Checks {
    type Err = UnknownCheck;

    /// Parses names between commas, such as `races,init,sync`. An empty text has no check.
    fn from_str(text: &str) -> Result<Self, UnknownCheck> {
        let mut checks = Checks::default();
        for name in text.split(',').map(str::trim).filter(|_| !text.trim().is_empty()) {
            match name {
                "races" => checks.races = true,
                "init" => checks.init = true,
                "sync" => checks.sync = true,
                _ => return Err(UnknownCheck { name: name.to_owned() }),
            }
        }
        Ok(checks)
    }
}

/// A name that no check has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownCheck {
    /// The name as it was written, without spaces around it.
    pub name: String,
}

impl fmt::Display for UnknownCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is not a check of kernels; expected races, init or sync, or several of them between commas",
            self.name
        )
    }
}

impl std::error::Error for UnknownCheck {}
