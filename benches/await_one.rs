//! The latency of one op that a task enqueues and awaits while the device is idle.
//!
//! The rival is a worker thread that takes boxed closures from a crossbeam channel and answers
//! through a tokio oneshot channel. When its channel is empty it spins for 50 µs, the longest that
//! an idle Warpline worker stays awake, and then blocks. The same executor awaits both. CPU time
//! and context switches are those of the whole process. With a pause between awaits that is longer
//! than 50 µs, the figures include waking a parked worker.

mod support;

use std::time::{Duration, Instant};
use support::measure::short;
use support::process::Usage;
use support::{ONE, Options, Sample, Table, touch_one};

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

/// Nanoseconds per await, and the CPU time and context switches of the process.
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
            let rival = ("awake worker and oneshot", &theirs.ns);
            table.compare(&format!("{what}, ns"), &mine.ns, rival, "≤ 1.0", |ratio| Some(ratio <= 1.0));
            let mut parts = vec![
                ("CPU time, ns", &mine.cpu_ns, &theirs.cpu_ns),
                ("context switches", &mine.switches, &theirs.switches),
            ];
            if !pause.is_zero() {
                parts.push(("the median await, ns", &mine.each_ns, &theirs.each_ns));
            }
            for (part, ours, rival) in parts {
                table.row(&format!("{what}: {part}"), "", &ours.figure(), &rival.figure(), None);
            }
        }
    }
    drop(send);
    worker.join().expect("the worker ends");

    std::thread::sleep(Duration::from_millis(20));
    let before = Usage::now();
    std::thread::sleep(Duration::from_secs(if options.quick { 1 } else { 3 }));
    let idle = Usage::now().since(&before);
    table.row(
        "CPU time of the idle process, µs a second",
        "0 (less than 500)",
        &short(idle.cpu.as_micros() as f64 / if options.quick { 1.0 } else { 3.0 }),
        "",
        Some(idle.cpu < Duration::from_micros(500)),
    );
    table.report("context switches of the idle process", &(idle.voluntary + idle.involuntary).to_string());
}
