//! The latency of one op that a task enqueues and awaits while the device is idle.
//!
//! The rival is a worker thread that takes boxed closures from a crossbeam channel and answers
//! through a tokio oneshot channel. When its channel is empty it spins for 50 µs, the longest that
//! an idle Warpline worker stays awake, and then blocks. The same executor awaits both. CPU time
//! and context switches are those of the whole process. With a pause between awaits that is longer
//! than 50 µs, the figures include waking a parked worker.
//!
//! A product of two 64 × 64 matrices of `f32` stands for work of some microseconds, which is longer
//! than a small op and shorter than going to sleep and being woken. There the rival is the same
//! product enqueued 64 times and awaited once, whose time per product is that of the work.

mod support;

use std::time::{Duration, Instant};
use support::measure::short;
use support::process::Usage;
use support::{Figure, ONE, Options, Sample, Table, touch_one};
use warpline::prelude::*;

type Work = Box<dyn FnOnce() + Send>;

fn rival_worker() -> (crossbeam_channel::Sender<Work>, std::thread::JoinHandle<()>) {
    let (send, receive) = crossbeam_channel::unbounded::<Work>();
    let worker = std::thread::spawn(move || {
        loop {
            let start = Instant::now();
            let mut found = None;
            'awake: while start.elapsed() < Duration::from_micros(50) {
                for _ in 0..64 {
                    match receive.try_recv() {
                        Ok(work) => {
                            found = Some(work);
                            break 'awake;
                        }
                        Err(crossbeam_channel::TryRecvError::Disconnected) => return,
                        Err(crossbeam_channel::TryRecvError::Empty) => std::hint::spin_loop(),
                    }
                }
                std::thread::yield_now();
            }
            match found.map_or_else(|| receive.recv(), Ok) {
                Ok(work) => work(),
                Err(_) => return,
            }
        }
    });
    (send, worker)
}

#[derive(Clone, Copy)]
enum Executor {
    Futures,
    Tokio,
}

impl Executor {
    fn run<F: Future>(self, future: F) -> F::Output {
        match self {
            Executor::Futures => futures::executor::block_on(future),
            Executor::Tokio => tokio::runtime::Builder::new_current_thread()
                .build()
                .expect("a runtime without drivers")
                .block_on(future),
        }
    }
}

/// Nanoseconds per await, and the CPU time and context switches of the process. The system counts
/// the CPU time of a thread that keeps running every few milliseconds, so a round takes longer.
#[derive(Default)]
struct Figures {
    /// The mean of each round.
    ns: Sample,
    /// Single awaits, timed only where a pause leaves time to read the clock.
    each_ns: Sample,
    cpu_ns: Sample,
    switches: Sample,
}

impl Figures {
    async fn measure(&mut self, times: usize, pause: Duration, mut each: impl AsyncFnMut()) {
        let before = Usage::now();
        let mut total = Duration::ZERO;
        for _ in 0..times {
            if !pause.is_zero() {
                std::thread::sleep(pause);
            }
            let start = Instant::now();
            each().await;
            let took = start.elapsed();
            total += took;
            if !pause.is_zero() {
                self.each_ns.0.push(took.as_nanos() as f64);
            }
        }
        let used = Usage::now().since(&before);
        self.cpu_ns.0.push(used.cpu.as_nanos() as f64 / times as f64);
        self.switches.0.push((used.voluntary + used.involuntary) as f64 / times as f64);
        self.ns.0.push(total.as_nanos() as f64 / times as f64);
    }
}

/// Enqueues a product of matrices and awaits it, one after the other.
fn products(options: &Options, table: &Table) {
    const SIDE: usize = 64;
    const AT_ONCE: usize = 64;
    let (_runtime, device) = support::cpu();
    let matrix = || Tensor::randn([SIDE, SIDE], &device).queued().expect("16 KiB");
    let (x, w) = (matrix(), matrix());
    for (executor, by) in
        [(Executor::Futures, "futures::executor"), (Executor::Tokio, "tokio current_thread")]
    {
        for (pause, when, times) in [
            (Duration::ZERO, "back to back", 20_000),
            (Duration::from_micros(300), "after 300 µs of nothing", 500),
        ] {
            let times = options.scaled(times);
            let (mut one, mut many) = (Figures::default(), Figures::default());
            executor.run(async {
                for _ in 0..options.rounds(21) {
                    one.measure(times, pause, async || drop(x.matmul(&w).await.expect("it runs"))).await;
                    let batch = async || {
                        let mut last = x.matmul(&w);
                        (1..AT_ONCE).for_each(|_| last = x.matmul(&w));
                        drop(last.await.expect("it runs"));
                    };
                    many.measure(times.div_ceil(AT_ONCE), Duration::ZERO, batch).await;
                }
            });
            let each = |all: &Sample| Sample(all.0.iter().map(|all| all / AT_ONCE as f64).collect());
            let (work, work_cpu) = (each(&many.ns), each(&many.cpu_ns));
            let what = format!("a 64 × 64 product enqueued and awaited, {by}, {when}");
            let (took, used) = (one.ns.median() / 1e3, one.cpu_ns.median() / 1e3);
            let most_cpu = work.median() / 1e3 + 10.0;
            let is_judged = pause.is_zero();
            let goal = |text: String| if is_judged { text } else { String::new() };
            table.row(
                &what,
                "ns",
                &one.ns,
                &goal("≤ 10 000".to_owned()),
                Some(("the work alone", (&work).into())),
                is_judged.then_some(took <= 10.0),
            );
            table.row(
                &format!("{what}: CPU time"),
                "ns",
                &one.cpu_ns,
                &goal(format!("≤ {}", short(most_cpu * 1e3))),
                Some(("the work alone", (&work_cpu).into())),
                is_judged.then_some(used <= most_cpu),
            );
            table.report(&format!("{what}: context switches"), "", &one.switches);
        }
    }
}

/// Tasks on two threads of tokio, each with a stream of its own, await products. Busy-waiting for
/// one product takes time from the other tasks of the thread, and from the workers.
fn products_of_tasks(options: &Options, table: &Table) {
    const TASKS: usize = 4;
    let (_runtime, device) = support::cpu();
    let executor = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .expect("a runtime without drivers");
    let times = options.scaled(5_000);
    let mut figures = Figures::default();
    executor.block_on(async {
        for _ in 0..options.rounds(21) {
            let all = async || {
                let tasks = (0..TASKS).map(|_| {
                    let (device, stream) = (device.clone(), device.new_stream().expect("a stream"));
                    tokio::spawn(stream.scope(move || async move {
                        let x = Tensor::randn([64, 64], &device).queued().expect("16 KiB");
                        for _ in 0..times {
                            drop(x.matmul(&x).await.expect("it runs"));
                        }
                    }))
                });
                for task in tasks.collect::<Vec<_>>() {
                    task.await.expect("it ends");
                }
            };
            figures.measure(1, Duration::ZERO, all).await;
        }
    });
    let each = |all: &Sample| Sample(all.0.iter().map(|all| all / (TASKS * times) as f64).collect());
    let what = format!("64 × 64 products that {TASKS} tasks await on two threads of tokio");
    table.report(&what, "ns a product", &each(&figures.ns));
    table.report(&format!("{what}: CPU time"), "ns a product", &each(&figures.cpu_ns));
}

fn main() {
    let options = Options::from_command_line();
    let (_runtime, device) = support::cpu();
    let stream = device.new_stream().expect("a stream");
    let x = stream.alloc::<f32>(64).expect("256 bytes");
    let (send, worker) = rival_worker();
    let table = Table::new("await_one: one op enqueued and awaited, idle CPU device");

    for (executor, by) in
        [(Executor::Futures, "futures::executor"), (Executor::Tokio, "tokio current_thread")]
    {
        for (pause, when, times) in [
            (Duration::ZERO, "back to back", 20_000),
            (Duration::from_micros(300), "after 300 µs of nothing", 500),
        ] {
            let times = options.scaled(times);
            let (mut mine, mut theirs) = (Figures::default(), Figures::default());
            executor.run(async {
                for _ in 0..options.rounds(21) {
                    let ours = async || {
                        stream.launch(touch_one(0.5, &x), ONE).await.expect("it runs");
                    };
                    mine.measure(times, pause, ours).await;
                    let rival = async || {
                        let (answer, answered) = tokio::sync::oneshot::channel();
                        let work = move || {
                            let _ = answer.send(());
                        };
                        send.send(Box::new(work)).expect("the worker is there");
                        answered.await.expect("it answers");
                    };
                    theirs.measure(times, pause, rival).await;
                }
            });
            let what = format!("enqueue and await, {by}, {when}");
            let rival = "awake worker and oneshot";
            let met = |ratio| Some(ratio <= 1.0);
            table.compare(&what, "ns", &mine.ns, (rival, &theirs.ns), "ratio ≤ 1", met);
            let mut parts = vec![
                ("CPU time", "ns", &mine.cpu_ns, &theirs.cpu_ns),
                ("context switches", "", &mine.switches, &theirs.switches),
            ];
            if !pause.is_zero() {
                parts.push(("the median await", "ns", &mine.each_ns, &theirs.each_ns));
            }
            for (part, unit, ours, theirs) in parts {
                let what = format!("{what}: {part}");
                table.row(&what, unit, ours, "", Some((rival, theirs.into())), None);
            }
        }
    }
    products(&options, &table);
    products_of_tasks(&options, &table);
    drop(send);
    worker.join().expect("the worker ends");

    std::thread::sleep(Duration::from_millis(20));
    let before = Usage::now();
    std::thread::sleep(Duration::from_secs(if options.quick { 1 } else { 3 }));
    let idle = Usage::now().since(&before);
    table.row(
        "the idle process: CPU time",
        "µs a second",
        idle.cpu.as_micros() as f64 / if options.quick { 1.0 } else { 3.0 },
        "< 500",
        None,
        Some(idle.cpu < Duration::from_micros(500)),
    );
    let switches = Figure::count(idle.voluntary + idle.involuntary);
    table.report("the idle process: context switches", "", switches);
}
