//! Process exits while the reactor runs, to check that libcuda's exit handler and Warpline's
//! threads do not interfere.

use crate::Bench;
use crate::open;
use crate::support::gpu_kernels::busy;
use crate::support::software::argument;
use crate::support::{Figure, ONE};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use warpline::WakeUp;

/// The number of children that run at a time.
const AT_ONCE: usize = 8;
/// The seconds after which a child that hangs is killed.
const WATCHDOG_SECONDS: u32 = 20;
/// The ways in which a child ends.
const WAYS: [&str; 3] = ["returns", "exits", "exits-elsewhere"];

/// Runs 250 children and reports abnormal exits. The GPU kit runs this part four times and numbers
/// the runs by `--run`.
pub(crate) fn with_a_live_reactor(bench: &Bench) {
    let ends = bench.options.scaled(250);
    let (next, bad) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= ends {
                        break;
                    }
                    let way = WAYS[number % WAYS.len()];
                    let output = start(way);
                    if !output.status.success() {
                        bad.lock().expect("no panic").push(told(way, &output));
                    }
                }
            });
        }
    });
    let bad = bad.into_inner().expect("no panic");
    let run = argument("--run").map_or(String::new(), |run| format!(", run {run}"));
    let what = format!("{ends} processes that end while work is awaited{run}: abnormal exits");
    bench.table.row(&what, "", Figure::count(bad.len()), "0", None, Some(bad.is_empty()));
    if let Some(first) = bad.first() {
        bench.table.note(&format!("the first abnormal exit: {first}"));
    }
    if !bad.is_empty() {
        std::process::exit(1);
    }
}

fn start(way: &str) -> Output {
    let mut command = Command::new(std::env::current_exe().expect("a bench has an executable"));
    command.args(["--exit", way]).stdin(Stdio::null()).output().expect("it starts")
}

fn told(way: &str, output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    let by =
        |status: ExitStatus| status.signal().map_or(status.to_string(), |signal| format!("signal {signal}"));
    format!("{way}: {}: {}", by(output.status), said.lines().last().unwrap_or("it said nothing"))
}

/// Ends the process in this way while a thread awaits work and this one holds streams and buffers.
pub(crate) fn child(way: &str) {
    // SAFETY: `alarm` takes any number. Its signal ends a process that hangs.
    unsafe { libc::alarm(WATCHDOG_SECONDS) };
    let (runtime, device, _) = open(WakeUp::Balanced);
    let (awaited, held) = (device.new_stream().expect("a stream"), device.new_stream().expect("a stream"));
    let buffer = held.alloc::<f32>(1 << 20).expect("memory");
    drop(held.fill(&buffer, 1.0));
    let (send, started) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        loop {
            let pending = awaited.launch(busy(300_000), ONE);
            let _ = send.send(());
            // While the process ends, the runtime may refuse the work.
            let _ = pending.blocking_wait();
        }
    });
    started.recv_timeout(Duration::from_secs(10)).expect("the other thread has launched");
    // Nothing is dropped, so the runtime still exists when the process ends.
    std::mem::forget((runtime, device, held, buffer));
    match way {
        "returns" => {}
        "exits" => std::process::exit(0),
        _ => {
            std::thread::spawn(|| std::process::exit(0));
            loop {
                std::thread::park();
            }
        }
    }
}
