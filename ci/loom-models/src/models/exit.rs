//! An exit handler that tears the driver down only if no thread is calling it, and threads that
//! call the driver only if the handler has not begun.

use crate::exit::Exit;
use crate::sync::{AtomicBool, AtomicUsize};
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

struct Process {
    exit: Exit,
    /// The driver: calls read it and the teardown writes it, so loom finds those that overlap.
    driver: UnsafeCell<bool>,
}

// SAFETY: loom checks each access to the cell.
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
                        // SAFETY: loom checks this access.
                        process.driver.with(|driver| assert!(unsafe { *driver }, "the driver is there"));
                    }
                })
            })
            .collect();
        process.exit.begin();
        // The real handler waits for a limited time. The model tears down only if all threads are
        // out already.
        if process.exit.is_clear() {
            // SAFETY: loom checks this access.
            process.driver.with_mut(|driver| unsafe { *driver = false });
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}
