//! How kernels run: by their CPU forms, the twins, or by their PTX.
//!
//! A kernel with a twin runs it, once per launch. A kernel without one runs its PTX, each thread of
//! each block. Its PTX is loaded with its first launch and stays loaded (`code`). Its operands are
//! all that it may touch (`run`). A fault of it fails the device, as a panic of a twin does.
//!
//! Without the feature `ptx`, kernels without a twin are refused.

#[cfg(feature = "ptx")]
mod code;
#[cfg(feature = "ptx")]
mod run;

use super::backend::Device;
use warpline_driver::kernel::{Arg, Kernel, Twin};
use warpline_driver::reentry::{self, Caller};
use warpline_driver::{DevicePtr, DriverError, Launch, Plan, Work};

/// The loaded PTX of the kernels of one device.
#[derive(Debug, Default)]
pub(super) struct Kernels {
    #[cfg(feature = "ptx")]
    code: code::Code,
    #[cfg(feature = "ptx")]
    running: run::Running,
}

impl Kernels {
    /// Prepares a kernel for launches.
    ///
    /// # Errors
    /// If its PTX is needed and cannot be loaded.
    #[inline]
    pub(super) fn prepare(&self, kernel: &'static Kernel) -> Result<(), DriverError> {
        if kernel.twin.is_some() { Ok(()) } else { self.load(kernel) }
    }

    /// Prepares the kernels of a graph.
    ///
    /// # Errors
    /// The first error of [`prepare`](Self::prepare).
    pub(super) fn prepare_all(&self, plan: &Plan) -> Result<(), DriverError> {
        plan.steps.iter().try_for_each(|step| match &step.work {
            Work::Launch(launch) => self.prepare(launch.kernel),
            _ => Ok(()),
        })
    }

    #[cfg(feature = "ptx")]
    #[cold]
    fn load(&self, kernel: &'static Kernel) -> Result<(), DriverError> {
        self.code.of(kernel).map(drop).map_err(|why| DriverError::Refused(why.into()))
    }

    #[cfg(not(feature = "ptx"))]
    #[cold]
    fn load(&self, kernel: &'static Kernel) -> Result<(), DriverError> {
        let why = "it has no CPU form, and warpline was built without its feature ptx; give the kernel cpu, or \
                   build with that feature";
        Err(DriverError::Refused(format!("{}: {why}", kernel.name).into()))
    }

    /// Returns the address and the size in bytes of a variable in the module of `kernel`.
    ///
    /// # Errors
    /// If its PTX cannot be loaded, or has no such variable.
    #[cfg(feature = "ptx")]
    pub(super) fn variable(
        &self,
        kernel: &'static Kernel,
        name: &str,
    ) -> Result<(DevicePtr, usize), DriverError> {
        self.code.variable(kernel, name).map_err(|why| DriverError::Refused(why.into()))
    }

    #[cfg(not(feature = "ptx"))]
    pub(super) fn variable(
        &self,
        kernel: &'static Kernel,
        _name: &str,
    ) -> Result<(DevicePtr, usize), DriverError> {
        self.load(kernel).and(Err(DriverError::Refused("it has no variables".into())))
    }

    /// Ends the running PTX of a device that has failed.
    pub(super) fn stop(&self) {
        #[cfg(feature = "ptx")]
        self.running.stop();
    }
}

/// The launches of one op.
pub(super) struct Launching<'a> {
    pub(super) device: &'a Device,
    /// The seed from which the order of warps is drawn.
    pub(super) seed: Option<u64>,
    /// A function called before each kernel: a fault plan may ask for a panic there.
    pub(super) before: &'a dyn Fn(),
}

impl Launching<'_> {
    /// Runs a kernel. A panic of its twin passes through.
    ///
    /// # Errors
    /// The fault of its PTX.
    ///
    /// # Safety
    /// The caller keeps the rules of [`Twin`].
    #[inline]
    pub(super) unsafe fn launch(&self, launch: &Launch) -> Result<(), String> {
        (self.before)();
        match launch.kernel.twin {
            Some(twin) => {
                // SAFETY: the caller keeps the twin's rule.
                unsafe { call_twin(twin, &launch.args) };
                Ok(())
            }
            // SAFETY: the caller keeps the twin's rule, which is the same for PTX.
            None => unsafe { self.run_ptx(launch) },
        }
    }

    #[cfg(not(feature = "ptx"))]
    #[cold]
    unsafe fn run_ptx(&self, launch: &Launch) -> Result<(), String> {
        unreachable!("{} was not prepared", launch.kernel.name)
    }
}

/// # Safety
/// The caller keeps the rules of [`Twin`].
#[inline]
unsafe fn call_twin(twin: Twin, args: &[Arg]) {
    let _calling = reentry::calling(Caller::Twin);
    // SAFETY: the caller keeps the twin's rule.
    unsafe { twin(args) }
}
