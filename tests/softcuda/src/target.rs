//! The `.version` and `.target` of PTX text, which decide which drivers and devices accept it.

use std::fmt;

/// A version of the PTX ISA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(pub(crate) u32, pub(crate) u32);

impl Version {
    /// Returns the newest version that a driver accepts. `driver` is the driver's version of CUDA,
    /// 12040 for 12.4.
    ///
    /// The source is the "PTX ISA Release History" in the PTX ISA's release notes, as
    /// `cuda.bindings.utils` of cuda-python implements it. From PTX 7.0 (CUDA 11.0) on, the minor
    /// versions of PTX and CUDA agree, except that CUDA 12.6 brought no new PTX. CUDA 12.7 to 12.9
    /// are therefore one minor version ahead of PTX.
    pub(crate) fn newest_of(driver: i32) -> Version {
        match (driver / 1000, driver % 1000 / 10) {
            (12, minor @ ..=5) => Version(8, minor as u32),
            (12, 6) => Version(8, 5),
            (12, minor) => Version(8, minor as u32 - 1),
            (major, minor) => Version((major as u32).saturating_sub(4), minor as u32),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// A `.target` such as `sm_70`. Targets with a suffix, such as `sm_90a` and `sm_100f`, run on fewer
/// devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Target {
    major: u32,
    minor: u32,
    /// `a` or `f`.
    suffix: Option<char>,
}

impl Target {
    pub(crate) fn parse(text: &str) -> Option<Target> {
        let number = text.strip_prefix("sm_")?;
        let (number, suffix) = match number.strip_suffix(['a', 'f']) {
            Some(digits) => (digits, number.chars().last()),
            None => (number, None),
        };
        let number: u32 = number.parse().ok()?;
        Some(Target { major: number / 10, minor: number % 10, suffix })
    }

    /// Returns true if its architecture is newer than that of `other`.
    pub(crate) fn is_newer_than(self, other: Target) -> bool {
        (self.major, self.minor) > (other.major, other.minor)
    }

    /// Returns true if a device of this compute capability runs code for the target.
    ///
    /// Code for one architecture runs on all later ones; with `a` only on that one, with `f` only
    /// on later ones of its family (PTX ISA, ".target").
    pub(crate) fn runs_on(self, (major, minor): (u32, u32)) -> bool {
        match self.suffix {
            Some('a') => (self.major, self.minor) == (major, minor),
            Some(_) => self.major == major && self.minor <= minor,
            None => (self.major, self.minor) <= (major, minor),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_take_the_isa_of_their_cuda_and_those_before() {
        let newest = [11_000, 11_080, 12_000, 12_010, 12_050, 12_060, 12_070, 12_090, 13_000, 13_010];
        let expected = ["7.0", "7.8", "8.0", "8.1", "8.5", "8.5", "8.6", "8.8", "9.0", "9.1"];
        assert_eq!(newest.map(|driver| Version::newest_of(driver).to_string()), expected);
        assert!(Version(7, 8) < Version(8, 0));
    }

    #[test]
    fn text_for_one_architecture_runs_on_later_ones() {
        let runs = |text: &str, capability| Target::parse(text).unwrap().runs_on(capability);
        assert!(
            runs("sm_60", (6, 0))
                && runs("sm_60", (6, 1))
                && runs("sm_70", (10, 0))
                && runs("sm_120", (12, 1))
        );
        assert!(!runs("sm_70", (6, 1)) && !runs("sm_90", (8, 9)));
        assert!(runs("sm_90a", (9, 0)) && !runs("sm_90a", (10, 0)));
        assert!(runs("sm_100f", (10, 3)) && !runs("sm_100f", (12, 0)));
        assert_eq!([Target::parse("sm_"), Target::parse("compute_70")], [None; 2]);
    }
}
