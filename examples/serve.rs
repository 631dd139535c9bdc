//! A service that gives each request a stream from a bounded pool, and a deadline.
//!
//! ```sh
//! cargo run -p warpline-examples --features serve --example serve
//! curl -d 1,2,3,4 http://127.0.0.1:8080/standardize # in another terminal
//! # sends itself requests, checks the answers and stops:
//! cargo run -p warpline-examples --features serve --example serve -- --self-test
//! ```
//! `POST /standardize` takes a line of numbers and answers with (x − mean) / deviation. If no
//! stream becomes free before the deadline, the answer is 503. If the device has not finished
//! before it, the answer is 504. The work then continues, its stream goes back to the pool when it
//! has finished, and other requests are not affected. A header `deadline-ms` sets the deadline. On
//! Ctrl-C the service answers open requests, drains the device and stops.
//!
//! The order check is in `deny` mode. The buffers of a model are written once, before any request
//! knows them, and each request waits on the device for the event after those writes, not for other
//! requests. A new model has new buffers, so no request can race with its writes.
//!
//! Outside this repository it needs:
//!
//! ```toml
//! [dependencies]
//! anyhow = "1"
//! axum = "0.8"
//! clap = { version = "4", features = ["derive"] }
//! tokio = { version = "1", features = ["full"] }
//! warpline = { path = "../warpline", features = ["clap"] }
//! ```

use anyhow::Context;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::{Router, routing::post};
use clap::Parser;
use std::net::SocketAddr;
use std::sync::{Arc, RwLock};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use warpline::DeviceArgs;
use warpline::ops;
use warpline::prelude::*;

#[derive(Parser)]
#[command(about = "Standardizes rows of numbers over HTTP")]
struct Options {
    /// The address to listen on.
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: String,
    #[command(flatten)]
    device: DeviceArgs,
    /// The number of requests that use the device at a time.
    #[arg(long, default_value = "4")]
    streams: usize,
    /// Listens on a free port, sends itself requests, checks the answers and stops.
    #[arg(long)]
    self_test: bool,
}

type Answer = Result<String, (StatusCode, String)>;

struct Service {
    device: Device,
    pool: StreamPool,
    loader: Stream,
    model: RwLock<Model>,
}

#[derive(Clone)]
struct Model {
    mean: Buffer<f32>,
    deviation: Buffer<f32>,
    written: Event,
}

impl Model {
    /// Loads a model onto the device, in stream order of `loader`.
    fn load(loader: &Stream, mean: &[f32], deviation: &[f32]) -> warpline::Result<Self> {
        let buffers = (loader.alloc(mean.len())?, loader.alloc(deviation.len())?);
        loader.write(&buffers.0, mean).queued()?;
        loader.write(&buffers.1, deviation).queued()?;
        Ok(Model { mean: buffers.0, deviation: buffers.1, written: loader.record_event() })
    }
}

impl Service {
    fn new(device: Device, streams: usize) -> warpline::Result<Self> {
        let loader = device.stream().label("loader").build()?;
        let model = Model::load(&loader, &[0.0, 10.0, 20.0, 30.0], &[1.0, 2.0, 4.0, 8.0])?;
        let pool = device.stream_pool(streams)?.label("request");
        Ok(Service { device, pool, loader, model: RwLock::new(model) })
    }

    async fn standardize(State(service): State<Arc<Service>>, headers: HeaderMap, line: String) -> Answer {
        let header = headers.get("deadline-ms").and_then(|value| value.to_str().ok()?.parse().ok());
        let deadline = Instant::now() + Duration::from_millis(header.unwrap_or(2000));
        let model = service.model.read().expect("no thread panics while it holds the lock").clone();
        let row = parse(&line, model.mean.len()).map_err(|why| (StatusCode::BAD_REQUEST, why))?;

        let failed = |error: Error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
        let busy = |_| (StatusCode::SERVICE_UNAVAILABLE, "no stream is free; try again".to_owned());
        let late = |_| (StatusCode::GATEWAY_TIMEOUT, "not done before the deadline".to_owned());
        let lease = timeout_at(deadline, service.pool.lease()).await.map_err(busy)?.map_err(failed)?;
        let work = run(&service.device, &lease, &model, &row);
        let row = timeout_at(deadline, work).await.map_err(late)?.map_err(failed)?;
        Ok(row.iter().map(f32::to_string).collect::<Vec<_>>().join(","))
    }
}

async fn run(device: &Device, stream: &Stream, model: &Model, row: &[f32]) -> warpline::Result<Vec<f32>> {
    let mut host = device.pinned::<f32>(row.len()).await?;
    host.copy_from_slice(row);
    let (x, _sent) = stream.copy_to_device(host)?;
    stream.wait_event(&model.written);
    stream.enter(|| ops::standardize_(&x, &model.mean, &model.deviation)).queued()?;
    stream.read(&x).await
}

fn parse(line: &str, columns: usize) -> Result<Vec<f32>, String> {
    let number = |field: &str| field.trim().parse().map_err(|_| format!("\"{field}\" is not a number"));
    let row = line.split(',').map(number).collect::<Result<Vec<_>, _>>()?;
    if row.len() != columns {
        return Err(format!("{} numbers, and the model has {columns} columns", row.len()));
    }
    Ok(row)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let runtime = Runtime::new()?;
    let service = Arc::new(Service::new(options.device.device_of(&runtime)?, options.streams)?);
    let address = if options.self_test { "127.0.0.1:0" } else { &options.listen };
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}, computing on {}", service.device);

    let (stop, stopped) = oneshot::channel::<()>();
    let routes = Router::new().route("/standardize", post(Service::standardize)).with_state(service.clone());
    let server = axum::serve(listener, routes).with_graceful_shutdown(async move {
        let _ = stopped.await;
    });
    let server = tokio::spawn(server.into_future());
    if options.self_test {
        self_test(&service, address).await?;
    } else {
        tokio::signal::ctrl_c().await?;
    }

    println!("stopping: open requests are answered, then the device is drained");
    let _ = stop.send(());
    server.await??;
    drained(&service.pool).await?;
    runtime.shut_down().await?;
    Ok(())
}

/// Waits until the work of every lease has finished, which makes all places of the pool available.
async fn drained(pool: &StreamPool) -> warpline::Result<()> {
    let mut all = Vec::new();
    while all.len() < pool.size() {
        all.push(pool.lease().await?);
    }
    Ok(())
}

const PATIENT: u64 = 60_000;
const HASTY: u64 = 100;

async fn self_test(service: &Service, address: SocketAddr) -> anyhow::Result<()> {
    // Send more requests at once than there are streams.
    let mut asking = JoinSet::new();
    for i in 0..4 * service.pool.size() {
        asking.spawn(async move { (i, ask(address, PATIENT, &format!("{i},12,24,38")).await) });
    }
    let mut answers = 0;
    while let Some(answered) = asking.join_next().await {
        let (i, answer) = answered?;
        assert_eq!(answer?, (200, format!("{i},1,1,1")));
        answers += 1;
    }
    println!("{answers} requests at once, {} streams: all answered", service.pool.size());

    let (status, why) = ask(address, PATIENT, "1,2,3").await?;
    assert_eq!((status, &*why), (400, "3 numbers, and the model has 4 columns"));
    let (status, why) = ask(address, PATIENT, "1,2,three,4").await?;
    assert_eq!((status, &*why), (400, "\"three\" is not a number"));
    println!("mistakes: {status} {why}");

    // The writes of the next model are enqueued and do not run, because a host function before them
    // waits for a message.
    drained(&service.pool).await?;
    let (arrive, arrived) = std::sync::mpsc::channel::<()>();
    let late = service.loader.call(move || arrived.recv().is_ok());
    *service.model.write().expect("no thread panics while it holds the lock") =
        Model::load(&service.loader, &[0.0; 4], &[1.0; 4])?;
    for _ in 0..service.pool.size() {
        let (status, why) = ask(address, HASTY, "1,2,3,4").await?;
        assert_eq!(status, 504, "{why}");
    }
    println!("the model is late: 504, and its stream is busy until it comes");
    let (status, why) = ask(address, HASTY, "1,2,3,4").await?;
    assert_eq!(status, 503, "{why}");
    println!("every stream is busy: {status} {why}");

    drop(arrive);
    late.await?;
    assert_eq!(ask(address, PATIENT, "1,2,3,4").await?, (200, "1,2,3,4".to_owned()));
    println!("the model is there: answered with it");
    Ok(())
}

/// Sends a request over minimal HTTP. Returns the status and the body of the answer.
async fn ask(address: SocketAddr, deadline_ms: u64, line: &str) -> anyhow::Result<(u16, String)> {
    let mut connection = TcpStream::connect(address).await?;
    let request = format!(
        "POST /standardize HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: text/plain\r\n\
         deadline-ms: {deadline_ms}\r\ncontent-length: {}\r\n\r\n{line}",
        line.len()
    );
    connection.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    connection.read_to_string(&mut response).await?;
    let (head, body) = response.split_once("\r\n\r\n").context("the answer has no body")?;
    let status = head.split(' ').nth(1).context("the answer has no status")?.parse()?;
    Ok((status, body.to_owned()))
}
