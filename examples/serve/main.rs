//! An inference service: handwritten digits over HTTP, in batches, by the KServe v2 protocol.
//!
//! ```sh
//! # train the network and save it:
//! cargo run --release -p warpline-examples --features save --example digits -- \
//!     --save digits.safetensors
//! cargo run --release -p warpline-examples --features serve --example serve
//! # in another terminal, an image of grey values from 0 to 16:
//! curl http://127.0.0.1:8080/v2/models/digits
//! PIXELS=$(printf '8,%.0s' $(seq 63))8
//! curl http://127.0.0.1:8080/v2/models/digits/infer -d '{"id": "first", "inputs": [
//!     {"name": "pixels", "shape": [1, 64], "datatype": "FP32", "data": ['$PIXELS']}]}'
//! curl http://127.0.0.1:8080/metrics
//! # reads the file again and replaces the model, under load:
//! curl -X POST http://127.0.0.1:8080/v2/repository/models/digits/load
//! ```
//! `--help` lists the options. `client_test.py` drives the service by NVIDIA's `tritonclient`, and
//! `process_test.py` checks answers and exit statuses.
//!
//! | path | |
//! |---|---|
//! | `GET /` | a page with a canvas for a digit, which shows the answer |
//! | `GET /v2/health/live`, `GET /v2/health/ready` | the process runs; it answers requests |
//! | `GET /v2`, `GET /v2/models/digits` | the service, and the inputs and outputs of the model |
//! | `GET /v2/models/digits/ready` | the model answers requests |
//! | `POST /v2/models/digits/infer` | answers a request |
//! | `POST /v2/repository/index` | the models, of which there is one, and its state |
//! | `POST /v2/repository/models/digits/load` | reads the file again |
//! | `GET /metrics` | figures as Prometheus reads them |
//!
//! The model `digits` has the input `pixels`, FP32 `[rows, 64]`, and the outputs `logits`, FP32
//! `[rows, 10]`, and `digit`, INT64 `[rows]`. Tensors are JSON or binary. Clients send grey
//! values. The service divides them by 16 as it writes them into the batch, as the loader of the
//! training does.
//!
//! Each row is a call of its own to the batcher, so rows of several requests share batches. The
//! parameter `batch_rows` of a response has the size of the batch of each row. A request is
//! refused if one of its rows finds no room, so a large one needs a queue that is nearly empty.
//!
//! # Versions
//! A response names in `model_version` the version that computed all of its rows. The file that
//! was loaded at the start is version 1, and each load adds 1. If the model is replaced while it
//! computes a request, the rows of the older version are computed again, at most three times. If
//! the rows then still have several versions, the answer is 503. Only the current version is
//! served.
//!
//! # Answers without a result
//! The body is `{"error": "the reason"}`.
//!
//! | status | |
//! |---|---|
//! | 400 | a mistake in the request; nothing of it has reached the device |
//! | 400 | for a load: the file is missing, or is none of the network; the model before stays |
//! | 403 | a page of another site sent the request to infer or load |
//! | 404, 405 | an unknown path, model or method, or a version that is not the current one |
//! | 408 | the body was not sent within `--client-seconds` |
//! | 413, 415 | a body that is too long or compressed |
//! | 500 | the model failed for the batch |
//! | 501 | a part of Triton's protocol that this service does not have |
//! | 503 | with `Retry-After`: too many rows are queued, or the model was replaced too often |
//! | 503 | without: the service stops, or its device has failed |
//! | 504 | no answer before the deadline, or no load within `--load-seconds` |
//!
//! After a refusal, up to 64 MiB of the body that were not read are discarded, for at most
//! `--client-seconds`. Then the connection is closed, and a client that still sends may get an
//! error of its connection instead of the answer.
//!
//! The origin of a page is compared with the header `Host`, so a proxy must pass it on unchanged.
//!
//! A deadline is the header `deadline-ms`, or Triton's parameter `timeout`, in µs; the earlier one
//! counts, from the time at which the request was read.
//!
//! If `--max-connections` are open, the one that is idle longest, for a quarter of a second or
//! more, is closed for the next client. If all of them have a request, further clients wait, and
//! so do health probes: choose a limit above the number of requests at a time, or a longer timeout
//! of the probes.
//!
//! A client that stalls is cut off after `--client-seconds`, and so are, at the end, connections
//! that still have a request 2 s after the drain. The log has both numbers.
//!
//! # Exit status
//! | status | |
//! |---|---|
//! | 0 | SIGTERM or Ctrl-C, and all accepted rows were answered; a load may be cut off |
//! | 1 | the service did not start, or an error that is none of these |
//! | 2 | an argument that is wrong by itself |
//! | 3 | the device has failed; a supervisor starts a new process |
//! | 4 | SIGTERM or Ctrl-C, and `--drain-seconds` did not suffice |
//! | 5 | a second SIGTERM or Ctrl-C, a quarter of a second later or more |
//!
//! `--fail-at-op` rehearses a device fault, on a CPU device.
//!
//! Outside this repository it needs:
//!
//! ```toml
//! [dependencies]
//! anyhow = "1"
//! axum = "0.8"
//! clap = { version = "4", features = ["derive"] }
//! futures = "0.3"
//! hyper = { version = "1", features = ["http1", "server"] }
//! hyper-util = { version = "0.1", features = ["service", "tokio"] }
//! metrics = "0.24"
//! metrics-exporter-prometheus = { version = "0.18", default-features = false }
//! serde = { version = "1", features = ["derive"] }
//! serde_json = { version = "1", features = ["raw_value"] }
//! tokio = { version = "1", features = ["full"] }
//! tokio-io-timeout = "1.2"
//! warpline = { path = "../warpline", features = [
//!     "clap", "metrics", "safetensors", "serve", "test-util",
//! ] }
//!
//! [dev-dependencies]
//! safetensors = "0.7"
//! tower = { version = "0.5", features = ["util"] }
//! ```

mod connections;
mod extract;
mod figures;
mod headers;
mod life;
mod log;
mod network;
mod protocol;
mod refused;
mod routes;
mod service;
mod signals;
#[cfg(test)]
mod tests;

use anyhow::Context;
use clap::Parser;
use clap::builder::RangedU64ValueParser;
use life::{Ending, OnFault};
use log::{say, warn};
use service::{Service, Settings};
use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use warpline::prelude::*;
use warpline::{DeviceArgs, DeviceId, HealthState};

/// The exit status after a device fault.
const EXIT_FAULT: u8 = 3;
/// The exit status after a stop that left requests without an answer.
const EXIT_LEFT: u8 = 4;

#[derive(Parser)]
#[command(about = "Answers with the digits that images show, over HTTP, by the KServe v2 protocol")]
struct Options {
    /// The address to listen on.
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: String,
    /// The weights, from the example `digits` with `--save`.
    #[arg(long, value_name = "FILE", default_value = "digits.safetensors")]
    model: PathBuf,
    #[command(flatten)]
    device: DeviceArgs,
    /// The most rows of a batch.
    #[arg(long, default_value_t = 32, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    max_rows: usize,
    /// The time that the first row of a batch waits for others, in µs.
    #[arg(long, default_value_t = 500)]
    max_wait_us: u64,
    /// The most rows that wait for a batch, and the most of one request.
    #[arg(long, default_value_t = 256)]
    max_queued: usize,
    /// The number of batches that run at a time.
    #[arg(long, default_value_t = 2, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    in_flight: usize,
    /// The most connections. For the next client, the one that is idle longest is closed.
    #[arg(long, default_value_t = 256, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    max_connections: usize,
    /// The time in which a client sends a head or a body, or takes part of an answer, in seconds.
    /// A connection without a request is closed after it, too.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    client_seconds: u64,
    /// The time in which the file is loaded, at the start and again on request, in seconds.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    load_seconds: u64,
    /// The time in which accepted requests are answered after SIGTERM or Ctrl-C, in seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(..=86_400))]
    drain_seconds: u64,
    /// The reaction to a failed device.
    #[arg(long, value_enum, default_value_t = OnFault::Exit)]
    on_fault: OnFault,
    /// Makes the Nth op of a CPU device fail it, as a rehearsal of a device fault.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    fail_at_op: Option<u64>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let tokio = match tokio::runtime::Runtime::new() {
        Ok(tokio) => tokio,
        Err(error) => {
            warn(format_args!("error: cannot start threads: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let status = status_of(tokio.block_on(run(options)));
    // Dropping it would wait for a thread that reads a file, which may never return.
    tokio.shutdown_background();
    status
}

/// Reports the end of the service, and returns its exit status.
fn status_of(ended: anyhow::Result<Ending>) -> ExitCode {
    match ended {
        Ok(Ending::Drained) => {
            say("stopped: all accepted rows were answered");
            ExitCode::SUCCESS
        }
        Ok(Ending::Left { refused, running }) => {
            warn(format_args!(
                "stopped at the deadline: {refused} queued rows were refused, {running} were running"
            ));
            ExitCode::from(EXIT_LEFT)
        }
        Ok(Ending::Fault(error)) => {
            warn(format_args!("stopped after a device fault: {error}"));
            ExitCode::from(EXIT_FAULT)
        }
        Err(error) => {
            warn(format_args!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options) -> anyhow::Result<Ending> {
    let runtime = match options.fail_at_op {
        Some(nth) => Runtime::builder().fail_op(nth).build()?,
        None => Runtime::new()?,
    };
    let device = options.device.device_of(&runtime)?;
    if options.fail_at_op.is_some() && !matches!(device.id(), DeviceId::Cpu(_)) {
        anyhow::bail!("--fail-at-op works on CPU devices alone, and this is {device}; add --disable-cuda");
    }
    let settings = Settings {
        model: options.model,
        max_rows: options.max_rows,
        max_wait: Duration::from_micros(options.max_wait_us),
        max_queued: options.max_queued,
        in_flight: options.in_flight,
        load_time: Duration::from_secs(options.load_seconds),
        max_connections: options.max_connections,
        client_time: Duration::from_secs(options.client_seconds),
    };
    let mut stop = pin!(signals::asked_to_stop()?);
    let started = tokio::select! {
        started = Service::start(device.clone(), settings) => started,
        // Nothing was accepted.
        () = &mut stop => return Ok(Ending::Drained),
    };
    let service = match (started, device.health()) {
        (Err(_), HealthState::Failing(fault)) => return Ok(Ending::Fault(fault)),
        (started, _) => Arc::new(started?),
    };
    let address = &options.listen;
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    say(format_args!("listening on http://{}, computing on {}", listener.local_addr()?, service.device));
    let drain = Duration::from_secs(options.drain_seconds);
    let ending = life::serve(service, listener, stop, drain, options.on_fault).await;
    if let Ending::Drained = ending {
        runtime.shut_down().await?;
    }
    Ok(ending)
}
