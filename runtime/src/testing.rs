//! Helpers for tests of pipelines: gates that hold a stream, seeded interleavings, and checks of
//! device code.
//!
//! They need the feature `test-util`, which belongs in `[dev-dependencies]`. Planned faults are
//! methods of [`RuntimeBuilder`], such as [`fail_op`](RuntimeBuilder::fail_op).
//!
//! # Choosing a helper
//! | the code under test | use |
//! |---|---|
//! | awaits ops, channels, `join!` and `select!` of the `futures` crate | [`for_each_seed`] |
//! | also spawns tokio tasks, or uses tokio's timers | [`for_each_seed_tokio`] |
//! | needs several devices or other settings | [`for_each_seed_on`], [`for_each_seed_tokio_on`] |
//! | has to see a slow device | [`Stream::hold`], in any test |
//!
//! Each function runs the pipeline once for each seed, on CPU devices with [`Schedule::Seeded`]: no
//! thread runs ops, and the seed decides which op of which stream runs next. The same seed gives
//! the same interleaving every time, so a failure can be repeated from its seed alone.
//!
//! # Waiting in a pipeline
//! A pipeline can wait for the work of the devices that it is given, and for its own futures and
//! tasks. The seed drives nothing else: not a device of another runtime ([`Device::best`] is the
//! default runtime's), another thread or a socket. If no op can run and no task is woken, the
//! helper panics instead of hanging.
//!
//! The runtime may have other devices too, such as `cuda:0`. The pipeline can wait for their work,
//! but the seed does not decide when that runs, so such a run may not repeat. While they have
//! unfinished work the helper waits, even if a gate holds it.
//!
//! # Inside `#[tokio::test]`
//! A runtime with `Schedule::Seeded` also works in an ordinary async test, one seed at a time:
//!
//! ```
//! # use warpline::{DeviceId, Result, Runtime, Schedule};
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<()> { // #[tokio::test(start_paused = true)]
//! let runtime = Runtime::builder().schedule(Schedule::Seeded(7)).build()?;
//! let device = runtime.device(DeviceId::Cpu(0))?;
//! let stream = device.new_stream()?;
//! let gate = stream.hold()?;
//! let mut slow = stream.call(|| 5);
//! let deadline = std::time::Duration::from_millis(20);
//! // The clock is paused, so this takes no real time.
//! assert!(tokio::time::timeout(deadline, &mut slow).await.is_err());
//! gate.open();
//! assert_eq!(slow.await?, 5);
//! # Ok(())
//! # }
//! ```
//!
//! Ops then run only in polls and queries, so an op whose `Pending` was dropped runs when another
//! future of the runtime is polled. A test that waits for an event that cannot happen hangs.

mod gate;
mod in_tokio;

pub use gate::Gate;
pub use in_tokio::{for_each_seed_tokio, for_each_seed_tokio_on};

#[cfg(feature = "cuda")]
use crate::kernel::Kernel;
use crate::runtime::{Runtime, RuntimeBuilder};
use crate::shared::Device;
#[cfg(doc)]
use crate::shared::Stream;
use crate::sync_mode;
use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use warpline_cpu::{Schedule, Step};
use warpline_driver::Result;

/// Compiles a kernel's CUDA C++ and compares it with the declaration. Needs NVRTC, but no GPU.
///
/// It finds errors that the comparison at the first launch leaves to the compiler, such as a
/// misspelt name or parameters behind a macro. The text is compiled for the newest GPUs that NVRTC
/// supports. PTX is compared without being compiled.
///
/// # Errors
/// - `InvalidArgument`: the text does not compile, with NVRTC's message, or differs from the
///   declaration, or the kernel has no device code.
/// - `Unsupported`: NVRTC was not found, and the comparison that needs no compiler found nothing;
///   or the device code is an image.
///
/// # Examples
/// ```no_run
/// warpline::kernel! {
///     unsafe fn negate(n: u32, y: &mut [f32]) where n as usize == y.len() {
///         descriptor: NEGATE,
///         cuda: "extern \"C\" __global__ void negate(unsigned n, float* y) {
///             unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
///             if (i < n) y[i] = -y[i];
///         }",
///         cpu: |n, y| y[..n as usize].iter_mut().for_each(|y| *y = -*y),
///     }
/// }
///
/// warpline::testing::check_cuda(&NEGATE)?;
/// # Ok::<(), warpline::Error>(())
/// ```
#[cfg(feature = "cuda")]
pub fn check_cuda(kernel: &'static Kernel) -> Result<()> {
    warpline_driver::internal::check_compiled(kernel, warpline_cuda::compile_for_newest)
}

/// Runs `pipeline` once for each seed, each time on `cpu:0` of a new runtime whose schedule is
/// drawn from the seed.
///
/// `WARPLINE_KERNELS` and `WARPLINE_CHECK_KERNELS` apply, and no other variable does.
/// A single-threaded executor runs the pipeline; detached work is drained at its end. The [module
/// docs](self) list the things it can wait for. Use [`for_each_seed_on`] for more devices or
/// another order mode, and [`for_each_seed_tokio`] for code that needs tokio's tasks and timers.
///
/// # Panics
/// If one of the variables has another value than those that it may have.
/// If the pipeline panics, fails, waits for an event that cannot happen, leaves the device failed,
/// or detaches a host function that panics. The seed and the interleaving are printed to standard
/// error first.
pub fn for_each_seed<F, Fut>(seeds: impl IntoIterator<Item = u64>, mut pipeline: F)
where
    F: FnMut(Device) -> Fut,
    Fut: Future<Output = Result<()>>,
{
    for_each_seed_on(from_variables(), seeds, |devices| pipeline(devices[0].clone()));
}

/// Returns the builder of a runtime for each seed.
fn from_variables() -> RuntimeBuilder {
    RuntimeBuilder::with_kernels_from_env().unwrap_or_else(|error| panic!("{error}"))
}

/// Like [`for_each_seed`], with runtimes made by `builder`, whose schedule is replaced. The
/// pipeline gets all their devices.
///
/// # Panics
/// The panics of `for_each_seed`.
pub fn for_each_seed_on<F, Fut>(
    builder: RuntimeBuilder,
    seeds: impl IntoIterator<Item = u64>,
    mut pipeline: F,
) where
    F: FnMut(Vec<Device>) -> Fut,
    Fut: Future<Output = Result<()>>,
{
    run_each(builder, seeds, |runtime| drive(runtime, pipeline(runtime.devices())));
}

/// Calls `drive` with a runtime for each seed, and reports a failure with the seed and the
/// interleaving.
fn run_each(
    builder: RuntimeBuilder,
    seeds: impl IntoIterator<Item = u64>,
    mut drive: impl FnMut(&Runtime) -> Result<Result<()>, String>,
) {
    for seed in seeds {
        let runtime = builder.clone().schedule(Schedule::Seeded(seed)).build();
        let runtime = runtime.unwrap_or_else(|error| panic!("{error}"));
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            drive(&runtime)?.map_err(|error| error.to_string())?;
            drain(&runtime)
        }));
        let why = match &outcome {
            Ok(Ok(())) => continue,
            Ok(Err(why)) => why.clone(),
            Err(panic) if is_without_tokio(&**panic) => {
                "it uses tokio's tasks or timers, and for_each_seed runs none; use for_each_seed_tokio"
                    .to_owned()
            }
            Err(_) => "it panicked".to_owned(),
        };
        eprintln!("seed {seed}: {why}; the interleaving was:");
        for step in runtime.cpu().map(|cpu| cpu.interleaving()).unwrap_or_default() {
            let Step { site, stream, device, ticket } = step;
            eprintln!("  {site} on stream \"{stream}\" of {device}, ticket {ticket}");
        }
        match outcome {
            Err(panic) if !is_without_tokio(&*panic) => resume_unwind(panic),
            _ => panic!("seed {seed}: {why}"),
        }
    }
}

/// Runs at most one piece of the runtime's work. Returns true if it ran one.
fn turn(runtime: &Runtime) -> bool {
    runtime.devices().first().is_some_and(|device| device.shared().runtime.turn())
}

/// Runs the work that the pipeline detached.
fn drain(runtime: &Runtime) -> Result<(), String> {
    loop {
        let others_work = runtime.other_threads_have_work();
        let ran = turn(runtime);
        if !ran && !others_work {
            break;
        }
        if !ran {
            std::thread::yield_now();
        }
    }
    let devices = runtime.devices();
    let panicked = || devices.first()?.shared().runtime.panics.unseen();
    match devices.iter().find_map(Device::fault).or_else(panicked) {
        Some(fault) => Err(format!("detached work failed: {fault}")),
        None => Ok(()),
    }
}

/// Returns true if this is the panic of a tokio function that was called outside a tokio runtime.
fn is_without_tokio(panic: &(dyn Any + Send)) -> bool {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.is_some_and(|text| text.contains("must be called from the context of a Tokio"))
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Polls `future` until it is ready. Fails if no waker was called and no op can run, since it can
/// then never be ready.
fn drive<F: Future>(runtime: &Runtime, future: F) -> Result<F::Output, String> {
    let mut future = pin!(future);
    let woken = Arc::new(Woken(AtomicBool::new(false)));
    let waker = Waker::from(woken.clone());
    let mut cx = Context::from_waker(&waker);
    let mut others_worked = false;
    loop {
        let polling = sync_mode::polling();
        let polled = future.as_mut().poll(&mut cx);
        drop(polling);
        if let Poll::Ready(output) = polled {
            return Ok(output);
        }
        if woken.0.swap(false, Ordering::AcqRel) {
            continue;
        }
        // Look at the other threads first: they may make an op of these devices runnable.
        let others_work = std::mem::replace(&mut others_worked, runtime.other_threads_have_work());
        let ran = turn(runtime);
        if !ran && (others_work || others_worked) {
            // Also once after they have finished: their last wake-up may be on its way.
            std::thread::yield_now();
            continue;
        }
        if !ran && !woken.0.swap(false, Ordering::AcqRel) {
            let tokio = "for a task or timer of tokio's (use for_each_seed_tokio), ";
            return Err(stuck(runtime, "no op can run and nothing wakes it", tokio));
        }
    }
}

/// Returns the report on a pipeline that can never end. It names the held streams or, if there are
/// none, other things that the pipeline may wait for.
fn stuck(runtime: &Runtime, state: &str, tokio: &str) -> String {
    let held = runtime.cpu().map(|cpu| cpu.held()).unwrap_or_default();
    let why = if held.is_empty() {
        format!(
            "its devices have no work left, so it waits for a device of another runtime (Device::best() and \
             Device::open() are of the default one; use the device that the closure receives), for another \
             thread, {tokio}or for a lease or lock that it holds itself"
        )
    } else {
        format!("{}; open the gate before awaiting the work behind it", held.join(", "))
    };
    format!("it waits for something that cannot happen: {state}; {why}")
}
