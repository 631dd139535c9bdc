//! The settings for kernels of CPU devices.

use super::RuntimeBuilder;
use warpline_cpu::{CompileCuda, KernelChecks, KernelForm, KernelOptions};
use warpline_driver::{Error, ErrorKind, Result};

/// The compiler of CUDA C++ for CPU devices.
#[cfg(feature = "cuda")]
const COMPILE: Option<CompileCuda> = Some(warpline_cuda::compile_for_cpu);
#[cfg(not(feature = "cuda"))]
const COMPILE: Option<CompileCuda> = None;

pub(super) fn defaults() -> KernelOptions {
    KernelOptions { compile: COMPILE, ..KernelOptions::default() }
}

impl RuntimeBuilder {
    /// Sets the number of threads among which a kernel of a CPU device may divide large work, such
    /// as a product of large matrices. The default is the number of cores.
    ///
    /// One of them is the worker that runs the kernel. The others belong to a pool that all CPU
    /// devices of the runtime share. The pool starts with the first kernel that is large enough.
    /// Results have the same bits for any number.
    ///
    /// With [`Schedule::Seeded`](crate::Schedule::Seeded) each kernel runs on the thread that polls.
    pub fn kernel_threads(mut self, threads: usize) -> Self {
        self.kernel_threads = Some(threads);
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
        self.kernels.form = form;
        self
    }

    /// Sets the checks of device code that CPU devices run; none by default.
    ///
    /// With any of them, CPU devices leave at least 256 bytes between allocations. A kernel that
    /// overruns one operand by a few elements then never touches another operand of its launch, so
    /// that the overrun is reported. An allocation takes up to 512 bytes more.
    ///
    /// # Errors
    /// `InvalidArgument` from [`build`](Self::build) if there are any, and warpline was built
    /// without its feature `ptx`.
    pub fn kernel_checks(mut self, checks: KernelChecks) -> Self {
        self.kernels.checks = checks;
        self
    }

    pub(super) fn refuse_missing_feature(&self) -> Result<()> {
        let KernelOptions { form, checks, .. } = self.kernels;
        if cfg!(feature = "ptx") || (form == KernelForm::Twin && checks == KernelChecks::default()) {
            return Ok(());
        }
        let text = "a runtime cannot be built: kernel_form or kernel_checks asks for device code on CPU devices, and \
                    warpline was built without its feature ptx; build with that feature";
        Err(Error::new(ErrorKind::InvalidArgument, text))
    }
}
