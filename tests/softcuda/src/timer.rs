//! One thread that gives streams back to the workers at a given time.
//!
//! A stream that still has nothing to do then, because the word it waits for has not changed, stays here: looking at it
//! wakes no worker.

use crate::stream::Stream;
use crate::worker;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::Once;
use std::time::Instant;

struct Timer {
    due: Mutex<Due>,
    earlier: Condvar,
}

struct Due {
    /// By time, then by number.
    requests: BTreeMap<(Instant, u64), &'static Stream>,
    number: u64,
}

static TIMER: Timer =
    Timer { due: Mutex::new(Due { requests: BTreeMap::new(), number: 0 }), earlier: Condvar::new() };

/// Takes over a stream, to schedule it at `when`.
pub(crate) fn schedule_at(when: Instant, stream: &'static Stream) {
    static START: Once = Once::new();
    START.call_once(|| worker::spawn("softcuda-timer".into(), run));
    let mut due = TIMER.due.lock();
    let Due { requests, number } = &mut *due;
    *number += 1;
    let first = requests.first_key_value().is_none_or(|((first, _), _)| when < *first);
    requests.insert((when, *number), stream);
    drop(due);
    if first {
        TIMER.earlier.notify_one();
    }
}

fn run() {
    let mut due = TIMER.due.lock();
    loop {
        match due.requests.first_key_value() {
            None => TIMER.earlier.wait(&mut due),
            Some(((when, _), _)) if *when > Instant::now() => {
                let when = *when;
                TIMER.earlier.wait_until(&mut due, when);
            }
            Some(_) => {
                let Some((_, stream)) = due.requests.pop_first() else { continue };
                parking_lot::MutexGuard::unlocked(&mut due, || match stream.pause() {
                    Some(when) => schedule_at(when, stream),
                    None => worker::schedule(stream),
                });
            }
        }
    }
}
