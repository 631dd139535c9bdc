//! Threads for calls that may take milliseconds, or that the calling thread must not make.
//!
//! No executor owns these threads. Each thread starts at its first call and sleeps between calls. A
//! device's `warpline-pin` page-locks host memory and submits the work that waited for it. Both may
//! wait for all work of that device, so the thread serves no other device. A device's
//! `warpline-submit` submits the work that waited for a device of another backend. It page-locks
//! nothing, so this work need not wait for the rest of its device. `warpline-host`, one per
//! process, makes all other calls. While one of these threads waits, it cannot make a call that
//! would let a device continue.
//!
//! Some threads must not call the driver at all: a thread that other threads wait for, and a thread
//! on which the driver forbids calls. Both drop values of users, which may include the last handle
//! of a stream or of a device. These threads are **barred**: calls to the driver that they would
//! make are made here.

use crate::device_id::DeviceId;
use crossbeam_channel::Sender;
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::OnceLock;

type Job = Box<dyn FnOnce() + Send>;

/// A background thread, to which jobs are sent.
#[derive(Clone)]
struct Worker(Sender<Job>);

static HOST: OnceLock<Worker> = OnceLock::new();
static PIN: PerDevice = PerDevice::new("warpline-pin");
static SUBMIT: PerDevice = PerDevice::new("warpline-submit");

/// The threads of one name, at most one per device.
struct PerDevice {
    name: &'static str,
    workers: Mutex<BTreeMap<DeviceId, Worker>>,
}

impl PerDevice {
    const fn new(name: &'static str) -> Self {
        PerDevice { name, workers: Mutex::new(BTreeMap::new()) }
    }

    fn of(&self, device: DeviceId) -> Worker {
        let start = || Worker::start(self.name, Duty::Submitting);
        self.workers.lock().entry(device).or_insert_with(start).clone()
    }
}

impl Worker {
    fn start(name: &str, duty: Duty) -> Self {
        let (sender, receiver) = crossbeam_channel::unbounded::<Job>();
        std::thread::Builder::new()
            .name(name.into())
            .spawn(move || {
                crate::affinity::follow_main_thread();
                set_duty(duty);
                receiver.into_iter().for_each(run_job);
            })
            .expect("a thread can be started");
        Worker(sender)
    }

    fn host() -> &'static Self {
        HOST.get_or_init(|| Worker::start("warpline-host", Duty::Calling))
    }

    fn take(&self, f: impl FnOnce() + Send + 'static) {
        self.0.send(Box::new(f)).expect("the thread lives as long as the process");
    }
}

/// Runs a job. If it panics, its submitter notices that no answer comes.
fn run_job(job: Job) {
    let Some(_inside) = crate::process::enter_driver() else {
        // The process ends. The job is not even dropped, because a value that it owns may call the
        // driver. This thread keeps it, and all later ones, so nothing looks leaked.
        loop {
            std::thread::park();
        }
    };
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)).is_err() {
        crate::report::drop_panicked();
    }
}

/// Calls `f` on `warpline-host` without waiting for it.
pub fn detach(f: impl FnOnce() + Send + 'static) {
    Worker::host().take(f);
}

/// Calls `f` on the device's `warpline-pin` without waiting for it. `f` page-locks memory or
/// submits work that waited for that.
pub fn pin(device: DeviceId, f: impl FnOnce() + Send + 'static) {
    PIN.of(device).take(f);
}

/// Calls `f` on the device's `warpline-submit` without waiting for it. `f` submits work that waited
/// for a device of another backend.
pub fn submit(device: DeviceId, f: impl FnOnce() + Send + 'static) {
    SUBMIT.of(device).take(f);
}

/// The actions that a thread of Warpline or of a driver must not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    /// No restriction: it is a user's thread.
    None,
    /// Must not wait for work: it makes calls that let devices continue.
    Calling,
    /// Must not block, because other threads wait for it.
    Reactor,
    /// Must not call the driver, because the driver is calling it.
    Callback,
    /// Must not drop or call values of users. They may wait for work which this thread is to
    /// submit.
    Submitting,
}

impl Duty {
    /// Returns true if the thread must not call the driver.
    #[inline]
    pub fn is_barred(self) -> bool {
        matches!(self, Duty::Reactor | Duty::Callback)
    }
}

thread_local! {
    static DUTY: Cell<Duty> = const { Cell::new(Duty::None) };
}

/// Returns the duty of the calling thread.
#[inline]
pub fn duty() -> Duty {
    DUTY.get()
}

/// Sets the duty of the calling thread, and returns the earlier one.
pub fn set_duty(duty: Duty) -> Duty {
    DUTY.replace(duty)
}

/// Calls `f`, which may block, on this thread or, if this thread is barred, on `warpline-host`.
pub fn run_where_it_may_block(f: impl FnOnce() + Send + 'static) {
    if duty().is_barred() { detach(f) } else { f() }
}
