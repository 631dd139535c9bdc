//! How kernels run: by their CPU forms, the twins, or by their PTX.
//!
//! A twin runs once per launch, PTX each thread of each block. [`KernelForm`] decides which of the
//! two runs for a kernel that has both, or whether both run and are compared (`both`). PTX is
//! loaded with the first launch of a kernel and stays loaded (`code`). A kernel may touch its
//! operands alone (`run`). A fault of it fails the device, as a panic of a twin does.
//!
//! Without the feature `ptx`, kernels without a twin are refused.

#[cfg(feature = "ptx")]
mod both;
#[cfg(feature = "ptx")]
mod code;
#[cfg(feature = "ptx")]
mod run;

use super::kernel_options::{KernelForm, KernelOptions};
use warpline_driver::kernel::{Arg, Kernel, LaunchConfig, Twin};
use warpline_driver::reentry::{self, Caller};
use warpline_driver::{DevicePtr, DriverError, Health, Launch, Plan, Work};

/// The kernels of one device.
#[derive(Debug)]
pub(super) struct Kernels {
    options: KernelOptions,
    #[cfg(feature = "ptx")]
    code: code::Code,
    #[cfg(feature = "ptx")]
    running: run::Running,
}

impl Kernels {
    pub(super) fn new(options: KernelOptions) -> Self {
        Kernels {
            options,
            #[cfg(feature = "ptx")]
            code: code::Code::new(options.compile),
            #[cfg(feature = "ptx")]
            running: run::Running::default(),
        }
    }

    /// Returns the twin of a kernel, if that alone runs whatever device code there is.
    #[inline]
    fn twin_of(&self, kernel: &Kernel) -> Option<Twin> {
        kernel.twin.filter(|_| self.options.form == KernelForm::Twin || cfg!(not(feature = "ptx")))
    }

    /// Prepares a kernel for launches, with this configuration if it is known.
    ///
    /// # Errors
    /// If its PTX is needed and cannot be loaded, or if it asks for other clusters.
    #[inline]
    pub(super) fn prepare(
        &self,
        kernel: &'static Kernel,
        config: Option<&LaunchConfig>,
    ) -> Result<(), DriverError> {
        if self.twin_of(kernel).is_some() { Ok(()) } else { self.load(kernel, config) }
    }

    /// Prepares the kernels of a graph.
    ///
    /// # Errors
    /// The first error of [`prepare`](Self::prepare).
    pub(super) fn prepare_all(&self, plan: &Plan) -> Result<(), DriverError> {
        plan.steps.iter().try_for_each(|step| match &step.work {
            Work::Launch(launch) => self.prepare(launch.kernel, Some(&launch.config)),
            _ => Ok(()),
        })
    }

    #[cfg(feature = "ptx")]
    #[cold]
    fn load(&self, kernel: &'static Kernel, config: Option<&LaunchConfig>) -> Result<(), DriverError> {
        let refused = |why: String| DriverError::Refused(why.into());
        let code = self.code.of(kernel).map_err(refused)?;
        match (code, config) {
            (Some(code), Some(config)) => {
                code.cluster_of(config.grid, config.cluster).map(drop).map_err(refused)
            }
            _ => Ok(()),
        }
    }

    #[cfg(not(feature = "ptx"))]
    #[cold]
    fn load(&self, kernel: &'static Kernel, _: Option<&LaunchConfig>) -> Result<(), DriverError> {
        let why = "it has no CPU form, and warpline was built without its feature ptx; give the kernel a CPU \
                   form (cpu), or build warpline with features = [\"ptx\"]";
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
        self.load(kernel, None).and(Err(DriverError::Refused("it has no variables".into())))
    }

    /// Ends the running PTX of a device that has failed.
    pub(super) fn stop(&self) {
        #[cfg(feature = "ptx")]
        self.running.stop();
    }
}

/// The launches of one op.
#[cfg_attr(not(feature = "ptx"), allow(dead_code, reason = "only PTX needs all of it"))]
pub(super) struct Launching<'a> {
    pub(super) kernels: &'a Kernels,
    pub(super) health: &'a Health,
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
        match self.kernels.twin_of(launch.kernel) {
            Some(twin) => {
                // SAFETY: the caller keeps the twin's rule.
                unsafe { call_twin(twin, &launch.args) };
                Ok(())
            }
            // SAFETY: the caller keeps the twin's rule, which is the same for PTX.
            None => unsafe { self.run_device_code(launch) },
        }
    }

    /// Runs the PTX of a kernel, and its twin too if both are asked for. Without PTX, runs the
    /// twin.
    ///
    /// # Safety
    /// The caller keeps the rules of [`Twin`].
    #[cfg(feature = "ptx")]
    #[cold]
    unsafe fn run_device_code(&self, launch: &Launch) -> Result<(), String> {
        let kernels = self.kernels;
        match (kernels.code.of(launch.kernel)?, launch.kernel.twin) {
            (Some(code), Some(twin)) if kernels.options.form == KernelForm::Both => {
                // SAFETY: the caller keeps the twin's rule.
                unsafe { self.run_both(&code, twin, launch) }
            }
            // SAFETY: the caller keeps the twin's rule, which is the same for PTX.
            (Some(code), _) => unsafe { self.run_ptx(&code, launch) },
            (None, twin) => {
                let twin = twin.expect("a kernel without either is not loaded");
                // SAFETY: the caller keeps the twin's rule.
                unsafe { call_twin(twin, &launch.args) };
                Ok(())
            }
        }
    }

    #[cfg(not(feature = "ptx"))]
    #[cold]
    unsafe fn run_device_code(&self, launch: &Launch) -> Result<(), String> {
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
