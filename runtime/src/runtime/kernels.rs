//! The settings for kernels of CPU devices.

use super::RuntimeBuilder;
use super::builder::cannot_be_built;
use warpline_cpu::{KernelChecks, KernelForm, KernelOptions};
use warpline_driver::Result;

pub(super) fn defaults() -> KernelOptions {
    KernelOptions {
        #[cfg(feature = "cuda")]
        compile: Some(warpline_cuda::compile_for_cpu),
        ..KernelOptions::default()
    }
}

impl RuntimeBuilder {
    /// Sets the number of threads among which a kernel of a CPU device may divide large work, such
    /// as a product of large matrices. The default is the number of cores.
    ///
    /// One of them is the worker that runs the kernel. The others belong to a pool that all CPU
    /// devices of the runtime share. The pool starts with the first kernel that is large enough.
    /// Results have the same bits for any number.
    ///
    /// With [`Schedule::Seeded`](crate::Schedule::Seeded) each kernel runs on the thread that
    /// polls.
    pub fn kernel_threads(mut self, threads: usize) -> Self {
        self.cpu.kernel_threads = Some(threads);
        self
    }

    /// Sets the code that CPU devices run of kernels that have both a CPU form, the twin, and
    /// device code; [`KernelForm::Twin`] by default. A kernel without a twin runs its device code
    /// always.
    ///
    /// # Errors
    /// `InvalidArgument` from [`build`](Self::build) for another form than `Twin`, if warpline was
    /// built without its feature `ptx`.
    pub fn kernel_form(mut self, form: KernelForm) -> Self {
        self.cpu.kernels.form = form;
        self
    }

    /// Sets the checks of device code that CPU devices run; none by default.
    ///
    /// # Errors
    /// `InvalidArgument` from [`build`](Self::build) if there are any, and warpline was built
    /// without its feature `ptx`.
    pub fn kernel_checks(mut self, checks: KernelChecks) -> Self {
        self.cpu.kernels.checks = checks;
        self
    }

    /// Lets device code that CPU devices run touch any memory of the process. By default, each of
    /// its accesses must lie in its operands, in the memory that the call declares by
    /// [`reads`](crate::kernel::KernelCall::reads) and
    /// [`writes`](crate::kernel::KernelCall::writes), or in its own variables.
    ///
    /// Without bounds:
    /// - An access elsewhere takes effect in whatever memory of the program is there, or ends the
    ///   process by a signal. The order check does not know of it.
    /// - A write to memory that is declared as read takes effect, too.
    /// - With [`KernelForm::Both`], such writes stay when the memory gets its old contents back
    ///   for the twin.
    ///
    /// The checks of alignment, masks and barriers stay on, and
    /// [`kernel_checks`](Self::kernel_checks) watch the operands as before. Races in other memory
    /// are reported by address.
    ///
    /// `WARPLINE_CHECK_KERNELS=no-bounds` does the same for runtimes that read the environment. To
    /// set it is to make the promise below.
    ///
    /// # Safety
    /// Device code that the CPU devices of the runtime run touches only the memory above, and only
    /// as it is declared. The `unsafe` of each [`kernel!`](crate::kernel!) promises this of the
    /// operands. A kernel that follows an address in a scalar also needs callers that pass the
    /// address of declared memory. On a GPU, a broken promise damages memory of the device. Here
    /// it may damage any memory of the process.
    ///
    /// # Errors
    /// `InvalidArgument` from [`build`](Self::build) if warpline was built without its feature
    /// `ptx`.
    pub unsafe fn without_kernel_bounds(mut self) -> Self {
        self.cpu.kernels.without_bounds = true;
        self
    }

    pub(super) fn refuse_missing_feature(&self) -> Result<()> {
        let KernelOptions { form, checks, without_bounds, .. } = self.cpu.kernels;
        let is_default = form == KernelForm::Twin && checks == KernelChecks::default() && !without_bounds;
        if cfg!(feature = "ptx") || is_default {
            return Ok(());
        }
        Err(cannot_be_built(format_args!(
            "kernel_form, kernel_checks or without_kernel_bounds asks for device code on CPU devices, and \
             warpline was built without its feature ptx; build with that feature"
        )))
    }
}
