//! For tests of pipelines: gates that hold a stream, every interleaving a seed can draw, and checks
//! of kernels' device code.

use crate::device::Device;
use crate::driver::cpu::Schedule;
use crate::driver::{Command, Point};
use crate::error::Result;
#[cfg(feature = "cuda")]
use crate::kernel::Kernel;
use crate::runtime::{Runtime, RuntimeBuilder};
use crate::site::Site;
use crate::stream::Stream;
use crate::timeline::Timeline;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// Holds a stream until it is opened. Dropping it opens it.
#[derive(Debug)]
pub struct Gate {
    timeline: Arc<Timeline>,
}

impl Gate {
    /// Lets the stream go on.
    pub fn open(self) {}
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.timeline.complete(1);
    }
}

impl Stream {
    /// Holds what is enqueued from now on until the returned gate is opened. Takes a ticket.
    ///
    /// CUDA frees memory by waiting for the whole device. What runtimes and caches give back while a gate of the process is closed is
    /// freed when none is, but an allocation that needs cached memory given back waits for the gates.
    ///
    /// On a CUDA device without stream memory operations a host function waits, and host functions of other streams may have to wait
    /// for it.
    ///
    /// # Errors
    /// The stream is closed or its device has failed. `Driver` on a CUDA device without stream memory operations while another gate
    /// is closed.
    #[track_caller]
    pub fn hold(&self) -> Result<Gate> {
        let gate = Gate { timeline: Arc::new(Timeline::new()) };
        let point = Point { timeline: gate.timeline.clone(), ticket: 1, event: None };
        self.core().enqueue_plain("wait", Site::here(&"hold"), || Command::Wait(point))?;
        Ok(gate)
    }
}

/// Compiles a kernel's CUDA C++ and compares it with the declaration. Needs NVRTC, and no GPU.
///
/// It notices errors that the comparison at the first launch leaves to the compiler, such as a
/// misspelt name or parameters behind a macro. The text is compiled for the newest GPUs that NVRTC
/// knows. PTX is compared without being compiled.
///
/// # Errors
/// - `InvalidArgument`: the text does not compile, with what NVRTC says, or differs from the
///   declaration, or the kernel has no device code.
/// - `Unsupported`: NVRTC was not found, or the device code is an image.
///
/// # Examples
/// ```no_run
/// warpline_runtime::kernel! {
///     unsafe fn negate(n: u32, y: &mut [f32]) where n as usize <= y.len() {
///         descriptor: NEGATE,
///         cuda: "extern \"C\" __global__ void negate(unsigned n, float* y) {
///             unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
///             if (i < n) y[i] = -y[i];
///         }",
///         cpu: |n, y| y[..n as usize].iter_mut().for_each(|y| *y = -*y),
///     }
/// }
///
/// warpline_runtime::testing::check_cuda(&NEGATE)?;
/// # Ok::<(), warpline_runtime::Error>(())
/// ```
#[cfg(feature = "cuda")]
pub fn check_cuda(kernel: &'static Kernel) -> Result<()> {
    kernel.check_compiled()
}

/// Runs `pipeline` once for each seed, each time on `cpu:0` of a runtime of its own whose schedule the seed draws.
///
/// The pipeline is run by a one-threaded executor; work that it detached is drained at its end. It must not wait for other
/// threads or clocks. Use [`for_each_seed_on`] for more devices or another order mode.
///
/// # Panics
/// If the pipeline panics, fails, waits for something that cannot happen, or leaves the device failed: after printing the
/// seed and the interleaving that led there.
pub fn for_each_seed<F, Fut>(seeds: impl IntoIterator<Item = u64>, mut pipeline: F)
where
    F: FnMut(Device) -> Fut,
    Fut: Future<Output = Result<()>>,
{
    for_each_seed_on(Runtime::builder(), seeds, |devices| pipeline(devices[0].clone()));
}

/// Like [`for_each_seed`], with runtimes made by `builder`, whose schedule is replaced; the pipeline gets all their devices.
///
/// # Panics
/// As `for_each_seed`.
pub fn for_each_seed_on<F, Fut>(
    builder: RuntimeBuilder,
    seeds: impl IntoIterator<Item = u64>,
    mut pipeline: F,
) where
    F: FnMut(Vec<Device>) -> Fut,
    Fut: Future<Output = Result<()>>,
{
    for seed in seeds {
        let runtime = match builder.clone().schedule(Schedule::Seeded(seed)).build() {
            Ok(runtime) => runtime,
            Err(error) => panic!("{error}"),
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| run(&runtime, pipeline(runtime.devices()))));
        let why = match &outcome {
            Ok(Ok(())) => continue,
            Ok(Err(why)) => why.clone(),
            Err(_) => "it panicked".to_owned(),
        };
        eprintln!("seed {seed}: {why}; the interleaving was:");
        for step in runtime.cpu().map(|cpu| cpu.interleaving()).unwrap_or_default() {
            eprintln!(
                "  {} on stream \"{}\" of {}, ticket {}",
                step.site, step.stream, step.device, step.ticket
            );
        }
        match outcome {
            Err(panic) => resume_unwind(panic),
            Ok(_) => panic!("seed {seed}: {why}"),
        }
    }
}

fn run<Fut: Future<Output = Result<()>>>(runtime: &Runtime, pipeline: Fut) -> Result<(), String> {
    drive(runtime, pipeline)?.map_err(|error| error.to_string())?;
    while runtime.devices().iter().any(|device| device.shared().driver.turn()) {}
    match runtime.devices().iter().find_map(Device::fault) {
        Some(fault) => Err(format!("detached work failed: {fault}")),
        None => Ok(()),
    }
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Polls until it is ready. If nobody has woken it and no op can run, it never will be.
fn drive<F: Future>(runtime: &Runtime, future: F) -> Result<F::Output, String> {
    let mut future = pin!(future);
    let woken = Arc::new(Woken(AtomicBool::new(false)));
    let waker = Waker::from(woken.clone());
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return Ok(output);
        }
        if woken.0.swap(false, Ordering::AcqRel) {
            continue;
        }
        let ran = runtime.devices().iter().any(|device| device.shared().driver.turn());
        if !ran && !woken.0.swap(false, Ordering::AcqRel) {
            return Err(
                "it waits for something that cannot happen: no op can run and nothing wakes it".to_owned()
            );
        }
    }
}
