//! What two threads get done, each on a core of its own, against what each of them gets done alone.
//!
//! The threads stay on their cores: where the scheduler puts two new threads on one core for a while, that is nothing that the code
//! measured could help. Each thread is measured alone as well, because a core of a machine that others share may be half as fast
//! as its neighbour. Both go on until the time is over, and what is compared is the work they did.

use super::measure::{cpu_time, short};
use super::{Sample, Table};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Long enough for a core to be at full speed.
const SPAN: Duration = Duration::from_millis(40);

/// Ops a nanosecond, by the clock on the wall and by the thread's own processor time.
#[derive(Clone, Copy, Default)]
struct Speed {
    wall: f64,
    cpu: f64,
}

/// Nanoseconds an op.
#[derive(Default)]
pub struct TwoThreads {
    one: Sample,
    two: Sample,
    gain: Sample,
    gain_by_cpu: Sample,
}

impl TwoThreads {
    /// `begin` makes what the thread of that number works with; `step` does `ops` ops.
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
        table.row(
            &format!("{what}, ns an op"),
            &short(self.two.median()),
            &format!("{} one thread", short(self.one.median())),
            &short(self.gain.median()),
            &self.gain.spread(),
            &format!("≥ {reach} ×"),
            Some(self.gain.median() >= reach),
        );
        // Where other work has the cores: what the threads take of each other, as far as they run at the same time.
        let (gain, spread) = (short(self.gain_by_cpu.median()), self.gain_by_cpu.spread());
        table.row("the same, by processor time", "", "", &gain, &spread, "", None);
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

/// The cores that this process may use.
fn cores() -> Vec<usize> {
    // SAFETY: a set of cores is plain bits, and `sched_getaffinity` writes one.
    let set = unsafe {
        let mut set = std::mem::zeroed::<libc::cpu_set_t>();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set);
        set
    };
    // SAFETY: the number is within the set.
    (0..libc::CPU_SETSIZE as usize).filter(|core| unsafe { libc::CPU_ISSET(*core, &set) }).collect()
}

fn stay_on(core: usize) {
    // SAFETY: a set of cores is plain bits, the number is within it, and `sched_setaffinity` reads it. If it is refused, the
    // thread goes where it is sent.
    unsafe {
        let mut set = std::mem::zeroed::<libc::cpu_set_t>();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}
