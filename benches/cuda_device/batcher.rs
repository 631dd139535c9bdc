//! A batcher of calls, compared with one by hand over cudarc.
//!
//! Both sides serve the same callers, which have their rows in vectors. They launch the same
//! kernels, and run two batches of the same size at a time, each on a stream of its own. The
//! kernel that takes the time has one block, so the device runs both batches side by side.

use crate::support::gpu_kernels::{ADD_ONE, BUSY, add_one, busy};
use crate::support::process;
use crate::support::{Figure, ONE, interleave};
use crate::{Bench, open};
use cudarc::driver::{CudaContext, CudaFunction, CudaSlice, CudaStream, PinnedHostSlice, PushKernelArg};
use cudarc::nvrtc::Ptx;
use std::future::Future;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{Mutex, mpsc, oneshot};
use warpline::WakeUp;
use warpline::prelude::*;
use warpline::serve::Batcher;

const CALLERS: usize = 1_000;
const MAX_ROWS: usize = 64;
/// The number of batches that run at a time.
const IN_FLIGHT: usize = 2;
/// The number of elements of a row, of the inputs and of the outputs.
const LEN: usize = 256;
/// The time that the model takes for a batch, whatever its rows.
const MODEL_NS: u64 = 100_000;
const MOST_THREADS: usize = 20;

type Rows = Batcher<(f32,), (f32,)>;
/// A row, and the channel of its caller.
type Job = (Vec<f32>, oneshot::Sender<Vec<f32>>);

/// Returns a batcher whose model takes `MODEL_NS` and adds one to each element.
async fn batcher(device: &Device) -> warpline::Result<Rows> {
    Rows::builder(device, [[LEN].into()], [[LEN].into()])
        .max_rows(MAX_ROWS)
        .max_queued(CALLERS)
        .in_flight(IN_FLIGHT)
        .build(|stream, (x,), rows| async move {
            let n = (rows * LEN) as u64;
            stream.launch(busy(MODEL_NS), ONE).queued()?;
            stream.launch(add_one(n, 1, x.buffer()?), LaunchConfig::for_elements(n)).queued()?;
            Ok((x,))
        })
        .await
}

async fn submit(batcher: Rows, value: f32) {
    let row = vec![value; LEN];
    let call = batcher.submit(|(into,)| {
        into.copy_from_slice(&row);
        Ok(())
    });
    check(call.await.expect("it answers").outputs().0, value);
}

fn check(answer: &[f32], value: f32) {
    assert_eq!(answer.len(), LEN);
    assert!(answer.iter().all(|&element| element == value + 1.0), "{answer:?} is the answer to {value}");
}

/// The stream, the kernels and the memory for one batch of the rival.
struct ByHand {
    stream: Arc<CudaStream>,
    busy: CudaFunction,
    add_one: CudaFunction,
    input: PinnedHostSlice<f32>,
    rows: CudaSlice<f32>,
    output: PinnedHostSlice<f32>,
}

impl ByHand {
    fn new(context: &Arc<CudaContext>) -> Self {
        let kernel = |text, name| {
            let module = context.load_module(Ptx::from_src(text)).expect("it loads");
            module.load_function(name).expect("it is there")
        };
        // Not by `alloc_pinned`: it returns write-combined memory, which the host reads slowly.
        // SAFETY: the memory is uninitialised. Each batch writes its rows before they are read.
        let pinned = || unsafe { context.alloc_pinned_with_flags(MAX_ROWS * LEN, 0) };
        let stream = context.new_stream().expect("a stream");
        ByHand {
            busy: kernel(BUSY, "busy"),
            add_one: kernel(ADD_ONE, "add_one"),
            input: pinned().expect("pinned memory"),
            rows: stream.alloc_zeros(MAX_ROWS * LEN).expect("memory"),
            output: pinned().expect("pinned memory"),
            stream,
        }
    }

    /// Computes a batch on this thread, and answers its callers.
    fn run(&mut self, jobs: Vec<Job>) {
        let len = jobs.len() * LEN;
        let input = &mut self.input.as_mut_slice().expect("it is idle")[..len];
        for (to, (row, _)) in input.chunks_exact_mut(LEN).zip(&jobs) {
            to.copy_from_slice(row);
        }
        let output = &mut self.output.as_mut_slice().expect("it is idle")[..len];
        self.stream.memcpy_htod(input, &mut self.rows.slice_mut(..len)).expect("it is taken");
        let (ns, n, times) = (MODEL_NS, len as u64, 1u64);
        let mut launch = self.stream.launch_builder(&self.busy);
        launch.arg(&ns);
        // SAFETY: the argument is that of the kernel.
        unsafe { launch.launch(config(ONE)) }.expect("it is taken");
        let mut launch = self.stream.launch_builder(&self.add_one);
        // Only the software driver reads the last argument, which is the length of the rows.
        launch.arg(&n).arg(&times).arg(&mut self.rows).arg(&n);
        // SAFETY: the arguments begin with those of the kernel, and `rows` is long enough.
        unsafe { launch.launch(config(LaunchConfig::for_elements(n))) }.expect("it is taken");
        self.stream.memcpy_dtoh(&self.rows.slice(..len), output).expect("it is taken");
        // cudarc tracks no copies of slices, so nothing uses these before this call returns.
        self.stream.synchronize().expect("it runs");
        for ((_, caller), row) in jobs.into_iter().zip(output.chunks_exact(LEN)) {
            let _ = caller.send(row.to_vec());
        }
    }
}

fn config(config: LaunchConfig) -> cudarc::driver::LaunchConfig {
    let (grid_dim, block_dim) = (config.grid.into(), config.block.into());
    cudarc::driver::LaunchConfig { grid_dim, block_dim, shared_mem_bytes: config.shared_bytes }
}

/// Starts the rival: a channel, and a task for each batch that may run at a time. A task takes
/// queued rows and computes them on a blocking thread. The caller is inside a tokio runtime.
fn by_hand() -> mpsc::Sender<Job> {
    let context = CudaContext::new(0).expect("the device is there");
    // SAFETY: without tracking, the program orders the uses of a slice. One stream uses each.
    unsafe { context.disable_event_tracking() };
    let (send, receive) = mpsc::channel::<Job>(CALLERS);
    let receive = Arc::new(Mutex::new(receive));
    for _ in 0..IN_FLIGHT {
        let (receive, mut batch) = (receive.clone(), ByHand::new(&context));
        tokio::spawn(async move {
            loop {
                let mut jobs = Vec::with_capacity(MAX_ROWS);
                if receive.lock().await.recv_many(&mut jobs, MAX_ROWS).await == 0 {
                    break;
                }
                let run = tokio::task::spawn_blocking(move || {
                    batch.run(jobs);
                    batch
                });
                batch = run.await.expect("it does not panic");
            }
        });
    }
    send
}

async fn ask(batcher: mpsc::Sender<Job>, value: f32) {
    let (answer, answered) = oneshot::channel();
    batcher.send((vec![value; LEN], answer)).await.expect("the batcher lives");
    check(&answered.await.expect("it answers"), value);
}

/// Runs `CALLERS` tasks that each make `calls` calls, one after another. Returns the answers a
/// second, and the number of threads of the process halfway.
async fn load<F, Fut>(calls: usize, call: F) -> (f64, usize)
where
    F: Fn(f32) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = ()> + Send,
{
    let since = Instant::now();
    let callers = (0..CALLERS).map(|caller| {
        let call = call.clone();
        tokio::spawn(async move {
            let mut threads = 0;
            for n in 0..calls {
                if (caller, n) == (0, calls / 2) {
                    threads = process::threads();
                }
                // No two calls have the same value, so the answer to another call is noticed.
                call((caller * calls + n) as f32).await;
            }
            threads
        })
    });
    let mut threads = 0;
    for caller in callers.collect::<Vec<_>>() {
        threads += caller.await.expect("it does not panic");
    }
    ((CALLERS * calls) as f64 / since.elapsed().as_secs_f64(), threads)
}

/// Measures the answers a second of a batcher, and its threads, against a batcher by hand that
/// computes on blocking threads.
pub(crate) fn against_cudarc(bench: &Bench) {
    let calls = bench.options.scaled(300);
    let (_runtime, device, _) = open(WakeUp::Balanced);
    let workers = std::thread::available_parallelism().map_or(2, usize::from).min(8);
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_time().build();
    let tokio = tokio.expect("a tokio runtime");
    let ours = tokio.block_on(batcher(&device)).expect("a batcher");
    let run_ours = || {
        let batcher = ours.clone();
        tokio.block_on(load(calls, move |value| submit(batcher.clone(), value)))
    };
    // The blocking threads of the rival outlive its rounds, so the rival starts after this count.
    let (_, threads) = run_ours();
    let rival = tokio.block_on(async { by_hand() });
    let run_by_hand = || {
        let batcher = rival.clone();
        tokio.block_on(load(calls, move |value| ask(batcher.clone(), value)))
    };
    let [ours, by_hand] =
        interleave(bench.options.rounds(11), [&mut || run_ours().0, &mut || run_by_hand().0]);
    let what = format!(
        "{CALLERS} callers of a batcher, batches of {MAX_ROWS} rows, a model of {} µs",
        MODEL_NS / 1000
    );
    bench.table.compare(
        &what,
        "answers/s",
        &ours,
        ("cudarc and spawn_blocking", &by_hand),
        "ratio ≥ 1",
        |ratio| bench.verdict(ratio >= 1.0),
    );
    let (goal, met) = (format!("≤ {MOST_THREADS}"), bench.verdict(threads <= MOST_THREADS));
    bench.table.row(&format!("{what}: threads"), "", Figure::count(threads), &goal, None, met);
}
