//! A service over HTTP, once with each batcher.
//!
//! A request is a row of numbers as bytes, and so is the answer. 64 connections on loopback ask
//! again once they have their answer; then, at half the rate that the batcher by hand reached, at
//! even times. They share the two cores with the service.

use crate::support::{self, Figure, Options, Sample, Table, ratio};
use crate::{Forward, IN, Job, MAX_ROWS, OUT, Rows, TASKS, by_hand, compute, product, weights};
use axum::Router;
use axum::body::Bytes;
use axum::routing::post;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use warpline::prelude::*;

/// The bytes of an answer to the head's end, which is the same for all sides.
const HEAD_END: &[u8] = b"\r\n\r\n";

fn numbers(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four bytes")))
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Serves `answer` on a free port of loopback.
fn serve<F, Fut>(tokio: &tokio::runtime::Runtime, answer: F) -> SocketAddr
where
    F: Fn(Bytes) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Vec<u8>> + Send + 'static,
{
    let listener = tokio.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
    let address = listener.local_addr().expect("it listens");
    let router = Router::new().route("/", post(move |body: Bytes| answer(body)));
    tokio.spawn(async move { axum::serve(listener, router).await });
    address
}

/// Returns the addresses of three services: with this batcher, with one by hand, and with `amate`.
fn services(tokio: &tokio::runtime::Runtime, device: &Device) -> [SocketAddr; 3] {
    let batcher: Rows = tokio.block_on(product(device)).expect("a batcher");
    let ours = serve(tokio, move |body| {
        let batcher = batcher.clone();
        async move {
            let call = batcher.submit(|(row,)| {
                row.iter_mut().zip(numbers(&body)).for_each(|(to, number)| *to = number);
                Ok(())
            });
            bytes(call.await.expect("it answers").outputs().0)
        }
    });
    let entered = tokio.enter();
    let of_hand = weights();
    let hand = by_hand(MAX_ROWS, move |jobs| compute(jobs, &of_hand));
    let config =
        amate::Config { max_batch: MAX_ROWS, workers: 2, capacity: Some(1024), waits_unannounced: false };
    let amate = Arc::new(amate::Engine::start(Forward(weights()), config, |n| format!("amate-{n}")));
    drop(entered);
    let hand = serve(tokio, move |body| {
        let hand = hand.clone();
        async move {
            let (answer, answered) = oneshot::channel();
            let job: Job = (numbers(&body).collect(), answer);
            hand.send(job).await.expect("the batcher lives");
            bytes(&answered.await.expect("it answers"))
        }
    });
    let amate = serve(tokio, move |body| {
        let amate = amate.clone();
        async move {
            let (answer, answered) = oneshot::channel();
            assert!(amate.submit(None, (numbers(&body).collect(), answer)).is_ok());
            bytes(&answered.await.expect("it answers"))
        }
    });
    [ours, hand, amate]
}

/// Sends a request and reads the answer, whose length is known.
async fn ask(connection: &mut TcpStream, request: &[u8], response: &mut Vec<u8>) {
    connection.write_all(request).await.expect("the service lives");
    response.clear();
    loop {
        let end = response.windows(HEAD_END.len()).position(|at| at == HEAD_END);
        if end.is_some_and(|end| response.len() == end + HEAD_END.len() + 4 * OUT) {
            break;
        }
        assert!(connection.read_buf(response).await.expect("the service lives") > 0);
    }
    assert!(response.starts_with(b"HTTP/1.1 200"));
}

fn request(connection: usize) -> Vec<u8> {
    let body = bytes(&[connection as f32; IN]);
    let head = format!("POST / HTTP/1.1\r\nhost: bench\r\ncontent-length: {}\r\n\r\n", body.len());
    [head.into_bytes(), body].concat()
}

/// Asks over `TASKS` connections for so many seconds, at `rate` requests a second in all, or as
/// fast as answers come. Returns the answers a second, and the time of each, both without the
/// first tenth.
fn load(address: SocketAddr, seconds: f64, rate: Option<f64>) -> (f64, Sample) {
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a tokio runtime");
    tokio.block_on(async {
        let began = Instant::now();
        let every = rate.map(|rate| Duration::from_secs_f64(TASKS as f64 / rate));
        let connections = (0..TASKS).map(|number| {
            tokio::spawn(async move {
                let mut connection = TcpStream::connect(address).await.expect("the service listens");
                connection.set_nodelay(true).expect("a TCP connection");
                let (request, mut response, mut times) = (request(number), Vec::new(), Vec::new());
                // Spread over the interval.
                let mut next = began + every.unwrap_or_default().mul_f64(number as f64 / TASKS as f64);
                while began.elapsed().as_secs_f64() < seconds {
                    let mut asked = Instant::now();
                    if let Some(every) = every {
                        if next > asked {
                            // The load is at even times: that is its definition, and no test.
                            tokio::time::sleep_until(next.into()).await;
                            asked = Instant::now();
                        } else {
                            // The answer before came too late, so this caller waits already.
                            asked = next;
                        }
                        next += every;
                    }
                    ask(&mut connection, &request, &mut response).await;
                    if began.elapsed().as_secs_f64() >= seconds / 10.0 {
                        times.push(asked.elapsed().as_secs_f64() * 1e3);
                    }
                }
                times
            })
        });
        let mut times = Vec::new();
        for connection in connections.collect::<Vec<_>>() {
            times.extend(connection.await.expect("it does not panic"));
        }
        (times.len() as f64 / (began.elapsed().as_secs_f64() - seconds / 10.0), Sample(times))
    })
}

/// Compares the answers a second, and the slowest hundredth of answers at half that load.
pub(crate) fn run(options: &Options, table: &Table) {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let tokio = tokio.expect("a tokio runtime");
    let (_runtime, device) = support::cpu();
    let services = services(&tokio, &device);
    let seconds = if options.quick { 0.2 } else { 2.0 };
    let rates = support::interleave(
        options.rounds(9),
        services.map(|address| move || load(address, seconds, None).0).each_mut().map(|run| run as _),
    );
    let half = rates[1].median() / 2.0;
    let slowest = support::interleave(
        options.rounds(9),
        services
            .map(|address| move || load(address, seconds, Some(half)).1.quantile(0.99))
            .each_mut()
            .map(|run| run as _),
    );
    for (at, rival) in [(1, "by hand"), (2, "amate")] {
        let times = ratio(&rates[0], &rates[at]);
        let name = format!("answers a second over HTTP, {TASKS} connections, times {rival}'s");
        let met = times.median() >= 1.0;
        table.row(&name, "×", Figure::from(&times), "1", Some((rival, Figure::from(&rates[at]))), Some(met));
        let times = ratio(&slowest[0], &slowest[at]);
        let name = format!("the slowest hundredth over HTTP at half the load, times {rival}'s, in ms");
        let met = times.median() <= 1.0;
        table.row(
            &name,
            "×",
            Figure::from(&times),
            "1",
            Some((rival, Figure::from(&slowest[at]))),
            Some(met),
        );
    }
}
