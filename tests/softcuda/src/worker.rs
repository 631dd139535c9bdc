//! The threads that run streams.
//!
//! # Rules
//! 1. Each worker has its own queue. A stream goes to the queue of its home worker, so that
//!    submitters of streams with different homes do not contend. A worker without work takes
//!    streams from the other queues.
//! 2. A worker that goes to sleep sets its bit, looks at all queues once more, and then sleeps. A
//!    scheduler puts the stream into a queue, then reads the bits. A fence separates the two steps
//!    on each side, so that one of the two sees the other.
//! 3. A scheduler clears a sleeper's bit before it wakes the sleeper: two schedulers wake two
//!    sleepers.
//! 4. A stream that waits is in none of these queues. Only a kernel may block a worker.
//! 5. Host functions may block. They run on a thread of their own, one after the other.

use crate::stream::Stream;
use crossbeam_utils::CachePadded;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering, fence};

#[derive(Default)]
struct Worker {
    queue: Mutex<Runnable>,
    bell: Condvar,
}

#[derive(Default)]
struct Runnable {
    streams: VecDeque<&'static Stream>,
    woken: bool,
}

static WORKERS: OnceLock<Box<[CachePadded<Worker>]>> = OnceLock::new();
static SLEEPERS: CachePadded<AtomicU64> = CachePadded::new(AtomicU64::new(0));
static HOST_THREAD: OnceLock<&'static Worker> = OnceLock::new();

fn workers() -> &'static [CachePadded<Worker>] {
    let mut fresh = false;
    let workers = WORKERS.get_or_init(|| {
        fresh = true;
        let count = std::thread::available_parallelism().map_or(2, |cores| cores.get()).clamp(2, 16);
        (0..count).map(|_| CachePadded::default()).collect()
    });
    if fresh {
        for number in 0..workers.len() {
            spawn(format!("softcuda-{number}"), move || work(number));
        }
    }
    workers
}

/// Starts a thread of this library. Panics if the system cannot create it.
pub(crate) fn spawn(name: String, body: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new().name(name).spawn(body).expect("softcuda needs a thread");
}

/// Hands a stream to the workers.
pub(crate) fn schedule(stream: &'static Stream) {
    let workers = workers();
    let home = stream.index as usize % workers.len();
    {
        let mut queue = workers[home].queue.lock();
        if stream.is_urgent() { queue.streams.push_front(stream) } else { queue.streams.push_back(stream) }
    }
    fence(Ordering::SeqCst);
    let mut asleep = SLEEPERS.load(Ordering::Relaxed);
    while asleep != 0 {
        let chosen = if asleep & 1 << home != 0 { home } else { asleep.trailing_zeros() as usize };
        let before = SLEEPERS.fetch_and(!(1 << chosen), Ordering::AcqRel);
        if before & 1 << chosen != 0 {
            let mut queue = workers[chosen].queue.lock();
            queue.woken = true;
            workers[chosen].bell.notify_one();
            return;
        }
        asleep = before;
    }
}

fn work(number: usize) {
    let workers = workers();
    let take = || {
        let nearest = (0..workers.len()).map(|step| (number + step) % workers.len());
        nearest.map(|place| &workers[place]).find_map(|worker| worker.queue.lock().streams.pop_front())
    };
    loop {
        if let Some(stream) = take() {
            stream.run();
            continue;
        }
        SLEEPERS.fetch_or(1 << number, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if let Some(stream) = take() {
            SLEEPERS.fetch_and(!(1 << number), Ordering::Relaxed);
            stream.run();
            continue;
        }
        let mut queue = workers[number].queue.lock();
        while !queue.woken {
            workers[number].bell.wait(&mut queue);
        }
        queue.woken = false;
        drop(queue);
        // Still set if `woken` was left over from a wake-up for work that this worker had already
        // found.
        SLEEPERS.fetch_and(!(1 << number), Ordering::Relaxed);
    }
}

/// Hands a stream whose next work is a host function to the host-function thread.
pub(crate) fn schedule_on_host_thread(stream: &'static Stream) {
    let thread = HOST_THREAD.get_or_init(|| {
        let thread: &'static Worker = Box::leak(Box::default());
        spawn("softcuda-host".into(), move || {
            loop {
                let stream = {
                    let mut queue = thread.queue.lock();
                    loop {
                        match queue.streams.pop_front() {
                            Some(stream) => break stream,
                            None => thread.bell.wait(&mut queue),
                        }
                    }
                };
                stream.run_call();
            }
        });
        thread
    });
    thread.queue.lock().streams.push_back(stream);
    thread.bell.notify_one();
}
