//! A batcher in process, beside the ways in which a service batches without it.
//!
//! The rivals compute with the same crate as a CPU device, matrixmultiply, on the blocking threads
//! of tokio or on threads of their own.

mod http;
#[path = "../support/mod.rs"]
mod support;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use support::{Figure, Options, Table, instructions, interleave, ratio};
use tokio::sync::{mpsc, oneshot};
use tower::{Service, ServiceExt};
use tower_batch::BatchControl;
use warpline::prelude::*;
use warpline::serve::{Batcher, ServeError};

/// A row of the inputs and of the outputs of a model of one small product.
const IN: usize = 64;
const OUT: usize = 10;
const MAX_ROWS: usize = 32;
const TASKS: usize = 64;

type Rows = Batcher<(f32,), (f32,)>;
/// A row and its caller.
type Job = (Vec<f32>, oneshot::Sender<Vec<f32>>);

fn weights() -> Arc<Vec<f32>> {
    Arc::new((0..IN * OUT).map(|at| (at % 7) as f32 * 0.1).collect())
}

/// Multiplies `rows` rows by the weights, and answers their callers.
fn compute(jobs: Vec<Job>, weights: &[f32]) {
    let (count, rows): (usize, Vec<f32>) =
        (jobs.len(), jobs.iter().flat_map(|(row, _)| row.iter().copied()).collect());
    let mut outputs = vec![0.0f32; count * OUT];
    // SAFETY: `sgemm` needs matrices of these sizes at these strides, which the vectors are.
    unsafe {
        matrixmultiply::sgemm(
            count,
            IN,
            OUT,
            1.0,
            rows.as_ptr(),
            IN as isize,
            1,
            weights.as_ptr(),
            OUT as isize,
            1,
            0.0,
            outputs.as_mut_ptr(),
            OUT as isize,
            1,
        );
    }
    for ((_, caller), output) in jobs.into_iter().zip(outputs.chunks(OUT)) {
        let _ = caller.send(output.to_vec());
    }
}

/// A batcher by hand: a channel, and a task that runs what is queued on a blocking thread.
fn by_hand(max_rows: usize, run: impl Fn(Vec<Job>) + Clone + Send + 'static) -> mpsc::Sender<Job> {
    let (send, mut receive) = mpsc::channel::<Job>(1024);
    tokio::spawn(async move {
        let mut jobs = Vec::new();
        while receive.recv_many(&mut jobs, max_rows).await > 0 {
            let (batch, run) = (std::mem::take(&mut jobs), run.clone());
            tokio::task::spawn_blocking(move || run(batch)).await.expect("it does not panic");
        }
    });
    send
}

async fn ask(batcher: &mpsc::Sender<Job>, row: Vec<f32>) -> f32 {
    let (answer, answered) = oneshot::channel();
    batcher.send((row, answer)).await.expect("the batcher lives");
    answered.await.expect("it answers")[0]
}

/// The service behind `tower-batch`.
struct Inner {
    weights: Arc<Vec<f32>>,
    jobs: Vec<Job>,
}

impl Service<BatchControl<Vec<f32>>> for Inner {
    type Response = Vec<f32>;
    type Error = tower::BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Vec<f32>, tower::BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, control: BatchControl<Vec<f32>>) -> Self::Future {
        match control {
            BatchControl::Item(row) => {
                let (answer, answered) = oneshot::channel();
                self.jobs.push((row, answer));
                Box::pin(async move { Ok(answered.await?) })
            }
            BatchControl::Flush => {
                let (jobs, weights) = (std::mem::take(&mut self.jobs), self.weights.clone());
                Box::pin(async move {
                    tokio::task::spawn_blocking(move || compute(jobs, &weights)).await?;
                    Ok(Vec::new())
                })
            }
        }
    }
}

/// The model behind `amate`.
struct Forward(Arc<Vec<f32>>);

impl amate::Batching for Forward {
    type Item = Job;

    fn weight(&self, _: &Job) -> usize {
        1
    }

    fn window(&self) -> Duration {
        Duration::ZERO
    }

    fn run(&self, batch: Vec<amate::Queued<Job>>) {
        compute(batch.into_iter().map(|queued| queued.item).collect(), &self.0);
    }
}

/// A batcher whose model is one small product.
async fn product(device: &Device) -> warpline::Result<Rows> {
    let weights = Tensor::from_host(&weights()[..], [IN, OUT], device).await?;
    Rows::builder(device, [[IN].into()], [[OUT].into()])
        .max_rows(MAX_ROWS)
        .max_queued(1024)
        .build(move |_stream, (x,), _calls| {
            let weights = weights.clone();
            async move { Ok((x.matmul(&weights).queued()?,)) }
        })
        .await
}

/// Runs `TASKS` tasks that each make `calls` calls. Returns the rows a second.
async fn rows_a_second<F, Fut>(calls: usize, call: F) -> f64
where
    F: Fn(Vec<f32>) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = f32> + Send,
{
    let began = Instant::now();
    let tasks = (0..TASKS).map(|task| {
        let call = call.clone();
        tokio::spawn(async move {
            for n in 0..calls {
                assert!(call(vec![(task + n) as f32; IN]).await >= 0.0);
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("it does not panic");
    }
    (TASKS * calls) as f64 / began.elapsed().as_secs_f64()
}

async fn submit(batcher: &Rows, row: Vec<f32>) -> f32 {
    let answer = batcher.submit(move |(into,)| {
        into.copy_from_slice(&row);
        Ok(())
    });
    answer.await.expect("it answers").outputs().0[0]
}

/// Four batchers in a tokio runtime: this one, one by hand, `amate` and `tower-batch`.
struct Contest {
    tokio: tokio::runtime::Runtime,
    ours: Rows,
    hand: mpsc::Sender<Job>,
    amate: Arc<amate::Engine<Job>>,
    tower: tower_batch::Batch<Inner, Vec<f32>>,
}

impl Contest {
    fn new(device: &Device, workers: usize) -> Self {
        let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build();
        let tokio = tokio.expect("a tokio runtime");
        let weights = weights();
        let ours = tokio.block_on(product(device)).expect("a batcher");
        let entered = tokio.enter();
        let of_hand = weights.clone();
        let hand = by_hand(MAX_ROWS, move |jobs| compute(jobs, &of_hand));
        let config =
            amate::Config { max_batch: MAX_ROWS, workers: 2, capacity: Some(1024), waits_unannounced: false };
        let amate = amate::Engine::start(Forward(weights.clone()), config, |n| format!("amate-{n}"));
        let inner = Inner { weights, jobs: Vec::new() };
        let tower = tower_batch::Batch::new(inner, MAX_ROWS, Duration::from_millis(1));
        drop(entered);
        Contest { tokio, ours, hand, amate: Arc::new(amate), tower }
    }

    /// Returns the rows a second of contestant `number`.
    fn run(&self, number: usize, calls: usize) -> f64 {
        self.tokio.block_on(async {
            match number {
                0 => {
                    let batcher = self.ours.clone();
                    let call = move |row| {
                        let batcher = batcher.clone();
                        async move { submit(&batcher, row).await }
                    };
                    rows_a_second(calls, call).await
                }
                1 => {
                    let batcher = self.hand.clone();
                    let call = move |row| {
                        let batcher = batcher.clone();
                        async move { ask(&batcher, row).await }
                    };
                    rows_a_second(calls, call).await
                }
                2 => {
                    let engine = self.amate.clone();
                    let call = move |row| {
                        let engine = engine.clone();
                        async move {
                            let (answer, answered) = oneshot::channel();
                            assert!(engine.submit(None, (row, answer)).is_ok());
                            answered.await.expect("it answers")[0]
                        }
                    };
                    rows_a_second(calls, call).await
                }
                _ => {
                    let service = self.tower.clone();
                    let call = move |row| {
                        let service = service.clone();
                        async move { service.oneshot(row).await.expect("it answers")[0] }
                    };
                    rows_a_second(calls, call).await
                }
            }
        })
    }
}

/// Compares the rows a second. Each contestant has the number of tokio workers, one or two, that
/// serves it best. All of them compute on other threads.
fn throughput(options: &Options, table: &Table) {
    let calls = options.scaled(5000);
    let (_runtime, device) = support::cpu();
    let contests = [1, 2].map(|workers| Contest::new(&device, workers));
    let rounds = options.rounds(9);
    let [one, two] = &contests;
    let samples = interleave(
        rounds,
        [
            &mut || one.run(0, calls),
            &mut || one.run(1, calls),
            &mut || one.run(2, calls),
            &mut || one.run(3, calls),
            &mut || two.run(0, calls),
            &mut || two.run(1, calls),
            &mut || two.run(2, calls),
            &mut || two.run(3, calls),
        ],
    );
    let (of_one, of_two) = samples.split_at(4);
    let best = |at: usize| match of_one[at].median() > of_two[at].median() {
        true => &of_one[at],
        false => &of_two[at],
    };
    for (at, rival) in [(1, "by hand"), (2, "amate"), (3, "tower-batch")] {
        let times = ratio(best(0), best(at));
        let name = format!("rows a second of {TASKS} tasks, a small product, times {rival}'s");
        let met = times.median() >= 2.0;
        table.row(&name, "×", Figure::from(&times), "2", Some((rival, Figure::from(best(at)))), Some(met));
    }
}

/// The time that the model takes for a batch, whatever its rows, and the callers' patience. Both
/// sides sleep for it, so that capacity is known and no core is short.
const MODEL: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_millis(20);

/// Runs callers that give up after `PATIENCE` and call again at once. Returns the answers a
/// second.
async fn goodput<F, Fut>(seconds: f64, call: F) -> f64
where
    F: Fn(Vec<f32>) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = bool> + Send,
{
    let (began, answered) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
    let callers = (0..TASKS).map(|_| {
        let (call, answered) = (call.clone(), answered.clone());
        tokio::spawn(async move {
            while began.elapsed().as_secs_f64() < seconds {
                if call(vec![1.0; IN]).await {
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.expect("it does not panic");
    }
    answered.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64()
}

/// A model at four times its capacity.
fn overload(options: &Options, table: &Table) {
    const BATCH: usize = 8;
    let seconds = if options.quick { 0.3 } else { 5.0 };
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let tokio = tokio.expect("a tokio runtime");
    let (_runtime, device) = support::cpu();
    let ours = tokio.block_on(async {
        let batcher = Rows::builder(&device, [[IN].into()], [[IN].into()])
            .max_rows(BATCH)
            .max_queued(TASKS)
            .max_wait(Duration::from_millis(1))
            .in_flight(1)
            .build(|stream, (x,), _calls| async move {
                stream.call(|| std::thread::sleep(MODEL)).queued()?;
                Ok((x,))
            });
        let batcher = batcher.await.expect("a batcher");
        goodput(seconds, move |row| {
            let batcher = batcher.clone();
            async move {
                let call = batcher.submit(move |(into,)| {
                    into.copy_from_slice(&row);
                    Ok(())
                });
                match call.deadline(tokio::time::Instant::now() + PATIENCE).await {
                    Ok(_) => true,
                    Err(ServeError::Late) => false,
                    Err(error) => panic!("{error}"),
                }
            }
        })
        .await
    });
    let rival = tokio.block_on(async {
        let batcher = by_hand(BATCH, |jobs| {
            std::thread::sleep(MODEL);
            for (row, caller) in jobs {
                let _ = caller.send(row);
            }
        });
        goodput(seconds, move |row| {
            let batcher = batcher.clone();
            async move { tokio::time::timeout(PATIENCE, ask(&batcher, row)).await.is_ok() }
        })
        .await
    });
    let capacity = BATCH as f64 / MODEL.as_secs_f64();
    let share = |rate: f64| Figure::from(100.0 * rate / capacity);
    let name = "answers at four times the capacity, callers that give up after two batches, of the capacity";
    table.row(name, "%", share(ours), "80", Some(("by hand", share(rival))), Some(ours >= 0.8 * capacity));
}

/// Runs one loop for callgrind.
fn one_loop(name: &str, times: u64) {
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a tokio runtime");
    let (_runtime, device) = support::cpu();
    tokio.block_on(async {
        match name {
            "batcher" => {
                let batcher = product(&device).await.expect("a batcher");
                for n in 0..times {
                    submit(&batcher, vec![n as f32; IN]).await;
                }
            }
            "copy-and-compute" => alone(&device, times).await.expect("it succeeds"),
            "tower-batch" => {
                let inner = Inner { weights: weights(), jobs: Vec::new() };
                let service = tower_batch::Batch::new(inner, MAX_ROWS, Duration::from_millis(1));
                for n in 0..times {
                    service.clone().oneshot(vec![n as f32; IN]).await.expect("it answers");
                }
            }
            "compute" => {
                let weights = weights();
                for n in 0..times {
                    let (answer, answered) = oneshot::channel();
                    compute(vec![(vec![n as f32; IN], answer)], &weights);
                    answered.await.expect("it answers");
                }
            }
            _ => panic!("there is no loop {name}"),
        }
    });
}

/// The copies and the product of a row, without a batcher.
async fn alone(device: &Device, times: u64) -> warpline::Result<()> {
    let stream = device.new_stream()?;
    let weights = Tensor::from_host(&weights()[..], [IN, OUT], device).await?;
    let mut host = device.pinned::<f32>(IN).await?;
    for n in 0..times {
        host.copy_from_slice(&vec![n as f32; IN]);
        let buffer = stream.alloc_async::<f32>(IN).await?;
        let sent = stream.copy_into(&buffer, host);
        let x = Tensor::from_buffer(buffer, [1, IN])?;
        stream.enter(|| x.matmul(&weights).to_pinned::<f32>()).await?;
        host = sent.await?;
    }
    Ok(())
}

/// The instructions of one row on an idle batcher, beyond its copies and its product.
fn idle_cost(table: &Table) {
    let count = |name| instructions::count_between(name, 500, 2500).map(|counted| counted.total);
    let counts = ["batcher", "copy-and-compute", "tower-batch", "compute"].map(count);
    let [Some(batcher), Some(copies), Some(tower), Some(compute)] = counts else {
        table.note("valgrind is not installed, so no instructions were counted");
        return;
    };
    let (ours, rival) = (batcher - copies, tower - compute);
    let name = "instructions of an idle batcher for a row, beyond copies and product, of tower-batch's";
    let share = Figure::from(100.0 * ours / rival);
    table.row(name, "%", share, "50", Some(("tower-batch", Figure::from(rival))), Some(ours <= rival / 2.0));
}

fn main() {
    let options = Options::from_command_line();
    if let Some((name, times)) = &options.only {
        return one_loop(name, *times);
    }
    let table = Table::new("serve: batches of calls in process");
    throughput(&options, &table);
    http::run(&options, &table);
    overload(&options, &table);
    idle_cost(&table);
}
