//! A service at its memory limit: clients whose requests need more memory together than there is.
//!
//! Each request asks for a budget, and then allocates, copies and computes within it. The rival is
//! the same service without budgets, whose requests are refused. Of each buffer only a part is
//! written, so the device is not what limits them.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use support::random::Random;
use support::{Figure, Options, Sample, Table};
use warpline::prelude::*;

const MIB: usize = 1 << 20;
const LIMIT: usize = 256 * MIB;
const WEIGHTS: usize = 4 * MIB;
/// The bytes that an op touches of a buffer.
const TOUCHED: usize = 64 << 10;

/// Draws the lengths of the buffers of a request.
type Draw = fn(&mut Random) -> Vec<usize>;

/// The outcome of some requests.
struct Served {
    /// The time of each request that was served, and of its wait for the budget, in milliseconds.
    whole: Sample,
    wait: Sample,
    refused: usize,
    took: Duration,
}

/// Runs clients that each ask `requests` times, or until `end`.
fn serve(clients: usize, requests: usize, end: Option<Duration>, budgets: bool, draw: Draw) -> Served {
    let runtime = Runtime::builder().memory_limit(LIMIT).build().expect("a runtime");
    let device = runtime.device("cpu".parse().expect("a name")).expect("a device");
    let weights = device.alloc::<u8>(WEIGHTS).expect("4 MiB");
    let refused = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let executor = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let times = executor.expect("an executor").block_on(async {
        let tasks = (0..clients).map(|client| {
            let (device, refused) = (device.clone(), refused.clone());
            tokio::spawn(async move {
                let mut random = Random(client as u64 + 1);
                let mut times = Vec::new();
                for _ in 0..requests {
                    if end.is_some_and(|end| start.elapsed() > end) {
                        break;
                    }
                    let lens = draw(&mut random);
                    let began = Instant::now();
                    match request(&device, &lens, budgets).await {
                        Ok(wait) => times.push((began.elapsed(), wait)),
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
                            refused.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
                times
            })
        });
        let tasks: Vec<_> = tasks.collect();
        let mut times = Vec::new();
        for task in tasks {
            times.extend(task.await.expect("it does not panic"));
        }
        times
    });
    drop(weights);
    let ms = |of: fn(&(Duration, Duration)) -> Duration| {
        Sample(times.iter().map(|times| of(times).as_secs_f64() * 1e3).collect())
    };
    let refused = refused.load(Ordering::Relaxed);
    Served { whole: ms(|times| times.0), wait: ms(|times| times.1), refused, took: start.elapsed() }
}

/// Runs a request. Returns the time that it waited for its budget.
async fn request(device: &Device, lens: &[usize], budgets: bool) -> warpline::Result<Duration> {
    let began = Instant::now();
    let granules = |len: usize| len.next_multiple_of(2 * MIB);
    // 2 MiB more, for the short buffer of the result.
    let bytes = lens.iter().map(|&len| granules(len)).sum::<usize>() + 2 * MIB;
    let budget = if budgets { Some(device.budget(bytes).await?) } else { None };
    let waited = began.elapsed();
    let work = async {
        let stream = device.new_stream()?;
        let mut buffers = Vec::new();
        for &len in lens {
            let buffer = stream.alloc_async::<u8>(len).await?;
            stream.fill(&buffer.slice(..TOUCHED)?, 1).queued()?;
            buffers.push(buffer);
        }
        let result = stream.alloc_async::<u8>(TOUCHED).await?;
        for buffer in &buffers {
            stream.copy_buffer(&result, &buffer.slice(..TOUCHED)?).queued()?;
        }
        let read = stream.read(&result).await?;
        assert_eq!(read[0], 1);
        Ok(())
    };
    match &budget {
        Some(budget) => budget.scope(|| work).await?,
        None => work.await?,
    }
    Ok(waited)
}

/// Returns the lengths of a request of 20 MiB, with the short buffer.
fn even(_: &mut Random) -> Vec<usize> {
    vec![6 * MIB, 6 * MIB, 6 * MIB]
}

/// Returns lengths of at most 90 % of the limit together.
fn mixed(random: &mut Random) -> Vec<usize> {
    let mut draw = |below: usize| random.below(below);
    let most = [8, 20, 60, 220][draw(4)] * MIB;
    let count = 1 + draw(4);
    (0..count).map(|_| (MIB + draw(most / count)).min(most / count)).collect()
}

fn main() {
    let options = Options::from_command_line();
    let table = Table::new("requests: a service at its memory limit");
    let loads: [(&str, usize, usize, Draw); 2] = [
        ("64 requests of 20 MiB at once under 256 MiB", 64, 1, even),
        ("64 requests of mixed lengths at once, to 90 % of the limit", 64, 1, mixed),
    ];
    for (name, clients, requests, draw) in loads {
        let [ours, rival] =
            [true, false].map(|budgets| serve(clients, requests, None, budgets, draw).refused);
        let (name, refused) = (format!("{name}: refused"), Figure::count(ours));
        let without = Figure::count(rival);
        table.row(&name, "", refused, "0", Some(("without budgets", without)), Some(ours == 0));
    }
    let seconds = if options.quick { 2 } else { 60 };
    let served = serve(32, usize::MAX, Some(Duration::from_secs(seconds)), true, mixed);
    let name = |what: &str| format!("32 clients for {seconds} s, mixed lengths: {what}");
    let refused = Figure::count(served.refused);
    table.row(&name("refused"), "", refused, "0", None, Some(served.refused == 0));
    let rate = served.whole.0.len() as f64 / served.took.as_secs_f64();
    table.report(&name("requests a second"), "", rate);
    for (what, sample) in [("a request", &served.whole), ("its wait for a budget", &served.wait)] {
        for (quantile, at) in [("median", 0.5), ("99 %", 0.99)] {
            table.report(&name(&format!("{what}, {quantile}")), "ms", sample.quantile(at));
        }
    }
}
