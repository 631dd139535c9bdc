//! Calls that may take milliseconds, or that the calling thread must not make, on a thread that no executor owns.
//!
//! One thread a process, made at the first such call and asleep between them.
//!
//! There are threads that are not to call the driver at all: one that others wait for, and one on which the driver forbids it.
//! Both drop what users left with them, and with it perhaps the last of a stream or of a device. They are **barred**: what would
//! call the driver there is done here.

use crossbeam_channel::Sender;
use std::cell::Cell;
use std::sync::OnceLock;

type Job = Box<dyn FnOnce() + Send>;

static JOBS: OnceLock<Sender<Job>> = OnceLock::new();

fn jobs() -> &'static Sender<Job> {
    JOBS.get_or_init(|| {
        let (sender, receiver) = crossbeam_channel::unbounded::<Job>();
        std::thread::Builder::new()
            .name("warpline-host".into())
            .spawn(move || receiver.into_iter().for_each(run_job))
            .expect("a thread can be started");
        sender
    })
}

/// What panics here belongs to others, who are told of it by what they do not get.
fn run_job(job: Job) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)).is_err() {
        crate::report::drop_panicked();
    }
}

/// Calls `f` on that thread.
pub(crate) async fn run<R: Send + 'static>(f: impl FnOnce() -> R + Send + 'static) -> R {
    let (answer, answered) = tokio::sync::oneshot::channel();
    detach(move || {
        // The asker may have gone away; then nobody wants the answer.
        let _ = answer.send(f());
    });
    answered.await.expect("the job answers or panics")
}

/// Calls `f` on that thread, and nobody waits for it.
pub(crate) fn detach(f: impl FnOnce() + Send + 'static) {
    jobs().send(Box::new(f)).expect("the thread lives as long as the process");
}

/// What a thread of ours or a driver's must not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Duty {
    /// Nothing: it is a user's.
    None,
    /// Block: others wait for it.
    #[cfg_attr(
        not(feature = "cuda"),
        expect(dead_code, reason = "only drivers whose progress somebody watches")
    )]
    Reactor,
    /// Call the driver, which is calling it.
    #[cfg_attr(
        not(feature = "cuda"),
        expect(dead_code, reason = "only drivers that call host functions themselves")
    )]
    Callback,
}

thread_local! {
    static DUTY: Cell<Duty> = const { Cell::new(Duty::None) };
}

/// What the calling thread is.
#[inline]
pub(crate) fn duty() -> Duty {
    DUTY.get()
}

/// Says what the calling thread is; what it was.
#[cfg(feature = "cuda")]
pub(crate) fn set_duty(duty: Duty) -> Duty {
    DUTY.replace(duty)
}

/// Calls `f`, which may block: here, or where it holds up nobody.
pub(crate) fn run_where_it_may_block(f: impl FnOnce() + Send + 'static) {
    match duty() {
        Duty::None => f(),
        Duty::Reactor | Duty::Callback => detach(f),
    }
}
