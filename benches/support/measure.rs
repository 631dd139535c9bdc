//! Interleaved rounds, medians, and the table of results.

use std::time::{Duration, Instant};

/// The options of the command line.
#[derive(Clone, Debug)]
pub struct Options {
    /// A tenth of the work, to check only that the bench runs.
    pub quick: bool,
    /// One loop only, for callgrind: its name and its number of iterations.
    pub only: Option<(String, u64)>,
}

impl Options {
    pub fn from_command_line() -> Self {
        let args: Vec<String> = std::env::args().collect();
        let after = |name: &str| args.iter().position(|arg| arg == name);
        let only = after("--loop").map(|at| {
            let times = args.get(at + 2).and_then(|text| text.parse().ok());
            (args[at + 1].clone(), times.expect("--loop NAME TIMES"))
        });
        Options { quick: after("--quick").is_some(), only }
    }

    pub fn scaled(&self, full: usize) -> usize {
        if self.quick { (full / 10).max(1) } else { full }
    }

    /// Returns the number of rounds of an interleaved comparison.
    pub fn rounds(&self, full: usize) -> usize {
        if self.quick { full.min(3) } else { full }
    }
}

/// The figures of one contestant, one per round.
#[derive(Clone, Debug, Default)]
pub struct Sample(pub Vec<f64>);

impl Sample {
    pub fn quantile(&self, at: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[((sorted.len() - 1) as f64 * at).round() as usize]
    }

    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    pub fn least(&self) -> f64 {
        self.quantile(0.0)
    }

    /// Formats the median, and the tenth and the ninetieth percentile.
    pub fn figure(&self) -> String {
        let [low, high] = [0.1, 0.9].map(|at| short(self.quantile(at)));
        format!("{} ({low} to {high})", short(self.median()))
    }
}

/// Runs the contestants alternately, `rounds` times, after one round that does not count. The order
/// changes from round to round.
pub fn interleave<const N: usize>(rounds: usize, contestants: [&mut dyn FnMut() -> f64; N]) -> [Sample; N] {
    let mut samples = [(); N].map(|()| Sample::default());
    for round in 0..=rounds {
        for at in 0..N {
            let at = (at + round) % N;
            let took = contestants[at]();
            if round > 0 {
                samples[at].0.push(took);
            }
        }
    }
    samples
}

/// Returns the ratio of each round.
pub fn ratio(ours: &Sample, rival: &Sample) -> Sample {
    Sample(ours.0.iter().zip(&rival.0).map(|(ours, rival)| ours / rival).collect())
}

/// Returns the difference of each round.
pub fn difference(whole: &Sample, part: &Sample) -> Sample {
    Sample(whole.0.iter().zip(&part.0).map(|(whole, part)| whole - part).collect())
}

/// Returns the nanoseconds per iteration.
pub fn ns(times: usize, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as f64 / times as f64
}

/// Returns the nanoseconds of CPU time of this thread per iteration. For work that never sleeps, on
/// a machine with other load.
pub fn cpu_ns(times: usize, work: impl FnOnce()) -> f64 {
    let start = cpu_time();
    work();
    (cpu_time() - start).as_nanos() as f64 / times as f64
}

/// Returns the CPU time of this thread so far.
pub fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `clock_gettime` writes one `timespec`.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(result, 0, "a thread has a clock");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

pub fn short(value: f64) -> String {
    match value.abs() {
        0.0..10.0 => format!("{value:.2}"),
        10.0..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// The rows of one bench, printed as a Markdown table.
pub struct Table {
    quiet: bool,
}

impl Table {
    /// Prints the head of the table, unless a script runs all benches and prints one head for them.
    pub fn new(title: &str) -> Self {
        let quiet = std::env::var_os("WARPLINE_BENCH_ROWS").is_some();
        if !quiet {
            println!("\n{title}\n\n{HEAD}");
        }
        Table { quiet }
    }

    /// Prints one row. Each of the cells `figure` and `rival` holds one figure, with its spread if
    /// it has one.
    pub fn row(&self, what: &str, goal: &str, figure: &str, rival: &str, met: Option<bool>) {
        let met = match met {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "",
        };
        println!("| {what} | {goal} | {figure} | {rival} | {met} |");
    }

    /// Prints a row for the figures of both sides, and one for their ratio, which has the goal.
    pub fn compare(
        &self,
        what: &str,
        ours: &Sample,
        (name, rival): (&str, &Sample),
        goal: &str,
        met: impl FnOnce(f64) -> Option<bool>,
    ) {
        let ratio = ratio(ours, rival);
        self.row(what, "", &ours.figure(), &format!("{name} {}", rival.figure()), None);
        self.row(&format!("{what}: ratio to the rival"), goal, &ratio.figure(), "1", met(ratio.median()));
    }

    /// Prints a figure without rival or goal.
    pub fn report(&self, what: &str, figure: &str) {
        self.row(what, "", figure, "", None);
    }
}

pub const HEAD: &str = "| what | goal | median (p10 to p90) | rival | met |\n|---|---|---|---|---|";
