//! Stands in for the background threads. A job runs on the calling thread, unless that must not
//! run it.

use crate::DeviceId;
use crate::sync::{Arc, Mutex, Notify};
use loom::sync::mpsc::{Sender, channel};
use loom::thread;
use std::cell::RefCell;
use std::future::Future;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Duty {
    None,
    Callback,
}

impl Duty {
    pub(crate) fn is_barred(self) -> bool {
        self == Duty::Callback
    }
}

type Job = Box<dyn FnOnce() + Send>;

thread_local! {
    /// The background thread's jobs, if other threads must not run them. Loom runs all threads of
    /// a model on one thread. `None` is the last job.
    static JOBS: RefCell<Option<Sender<Option<Job>>>> = const { RefCell::new(None) };
}

/// Calls `f` on a thread that must not call the driver, beside a background thread.
pub(crate) fn barred(f: impl FnOnce()) {
    let (jobs, received) = channel::<Option<Job>>();
    JOBS.set(Some(jobs.clone()));
    let background = thread::spawn(move || {
        while let Some(job) = received.recv().unwrap() {
            job();
        }
    });
    f();
    JOBS.set(None);
    jobs.send(None).unwrap();
    background.join().unwrap();
}

pub(crate) fn duty() -> Duty {
    JOBS.with_borrow(|jobs| if jobs.is_some() { Duty::Callback } else { Duty::None })
}

pub(crate) fn detach(job: impl FnOnce() + Send + 'static) {
    let jobs = JOBS.with_borrow(Option::clone).expect("other threads may signal and call the driver");
    jobs.send(Some(Box::new(job))).unwrap();
}

pub(crate) fn run<R: Send + 'static>(f: impl FnOnce() -> R + Send + 'static) -> impl Future<Output = R> {
    let (answer, answered) = (Arc::new(Mutex::new(None)), Arc::new(Notify::new()));
    detach({
        let (answer, answered) = (answer.clone(), answered.clone());
        move || {
            *answer.lock() = Some(f());
            answered.notify_waiters();
        }
    });
    async move {
        loop {
            let next = answered.notified();
            if let Some(answer) = answer.lock().take() {
                return answer;
            }
            next.await;
        }
    }
}

pub(crate) fn pin(_device: DeviceId, job: impl FnOnce()) {
    job();
}

pub(crate) async fn run_pinning<R>(_device: DeviceId, f: impl FnOnce() -> R) -> R {
    f()
}

pub(crate) fn run_where_it_may_block(job: impl FnOnce()) {
    job();
}
