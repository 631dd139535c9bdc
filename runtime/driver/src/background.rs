//! Calls that may take milliseconds, or that the calling thread must not make, on a thread that no executor owns.
//!
//! Each thread is made at its first call and sleeps between them. A device's `warpline-pin`
//! page-locks host memory and hands over the work that waited for it: both may wait for all work of
//! that device, and so of no other. `warpline-host`, one a process, does the rest. A thread may be
//! waiting for that which would otherwise let a device continue.
//!
//! There are threads that are not to call the driver at all: one that others wait for, and one on which the driver forbids it.
//! Both drop what users left with them, and with it perhaps the last of a stream or of a device. They are **barred**: what would
//! call the driver there is done here.

use crate::device_id::DeviceId;
use crossbeam_channel::Sender;
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::OnceLock;

type Job = Box<dyn FnOnce() + Send>;

/// The jobs of a thread.
#[derive(Clone)]
struct Worker(Sender<Job>);

static HOST: OnceLock<Worker> = OnceLock::new();
static PIN: Mutex<BTreeMap<DeviceId, Worker>> = Mutex::new(BTreeMap::new());

impl Worker {
    fn start(name: &str, duty: Duty) -> Self {
        let (sender, receiver) = crossbeam_channel::unbounded::<Job>();
        std::thread::Builder::new()
            .name(name.into())
            .spawn(move || {
                set_duty(duty);
                receiver.into_iter().for_each(run_job);
            })
            .expect("a thread can be started");
        Worker(sender)
    }

    fn host() -> &'static Self {
        HOST.get_or_init(|| Worker::start("warpline-host", Duty::None))
    }

    fn pin(device: DeviceId) -> Self {
        PIN.lock().entry(device).or_insert_with(|| Worker::start("warpline-pin", Duty::PageLocking)).clone()
    }

    fn take(&self, f: impl FnOnce() + Send + 'static) {
        self.0.send(Box::new(f)).expect("the thread lives as long as the process");
    }
}

/// A panicking job belongs to its submitter, which notices that the answer does not come.
fn run_job(job: Job) {
    let Some(_inside) = crate::process::enter_driver() else {
        // Not even dropped: what it owns may call the driver.
        std::mem::forget(job);
        return;
    };
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)).is_err() {
        crate::report::drop_panicked();
    }
}

/// Calls `f` on `warpline-host`, and nobody waits for it.
pub fn detach(f: impl FnOnce() + Send + 'static) {
    Worker::host().take(f);
}

/// Calls `f`, which page-locks memory or hands over work that waited for that, on the device's
/// `warpline-pin`, and nobody waits for it.
pub fn pin(device: DeviceId, f: impl FnOnce() + Send + 'static) {
    Worker::pin(device).take(f);
}

/// What a thread of ours or a driver's must not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    /// Nothing: it is a user's.
    None,
    /// Block: others wait for it.
    Reactor,
    /// Call the driver, which is calling it.
    Callback,
    /// Drop or call what is a user's: that may wait for work which this thread is to hand over.
    PageLocking,
}

impl Duty {
    /// Returns whether the thread must not call the driver.
    #[inline]
    pub fn is_barred(self) -> bool {
        matches!(self, Duty::Reactor | Duty::Callback)
    }
}

thread_local! {
    static DUTY: Cell<Duty> = const { Cell::new(Duty::None) };
}

/// What the calling thread is.
#[inline]
pub fn duty() -> Duty {
    DUTY.get()
}

/// Says what the calling thread is; what it was.
pub fn set_duty(duty: Duty) -> Duty {
    DUTY.replace(duty)
}

/// Calls `f`, which may block: here, or where it holds up nobody.
pub fn run_where_it_may_block(f: impl FnOnce() + Send + 'static) {
    if duty().is_barred() { detach(f) } else { f() }
}
