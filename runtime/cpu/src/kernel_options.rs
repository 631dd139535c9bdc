//! The settings for kernels of CPU devices.

use std::str::FromStr;
use warpline_driver::{Error, ErrorKind};

/// The code of a kernel that CPU devices run, if the kernel has both: its CPU form, the *twin*, or
/// its device code.
///
/// Device code is PTX, or CUDA C++ where NVRTC is installed. CPU devices run it in builds with the
/// feature `ptx` alone. In other builds, `RuntimeBuilder::build` refuses all forms but `Twin`, and
/// a launch of a kernel without a twin is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KernelForm {
    /// Runs the twin. A kernel without one runs its device code.
    #[default]
    Twin,
    /// Runs the device code. A kernel without any, or with an image alone, runs its twin.
    Ptx,
    /// Runs both on the same memory, and compares what they write. The device code runs first; then
    /// the memory gets its old contents back, and the twin runs. If an element differs by more than
    /// the kernel's `tolerance`, the launch fails, and the error names the element with both values.
    /// A fault of the device code leaves what it has written.
    Both,
}

impl FromStr for KernelForm {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Ok(match text {
            "twin" => KernelForm::Twin,
            "ptx" => KernelForm::Ptx,
            "both" => KernelForm::Both,
            _ => {
                let why = format!("\"{text}\" is not a form of kernels; expected twin, ptx or both");
                return Err(Error::new(ErrorKind::InvalidArgument, why));
            }
        })
    }
}

/// Checks of device code that runs on CPU devices, besides that of bounds, which
/// `RuntimeBuilder::without_kernel_bounds` switches off. A failed check is a fault of the launch.
///
/// A checked kernel takes several times as long, and runs on one thread. The checks do not apply to
/// twins: [`KernelForm::Ptx`] runs the device code of kernels that have both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct KernelChecks {
    /// Reports two accesses to the same bytes, at least one of them a write, that nothing orders.
    pub races: bool,
    /// Reports reads of bytes that nothing has written, and elements of a `write` parameter that
    /// the kernel has not written.
    pub init: bool,
    /// Reports barriers that some threads of a block do not reach.
    pub sync: bool,
}

impl KernelChecks {
    /// All checks.
    pub const ALL: KernelChecks = KernelChecks { races: true, init: true, sync: true };

    /// Adds the check of this name. Returns false if there is none.
    fn add(&mut self, name: &str) -> bool {
        match name {
            "races" => self.races = true,
            "init" => self.init = true,
            "sync" => self.sync = true,
            _ => return false,
        }
        true
    }
}

impl FromStr for KernelChecks {
    type Err = Error;

    /// Parses names between commas, such as `races,init,sync`. An empty text has no check.
    fn from_str(text: &str) -> Result<Self, Error> {
        let mut checks = KernelChecks::default();
        let Some(name) = names(text).find(|name| !checks.add(name)) else { return Ok(checks) };
        let remedy = match name {
            NO_BOUNDS => {
                "; to switch the bounds off, call RuntimeBuilder::without_kernel_bounds, or set \
                 WARPLINE_CHECK_KERNELS=no-bounds"
            }
            _ => "; expected races, init or sync, or several of them between commas",
        };
        let why = format!("\"{name}\" is not a check of kernels{remedy}");
        Err(Error::new(ErrorKind::InvalidArgument, why))
    }
}

/// The word that switches the bounds off.
const NO_BOUNDS: &str = "no-bounds";

fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|_| !text.is_empty())
}

/// Compiles the CUDA C++ of a kernel to PTX. It gets the kernel's name and the text.
///
/// # Errors
/// `Unsupported` if there is no compiler, `InvalidArgument` with its message about the text.
pub type CompileCuda = fn(&str, &str) -> Result<String, Error>;

/// The options for kernels that the devices of a backend share.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelOptions {
    /// The code that runs.
    pub form: KernelForm,
    /// The checks of device code.
    pub checks: KernelChecks,
    /// True if device code may touch any memory of the process. All device code that runs then
    /// touches its operands alone, as their parameters say.
    pub without_bounds: bool,
    /// The compiler of CUDA C++, if there is one.
    pub compile: Option<CompileCuda>,
}

impl KernelOptions {
    /// Sets the checks that a text names, and switches the bounds off if it has the word
    /// `no-bounds`. Returns `None` if the text has another word.
    pub fn with_checks(mut self, text: &str) -> Option<Self> {
        (self.checks, self.without_bounds) = (KernelChecks::default(), false);
        let mut knows = |name| match name {
            NO_BOUNDS => {
                self.without_bounds = true;
                true
            }
            _ => self.checks.add(name),
        };
        names(text).all(&mut knows).then_some(self)
    }
}
