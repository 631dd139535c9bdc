//! An exit handler that finds nobody inside, and threads that call the driver unless it has begun.

use crate::exit::Exit;
use crate::sync::{AtomicBool, AtomicUsize};
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

struct Process {
    exit: Exit,
    /// Read by calls and written by the teardown: loom finds those that meet.
    driver: UnsafeCell<bool>,
}

// SAFETY: loom checks each access of the cell.
unsafe impl Sync for Process {}

#[test]
fn no_call_meets_the_teardown() {
    loom::model(|| {
        let exit = Exit { ending: AtomicBool::new(false), inside: AtomicUsize::new(0) };
        let process = Arc::new(Process { exit, driver: UnsafeCell::new(true) });
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let process = process.clone();
                thread::spawn(move || {
                    if let Some(_inside) = process.exit.enter() {
                        // SAFETY: loom checks it.
                        process.driver.with(|driver| assert!(unsafe { *driver }, "the driver is there"));
                    }
                })
            })
            .collect();
        process.exit.begin();
        // Without the bound that the handler has: it tears down only where all threads are out.
        if process.exit.is_clear() {
            // SAFETY: loom checks it.
            process.driver.with_mut(|driver| unsafe { *driver = false });
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}
