//! Calls that may take milliseconds, on a thread that no executor owns.
//!
//! One thread a process, made at the first such call and asleep between them.
//!
//! There are threads that are not to call the driver at all: one that others wait for, and one on which the driver forbids it.
//! Both drop what users left with them, and with it perhaps the last of a stream or of a device. They are **barred**: what would
//! call the driver there is done here.

use crossbeam_channel::Sender;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

type Job = Box<dyn FnOnce() + Send>;

static JOBS: OnceLock<Sender<Job>> = OnceLock::new();

thread_local! {
    static BARRED: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is not to call the driver.
#[inline]
pub(crate) fn is_barred() -> bool {
    BARRED.get()
}

/// Bars this thread, or ends that. What it was before.
#[cfg(feature = "cuda")]
pub(crate) fn bar(barred: bool) -> bool {
    BARRED.replace(barred)
}

/// Calls `f`, which calls the driver: here, or on that thread if this one is barred.
pub(crate) fn call(f: impl FnOnce() + Send + 'static) {
    if is_barred() {
        let _ = jobs().send(Box::new(f));
    } else {
        f();
    }
}

/// Calls `f` on that thread.
pub(crate) async fn run<R: Send + 'static>(f: impl FnOnce() -> R + Send + 'static) -> R {
    let (answer, answered) = tokio::sync::oneshot::channel();
    let job = Box::new(move || {
        // The asker may have gone away; then nobody wants the answer.
        let _ = answer.send(f());
    });
    jobs().send(job).expect("the thread lives as long as the process");
    answered.await.expect("the job answers or panics")
}

fn jobs() -> &'static Sender<Job> {
    JOBS.get_or_init(|| {
        let (sender, receiver) = crossbeam_channel::unbounded::<Job>();
        let work = move || {
            for job in receiver {
                // What a panic leaves is the asker's to find.
                let _ = catch_unwind(AssertUnwindSafe(job));
            }
        };
        let thread = std::thread::Builder::new().name("warpline-host".into());
        thread.spawn(work).expect("a thread can be started");
        sender
    })
}
