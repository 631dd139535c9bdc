//! The throughput of two threads, each on its own core, compared with that of each thread alone.
//!
//! The threads are pinned to their cores. The scheduler may run two new threads on one core for a
//! while, which the measured code cannot influence. Each thread is also measured alone, because on
//! a shared machine one core may be half as fast as its neighbour. Both run until the time is up,
//! and the comparison is between the work that they did.

use super::measure::cpu_time;
use super::{Sample, Table};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// The length of a measurement: enough for a core to reach full speed.
const SPAN: Duration = Duration::from_millis(40);

/// The ops per nanosecond, by the wall clock and by the CPU time of the thread.
#[derive(Clone, Copy, Default)]
struct Speed {
    wall: f64,
    cpu: f64,
}

/// The nanoseconds per op, and the gain by the second thread.
#[derive(Default)]
pub struct TwoThreads {
    one: Sample,
    two: Sample,
    gain: Sample,
    gain_by_cpu: Sample,
}

impl TwoThreads {
    /// Measures both threads. `begin` makes the state of a thread from its number, and `step` runs
    /// `ops` ops on it.
    pub fn measure<S>(
        rounds: usize,
        ops: usize,
        begin: impl Fn(usize) -> S + Sync,
        step: impl Fn(&S) + Sync,
    ) -> Self {
        let cores = cores();
        let run = |which: &[usize]| -> Vec<Speed> {
            let start = Barrier::new(which.len());
            std::thread::scope(|scope| {
                let threads: Vec<_> = which
                    .iter()
                    .map(|&thread| {
                        let (start, begin, step) = (&start, &begin, &step);
                        let core = cores.get(thread).copied();
                        scope.spawn(move || {
                            core.inspect(|core| stay_on(*core));
                            let with = begin(thread);
                            step(&with);
                            start.wait();
                            speed(ops, || step(&with))
                        })
                    })
                    .collect();
                threads.into_iter().map(|thread| thread.join().expect("it ends")).collect()
            })
        };
        let mut all = TwoThreads::default();
        for round in 0..=rounds {
            let alone = [run(&[0])[0], run(&[1])[0]];
            let both = run(&[0, 1]);
            if round == 0 {
                continue;
            }
            let sum = |speeds: &[Speed], of: fn(&Speed) -> f64| speeds.iter().map(of).sum::<f64>();
            let (wall, cpu) = (|speed: &Speed| speed.wall, |speed: &Speed| speed.cpu);
            all.one.0.push(2.0 / sum(&alone, wall));
            all.two.0.push(1.0 / sum(&both, wall));
            all.gain.0.push(2.0 * sum(&both, wall) / sum(&alone, wall));
            all.gain_by_cpu.0.push(2.0 * sum(&both, cpu) / sum(&alone, cpu));
        }
        all
    }

    pub fn print(&self, table: &Table, what: &str, reach: f64) {
        table.row(what, "ns an op", &self.two, "", Some(("one thread", (&self.one).into())), None);
        let (goal, met) = (format!("≥ {reach}"), self.gain.median() >= reach);
        let what = format!("{what}: ops of both in the time of one");
        table.row(&what, "", &self.gain, &goal, None, Some(met));
        // With other load on the cores, this gain shows how far the threads slow each other down
        // while both run.
        table.report(&format!("{what}, by processor time"), "", &self.gain_by_cpu);
    }
}

fn speed(ops: usize, step: impl Fn()) -> Speed {
    let (start, cpu) = (Instant::now(), cpu_time());
    let mut done = 0;
    while start.elapsed() < SPAN {
        step();
        done += ops;
    }
    Speed {
        wall: done as f64 / start.elapsed().as_nanos() as f64,
        cpu: done as f64 / (cpu_time() - cpu).as_nanos() as f64,
    }
}

/// Returns the cores that this process may use.
fn cores() -> Vec<usize> {
    let mut set = no_cores();
    // SAFETY: `sched_getaffinity` writes one `cpu_set_t`.
    unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
    // SAFETY: the number is below `CPU_SETSIZE`.
    (0..libc::CPU_SETSIZE as usize).filter(|core| unsafe { libc::CPU_ISSET(*core, &set) }).collect()
}

fn stay_on(core: usize) {
    let mut set = no_cores();
    // SAFETY: the number is below `CPU_SETSIZE`.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: `sched_setaffinity` reads the set. If it fails, the scheduler places the thread.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
}

fn no_cores() -> libc::cpu_set_t {
    // SAFETY: a `cpu_set_t` is plain bits.
    unsafe { std::mem::zeroed() }
}
