//! The thread that calls the host functions of a device. Its rules are those of
//! [`line`](super::line).
// Decision: docs/decisions/0064-host-functions-have-a-thread-of-their-own.md

use super::backend::Device;
use super::line::Put;
use super::stream::CpuStream;
use super::workers::Pool;
use crate::sync::{Arc, Parker};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use warpline_driver::DeviceId;

impl Device {
    /// Sends a strand to the thread that calls host functions. The strand has just become ready,
    /// and its next op is such a function.
    pub(super) fn send_to_host_thread(self: &Arc<Self>, pool: &Pool, stream: Arc<CpuStream>) {
        pool.idle.goes_away();
        match self.host_line.put(stream) {
            Put::Seen => {}
            Put::Start => self.start_host_thread(pool),
            Put::Back(stream) => self.take_back(pool, [stream].into()),
        }
        if self.health.fault().is_some() {
            self.empty_host_line();
        }
    }

    /// Sends the strands that wait in the line to the run queues, after the device has failed.
    #[cold]
    pub(super) fn empty_host_line(&self) {
        if let Some(pool) = self.backend.pool() {
            self.take_back(pool, self.host_line.take_all());
        }
    }

    fn take_back(&self, pool: &Pool, strands: VecDeque<Arc<CpuStream>>) {
        let count = strands.len();
        for stream in strands {
            pool.schedule(&self.backend, stream);
        }
        pool.idle.is_back(count);
    }

    #[cold]
    fn start_host_thread(self: &Arc<Self>, pool: &Pool) {
        let DeviceId::Cpu(ordinal) = self.id else { unreachable!("this is a CPU device") };
        let device = self.clone();
        let thread = std::thread::Builder::new().name(format!("warpline-call-{ordinal}"));
        let Err(error) = thread.spawn(move || device.call_host_functions()) else { return };
        self.take_back(pool, self.host_line.give_up());
        crate::report::host_thread_not_started(&error);
    }

    fn call_host_functions(&self) {
        warpline_driver::affinity::follow_main_thread();
        warpline_driver::reentry::become_awaited();
        let pool = self.backend.pool().expect("a seeded schedule has no threads");
        let parker = Parker::here();
        let mut batch = VecDeque::new();
        let mut patience = pool.patience();
        while let Some(stream) = self.host_line.next(&parker, || patience.lasts()) {
            patience.found_work();
            if catch_unwind(AssertUnwindSafe(|| stream.call_functions(&mut batch, pool))).is_err() {
                stream.end_after_panic(&mut batch);
            }
            drop(stream);
            pool.idle.is_back(1);
        }
    }
}
