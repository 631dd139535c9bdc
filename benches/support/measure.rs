//! Interleaved rounds, medians, and the table.

use std::time::{Duration, Instant};

/// What the command line asks for.
#[derive(Clone, Debug)]
pub struct Options {
    /// A tenth of the work: to see that it runs.
    pub quick: bool,
    /// One loop only, for callgrind: its name and how often.
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

    /// Rounds of an interleaved comparison.
    pub fn rounds(&self, full: usize) -> usize {
        if self.quick { full.min(3) } else { full }
    }
}

/// What the rounds of one contestant gave.
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

    /// From the tenth to the ninetieth percentile.
    pub fn spread(&self) -> String {
        format!("{} to {}", short(self.quantile(0.1)), short(self.quantile(0.9)))
    }
}

/// Runs the contestants in turn, `rounds` times, after one round that does not count. The order changes from round to round.
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

/// Round by round.
pub fn ratio(ours: &Sample, rival: &Sample) -> Sample {
    Sample(ours.0.iter().zip(&rival.0).map(|(ours, rival)| ours / rival).collect())
}

/// Round by round.
pub fn difference(whole: &Sample, part: &Sample) -> Sample {
    Sample(whole.0.iter().zip(&part.0).map(|(whole, part)| whole - part).collect())
}

/// Nanoseconds an iteration.
pub fn ns(times: usize, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as f64 / times as f64
}

/// Nanoseconds an iteration of the processor's time of this thread: for work that never sleeps, on a machine that others share.
pub fn cpu_ns(times: usize, work: impl FnOnce()) -> f64 {
    let start = cpu_time();
    work();
    (cpu_time() - start).as_nanos() as f64 / times as f64
}

/// The processor's time of this thread so far.
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
    /// Prints the head, unless the script that runs all benches has printed it.
    pub fn new(title: &str) -> Self {
        let quiet = std::env::var_os("WARPLINE_BENCH_ROWS").is_some();
        if !quiet {
            println!("\n{title}\n\n{HEAD}");
        }
        Table { quiet }
    }

    /// One line: the figure against its reach.
    #[allow(clippy::too_many_arguments, reason = "one a column")]
    pub fn row(
        &self,
        what: &str,
        ours: &str,
        rival: &str,
        against: &str,
        spread: &str,
        reach: &str,
        met: Option<bool>,
    ) {
        let verdict = match met {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "reported",
        };
        println!("| {what} | {ours} | {rival} | {against} | {spread} | {reach} | {verdict} |");
    }

    /// A figure without rival or reach.
    pub fn note(&self, what: &str, figure: &str) {
        self.row(what, figure, "", "", "", "", None);
    }
}

pub const HEAD: &str =
    "| what | ours | rival | ratio | spread (p10 to p90) | reach | verdict |\n|---|---|---|---|---|---|---|";
