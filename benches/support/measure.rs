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

/// The cells of one figure: the number, and its tenth and ninetieth percentile if it has them.
#[derive(Clone, Debug, Default)]
pub struct Figure([String; 3]);

impl Figure {
    /// Returns the figure of something that is counted once.
    pub fn count(number: impl std::fmt::Display) -> Self {
        Figure([number.to_string(), String::new(), String::new()])
    }
}

impl From<f64> for Figure {
    fn from(value: f64) -> Self {
        Figure::count(short(value))
    }
}

impl From<&Sample> for Figure {
    fn from(sample: &Sample) -> Self {
        Figure([0.5, 0.1, 0.9].map(|at| short(sample.quantile(at))))
    }
}

impl std::fmt::Display for Figure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Figure([number, low, high]) = self;
        if low.is_empty() { f.write_str(number) } else { write!(f, "{number} ({low} to {high})") }
    }
}

/// The rows of one bench, printed as a Markdown table.
///
/// If the variable `WARPLINE_BENCH_ROWS` is set, a row is instead printed as the word `row` and the
/// cells that `benches/rows.py` names, separated by tabs, and a note as the word `note` and a text.
/// Scripts collect these lines in `benches/results/`.
///
/// The name of a row contains no figure, and no other row of any bench has it, because
/// `benches/compare` finds the rows of two runs by their names.
pub struct Table {
    as_rows: bool,
}

/// A figure of a rival, and its name.
pub type Rival<'a> = (&'a str, Figure);

impl Table {
    /// Prints the head of the table, unless the rows are for a script.
    pub fn new(title: &str) -> Self {
        let as_rows = std::env::var_os("WARPLINE_BENCH_ROWS").is_some();
        if !as_rows {
            println!("\n{title}\n\n{HEAD}");
        }
        Table { as_rows }
    }

    /// Prints a figure that has a goal or a rival.
    pub fn row(
        &self,
        name: &str,
        unit: &str,
        figure: impl Into<Figure>,
        goal: &str,
        rival: Option<Rival<'_>>,
        met: Option<bool>,
    ) {
        self.print(name, unit, goal, met, figure.into(), rival.unwrap_or_default(), Figure::default());
    }

    /// Prints the figures of both sides and the ratio of each round. `met` gets the median ratio.
    pub fn compare(
        &self,
        name: &str,
        unit: &str,
        ours: &Sample,
        (rival, theirs): (&str, &Sample),
        goal: &str,
        met: impl FnOnce(f64) -> Option<bool>,
    ) {
        let ratio = ratio(ours, theirs);
        let met = met(ratio.median());
        self.print(name, unit, goal, met, ours.into(), (rival, theirs.into()), (&ratio).into());
    }

    /// Prints a figure without rival or goal.
    pub fn report(&self, name: &str, unit: &str, figure: impl Into<Figure>) {
        self.row(name, unit, figure, "", None, None);
    }

    /// Prints a text that belongs to the rows and is no figure.
    pub fn note(&self, text: &str) {
        println!("{}{text}", if self.as_rows { "note\t" } else { "\n" });
    }

    #[expect(clippy::too_many_arguments, reason = "the cells of a row")]
    fn print(
        &self,
        name: &str,
        unit: &str,
        goal: &str,
        met: Option<bool>,
        figure: Figure,
        (rival, theirs): Rival<'_>,
        ratio: Figure,
    ) {
        let met = met.map_or("", |met| if met { "yes" } else { "NO" });
        if self.as_rows {
            let [figure, theirs, ratio] = [figure, theirs, ratio].map(|cells| cells.0.join("\t"));
            println!("row\t{name}\t{unit}\t{goal}\t{met}\t{figure}\t{rival}\t{theirs}\t{ratio}");
        } else {
            let unit = if unit.is_empty() { String::new() } else { format!(", {unit}") };
            println!("| {name}{unit} | {goal} | {figure} | {rival} | {theirs} | {ratio} | {met} |");
        }
    }
}

const HEAD: &str = "\
| what | goal | median (p10 to p90) | rival | the rival's | ratio | met |
|---|---|---|---|---|---|---|";
