//! Calls that may take milliseconds, on a thread that no executor owns.
//!
//! One thread a process, made at the first such call and asleep between them.

use crossbeam_channel::Sender;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

type Job = Box<dyn FnOnce() + Send>;

static JOBS: OnceLock<Sender<Job>> = OnceLock::new();

/// Calls `f` on that thread, some time.
pub(crate) fn later(f: impl FnOnce() + Send + 'static) {
    let jobs = JOBS.get_or_init(|| {
        let (sender, receiver) = crossbeam_channel::unbounded::<Job>();
        let work = move || {
            for job in receiver {
                // What panics is the job's; the thread is everybody's.
                let _ = catch_unwind(AssertUnwindSafe(job));
            }
        };
        let thread = std::thread::Builder::new().name("warpline-host".into());
        thread.spawn(work).expect("a thread can be started");
        sender
    });
    jobs.send(Box::new(f)).expect("the thread lives as long as the process");
}

/// Calls `f` on that thread.
pub(crate) async fn run<R: Send + 'static>(f: impl FnOnce() -> R + Send + 'static) -> R {
    let (answer, answered) = tokio::sync::oneshot::channel();
    later(move || {
        // The asker may have gone away; then nobody wants the answer.
        let _ = answer.send(f());
    });
    answered.await.expect("the job answers or panics")
}
