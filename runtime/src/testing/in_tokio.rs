//! Seeded runs inside a single-threaded tokio runtime with a paused clock.
//!
//! # What happens when
//! 1. The woken tasks run. When one polls an op, the seed decides whether an op of some stream runs
//!    first, or the tasks continue.
//! 2. When no woken task is left, tokio is about to park, and calls [`Idle::run_one`]: one op runs,
//!    and the tasks that it woke are next.
//! 3. When no op can run either, tokio moves its paused clock to the next timer. One timer is the
//!    runner's own, a day ahead: if it is reached, nothing else can happen.

use super::{from_variables, run_each, stuck};
use crate::runtime::{Runtime, RuntimeBuilder};
use crate::shared::Device;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Waker};
use std::time::Duration;
use warpline_driver::Result;

/// The time on the paused clock after which a pipeline counts as stuck.
const A_DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Like [`for_each_seed`](super::for_each_seed), but inside a tokio runtime, for code that spawns
/// tasks, sleeps or has timeouts.
///
/// Each seed has a current-thread runtime of its own, with a paused clock. The clock moves only
/// when no task and no op can run, and then jumps to the next timer, so timers take no real time. A
/// device is therefore faster than any timer. To test a missed deadline, hold a stream with
/// [`Stream::hold`](crate::Stream::hold). Tasks that are left at the pipeline's end are dropped, as
/// in `#[tokio::test]`, and detached work is drained.
///
/// Call it from a plain `#[test]`. Choices that the seed does not control make a run hard to
/// repeat: `tokio::select!` polls its branches in a random order unless it is `biased;`,
/// `spawn_blocking` uses threads, and sockets are the system's (`tokio::io::duplex` is not).
///
/// # Panics
/// The panics of [`for_each_seed`](super::for_each_seed). A pipeline that has not ended after a day
/// on the paused clock counts as waiting for an event that cannot happen.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tokio::time::timeout;
/// use warpline::testing::for_each_seed_tokio;
///
/// for_each_seed_tokio(0..20, |device| async move {
///     let stream = device.new_stream()?;
///     let gate = stream.hold()?;
///     let mut answer = stream.call(|| 42);
///     let impatient = tokio::spawn(async move {
///         let late = timeout(Duration::from_secs(5), &mut answer).await.is_err();
///         (late, answer.await)
///     });
///     tokio::time::sleep(Duration::from_secs(6)).await;
///     gate.open();
///     let (late, answer) = impatient.await.unwrap();
///     assert!(late);
///     assert_eq!(answer?, 42);
///     Ok(())
/// });
/// ```
pub fn for_each_seed_tokio<F, Fut>(seeds: impl IntoIterator<Item = u64>, mut pipeline: F)
where
    F: FnMut(Device) -> Fut,
    Fut: Future<Output = Result<()>>,
{
    for_each_seed_tokio_on(from_variables(), seeds, |devices| pipeline(devices[0].clone()));
}

/// Like [`for_each_seed_tokio`], with runtimes made by `builder`, whose schedule is replaced. The
/// pipeline gets all their devices.
///
/// # Panics
/// The panics of `for_each_seed_tokio`.
pub fn for_each_seed_tokio_on<F, Fut>(
    builder: RuntimeBuilder,
    seeds: impl IntoIterator<Item = u64>,
    mut pipeline: F,
) where
    F: FnMut(Vec<Device>) -> Fut,
    Fut: Future<Output = Result<()>>,
{
    run_each(builder, seeds, |runtime| drive(runtime, &mut pipeline));
}

fn drive<F, Fut>(runtime: &Runtime, pipeline: &mut F) -> Result<Result<()>, String>
where
    F: FnMut(Vec<Device>) -> Fut,
    Fut: Future<Output = Result<()>>,
{
    if let Some(cpu) = runtime.cpu() {
        cpu.draw_for_tasks();
    }
    let idle = Arc::new(Idle {
        devices: runtime.devices(),
        root: OnceLock::new(),
        others_worked: AtomicBool::new(false),
    });
    // Weak: `idle` holds a waker, and with it the tokio runtime that owns this closure.
    let at_park = Arc::downgrade(&idle);
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .on_thread_park(move || {
            if let Some(idle) = at_park.upgrade() {
                idle.run_one();
            }
        })
        .build()
        .map_err(|error| format!("no tokio runtime could be made: {error}"))?;
    tokio.block_on(async {
        // Called in here, since it may spawn tasks before its first await.
        let mut pipeline = pin!(pipeline(runtime.devices()));
        let mut a_day = pin!(tokio::time::sleep(A_DAY));
        poll_fn(|cx| {
            idle.root.get_or_init(|| cx.waker().clone());
            if let Poll::Ready(output) = pipeline.as_mut().poll(cx) {
                return Poll::Ready(Ok(output));
            }
            a_day
                .as_mut()
                .poll(cx)
                .map(|()| Err(stuck(runtime, "it has not ended after a day on the paused clock", "")))
        })
        .await
    })
}

/// Runs an op when every task waits.
struct Idle {
    devices: Vec<Device>,
    /// The waker of the pipeline. Waking it keeps tokio from parking and from moving its clock.
    root: OnceLock<Waker>,
    /// True if other threads had work at the last look.
    others_worked: AtomicBool,
}

impl Idle {
    /// Runs one op if one can run, and makes tokio poll its tasks again.
    fn run_one(&self) {
        // Look at the other threads first: they may make an op of these devices runnable. The tasks
        // are polled also once after they have finished: their last wake-up may be on its way.
        let others_work =
            self.devices.first().is_some_and(|device| device.shared().runtime.other_threads_have_work());
        let others_worked = self.others_worked.swap(others_work, Ordering::Relaxed);
        let ran = self.devices.first().is_some_and(|device| device.shared().runtime.turn());
        if !ran && (others_work || others_worked) {
            std::thread::yield_now();
        }
        if (ran || others_work || others_worked)
            && let Some(root) = self.root.get()
        {
            root.wake_by_ref();
        }
    }
}
