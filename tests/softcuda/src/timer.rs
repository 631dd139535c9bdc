//! The timer thread, which schedules streams at a given time.
//!
//! If a stream's front still cannot start then, for example because its word has not changed, the
//! timer keeps the stream. Checking the front wakes no worker.

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
    /// The streams by due time. The number tells apart requests with equal times.
    requests: BTreeMap<(Instant, u64), &'static Stream>,
    number: u64,
}

static TIMER: Timer =
    Timer { due: Mutex::new(Due { requests: BTreeMap::new(), number: 0 }), earlier: Condvar::new() };

/// Takes a stream from its holder and schedules it at `when`.
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
