//! Turns environment variables into the settings of a runtime.
//!
//! [`Runtime::new`](super::Runtime::new) and the default runtime get their settings here.

use super::RuntimeBuilder;
use std::ffi::OsString;
use std::num::NonZero;
use std::str::FromStr;
use warpline_driver::environment::{
    Variable, WARPLINE_CHECK_KERNELS, WARPLINE_CPU_DEVICES, WARPLINE_KERNELS, WARPLINE_ORDER,
    WARPLINE_SCHEDULE, WARPLINE_SYNC,
};
use warpline_driver::{Error, ErrorKind, Result};

impl RuntimeBuilder {
    /// Returns a builder with the settings from the environment, and the defaults for variables
    /// that are not set.
    ///
    /// [`Runtime::new`](crate::Runtime::new) and the default runtime use these settings. A method
    /// called on the builder overrides a variable.
    ///
    /// | variable | values | sets |
    /// |---|---|---|
    /// | `WARPLINE_ORDER` | `deny`, `warn`, `wait`, `off` | [`order`](Self::order) |
    /// | `WARPLINE_SYNC` | `off`, `warn`, `error` | [`sync`](Self::sync) |
    /// | `WARPLINE_SCHEDULE` | `threads`, `seeded:N` | [`schedule`](Self::schedule) |
    /// | `WARPLINE_CPU_DEVICES` | 1 or more | [`cpu_devices`](Self::cpu_devices) |
    /// | `WARPLINE_KERNELS` | `twin`, `ptx`, `both` | [`kernel_form`](Self::kernel_form) |
    /// | `WARPLINE_CHECK_KERNELS` | `races,init,sync,no-bounds` | [checks], [bounds] |
    /// | `WARPLINE_WAKE_UP` | `low-power`, `balanced`, `low-latency` | `wake_up` of CUDA devices |
    /// | `WARPLINE_COMPLETION` | `word`, `event` | `event`: `complete_by_events` of CUDA devices |
    ///
    /// The last two are read in builds with the feature `cuda`.
    ///
    /// [checks]: Self::kernel_checks
    /// [bounds]: Self::without_kernel_bounds
    ///
    /// # Errors
    /// `InvalidArgument` if a variable has another value; the error names the variable, its value
    /// and the expected values.
    ///
    /// # Examples
    /// ```
    /// use warpline::{OrderMode, RuntimeBuilder};
    ///
    /// # fn main() -> warpline::Result<()> {
    /// let runtime = RuntimeBuilder::from_env()?.cpu_devices(2).build()?;
    /// // Unless WARPLINE_ORDER is set.
    /// assert_eq!(runtime.order(), OrderMode::Deny);
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_env() -> Result<Self> {
        Self::from_variables(Variable::value)
    }

    /// Returns the default settings, with those of kernels from the environment.
    ///
    /// # Errors
    /// The errors of [`from_env`](Self::from_env).
    #[cfg(feature = "test-util")]
    pub(crate) fn with_kernels_from_env() -> Result<Self> {
        let mut builder = Self::default();
        builder.cpu.kernels = Self::from_env()?.cpu.kernels;
        Ok(builder)
    }

    fn from_variables(variable: impl Fn(Variable) -> Option<OsString>) -> Result<Self> {
        let mut builder = Self::default();
        set(&variable, WARPLINE_ORDER, "deny, warn, wait or off", &mut builder.order, parsed)?;
        set(&variable, WARPLINE_SYNC, "off, warn or error", &mut builder.sync, parsed)?;
        set(&variable, WARPLINE_SCHEDULE, "threads or seeded:N", &mut builder.cpu.schedule, parsed)?;
        let devices = "a number of devices, 1 or more";
        set(&variable, WARPLINE_CPU_DEVICES, devices, &mut builder.cpu_devices, |text| {
            parsed(text).map(NonZero::<u32>::get)
        })?;
        // Scripts clear these two for single runs, by empty texts.
        let of_kernels = |name| variable(name).filter(|value| !value.is_empty());
        set(of_kernels, WARPLINE_KERNELS, "twin, ptx or both", &mut builder.cpu.kernels.form, parsed)?;
        let several = "races, init, sync or no-bounds, or several of them between commas";
        let kernels = builder.cpu.kernels;
        set(of_kernels, WARPLINE_CHECK_KERNELS, several, &mut builder.cpu.kernels, |text| {
            kernels.with_checks(text)
        })?;
        #[cfg(feature = "cuda")]
        {
            use warpline_driver::environment::{WARPLINE_COMPLETION, WARPLINE_WAKE_UP};
            let wake_up = "low-power, balanced or low-latency";
            set(&variable, WARPLINE_WAKE_UP, wake_up, &mut builder.cuda.wake_up, parsed)?;
            set(&variable, WARPLINE_COMPLETION, "word or event", &mut builder.cuda.by_events, |text| {
                match text {
                    "word" => Some(false),
                    "event" => Some(true),
                    _ => None,
                }
            })?;
        }
        Ok(builder)
    }
}

fn parsed<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

/// Sets `slot` to the parsed value of the variable, and leaves it unchanged if the variable is not
/// set.
fn set<T>(
    variable: impl Fn(Variable) -> Option<OsString>,
    name: Variable,
    expected: &str,
    slot: &mut T,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<()> {
    let Some(value) = variable(name) else { return Ok(()) };
    *slot = value.to_str().and_then(parse).ok_or_else(|| {
        let why = format!("{name} is \"{}\"; expected {expected}", value.display());
        Error::new(ErrorKind::InvalidArgument, why)
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KernelChecks, KernelForm, OrderMode, Schedule};

    fn with(name: &'static str, value: impl Into<OsString>) -> Result<RuntimeBuilder> {
        let value = value.into();
        RuntimeBuilder::from_variables(|asked| (asked.to_string() == name).then(|| value.clone()))
    }

    #[test]
    fn each_variable_sets_what_it_names() {
        assert_eq!(with("WARPLINE_ORDER", "warn").unwrap().order, OrderMode::Warn);
        assert_eq!(with("WARPLINE_SYNC", "error").unwrap().sync, crate::SyncMode::Error);
        assert_eq!(with("WARPLINE_SCHEDULE", "seeded:7").unwrap().cpu.schedule, Schedule::Seeded(7));
        assert_eq!(with("WARPLINE_CPU_DEVICES", "3").unwrap().cpu_devices, 3);
        assert_eq!(with("WARPLINE_KERNELS", "both").unwrap().cpu.kernels.form, KernelForm::Both);
        assert_eq!(with("WARPLINE_KERNELS", "ptx").unwrap().cpu.kernels.form, KernelForm::Ptx);
        assert_eq!(with("WARPLINE_KERNELS", "").unwrap().cpu.kernels.form, KernelForm::Twin);
        let checks = with("WARPLINE_CHECK_KERNELS", "races,sync").unwrap().cpu.kernels.checks;
        assert_eq!(checks, KernelChecks { races: true, init: false, sync: true });
        let bounds_and_checks = |text: &str| {
            let kernels = with("WARPLINE_CHECK_KERNELS", text).unwrap().cpu.kernels;
            (!kernels.without_bounds, kernels.checks)
        };
        assert_eq!(bounds_and_checks(""), (true, KernelChecks::default()));
        assert_eq!(bounds_and_checks("races,init,sync"), (true, KernelChecks::ALL));
        assert_eq!(bounds_and_checks("no-bounds"), (false, KernelChecks::default()));
        assert_eq!(bounds_and_checks("races, no-bounds,init,sync"), (false, KernelChecks::ALL));
        #[cfg(feature = "cuda")]
        {
            let wake_up = with("WARPLINE_WAKE_UP", "low-latency").unwrap().cuda.wake_up;
            assert_eq!(wake_up, crate::WakeUp::LowLatency);
            assert!(with("WARPLINE_COMPLETION", "event").unwrap().cuda.by_events);
        }
    }

    #[test]
    fn an_unknown_value_is_an_error_that_says_what_is_expected() {
        let says = |name, value: &str, text: &str| {
            let error = with(name, value).unwrap_err();
            assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::InvalidArgument, text));
        };
        says("WARPLINE_ORDER", "", "WARPLINE_ORDER is \"\"; expected deny, warn, wait or off");
        says("WARPLINE_SCHEDULE", "seed:1", "WARPLINE_SCHEDULE is \"seed:1\"; expected threads or seeded:N");
        says("WARPLINE_KERNELS", "cpu", "WARPLINE_KERNELS is \"cpu\"; expected twin, ptx or both");
        for words in ["races,all", "bounds", "no-bounds,", "nobounds", "no-races"] {
            let expected = "expected races, init, sync or no-bounds, or several of them between commas";
            let text = format!("WARPLINE_CHECK_KERNELS is \"{words}\"; {expected}");
            says("WARPLINE_CHECK_KERNELS", words, &text);
        }
        let text = "WARPLINE_CPU_DEVICES is \"two\"; expected a number of devices, 1 or more";
        says("WARPLINE_CPU_DEVICES", "two", text);
    }

    #[test]
    #[cfg(unix)]
    fn a_value_that_is_no_utf8_is_an_error_as_well() {
        use std::os::unix::ffi::OsStringExt;
        let error = with("WARPLINE_ORDER", OsString::from_vec(b"de\xffny".to_vec())).unwrap_err();
        assert_eq!(error.to_string(), "WARPLINE_ORDER is \"de\u{fffd}ny\"; expected deny, warn, wait or off");
    }
}
