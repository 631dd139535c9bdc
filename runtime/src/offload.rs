//! Calls that may take milliseconds, on a thread that no executor owns.
//!
//! One thread a process, made at the first such call and asleep between them.

use crossbeam_channel::Sender;
use std::sync::OnceLock;

type Job = Box<dyn FnOnce() + Send>;

static JOBS: OnceLock<Sender<Job>> = OnceLock::new();

/// Calls `f` on that thread.
pub(crate) async fn run<R: Send + 'static>(f: impl FnOnce() -> R + Send + 'static) -> R {
    let jobs = JOBS.get_or_init(|| {
        let (sender, receiver) = crossbeam_channel::unbounded::<Job>();
        std::thread::Builder::new()
            .name("warpline-host".into())
            .spawn(move || receiver.into_iter().for_each(|job| job()))
            .expect("a thread can be started");
        sender
    });
    let (answer, answered) = tokio::sync::oneshot::channel();
    let job = Box::new(move || {
        // The asker may have gone away; then nobody wants the answer.
        let _ = answer.send(f());
    });
    jobs.send(job).expect("the thread lives as long as the process");
    answered.await.expect("the job answers or panics")
}
