//! The ends of the service: a drain, a drain that takes too long, and a device that fails.

use super::*;
use crate::life::{Ending, OnFault, serve};
use crate::refused::Refused;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A service that listens, and the way to stop it.
struct Listening {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<Ending>,
}

async fn listen(rig: &Rig, drain: Duration, on_fault: OnFault) -> Listening {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let service = rig.service.clone();
    let ended = tokio::spawn(async move {
        let stop = async {
            // A dropped sender stops it too.
            let _ = stopped.await;
        };
        serve(service, listener, stop, drain, on_fault).await
    });
    Listening { address, stop, ended }
}

/// Sends a request over a connection of its own. Returns the status and the body.
async fn send(address: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut connection = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    connection.read_to_string(&mut response).await.unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[test]
fn a_service_that_stops_answers_what_it_accepted_and_refuses_the_rest() {
    test(async {
        let rig = Rig::narrow().await;
        let mut held = rig.hold(&rig.reference).await;
        let listening = listen(&rig, Duration::from_secs(50), OnFault::Exit).await;
        let image = Numbers(40).images(1);
        let body = in_json(&image).to_string();
        let address = listening.address;
        let accepted = [(); 2].map(|()| {
            let body = body.clone();
            tokio::spawn(async move { send(address, "POST", INFER, &body).await })
        });
        held.began.recv().await.unwrap();
        rig.queued(1).await;
        let mut idle = TcpStream::connect(address).await.unwrap();
        idle.write_all(b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        assert!(idle.read(&mut [0; 1024]).await.unwrap() > 0);
        listening.stop.send(()).unwrap();
        while rig.service.why_not_ready().is_none() {
            tokio::task::yield_now().await;
        }
        // It still listens, so that its unreadiness can be seen.
        let (status, why) = send(address, "GET", "/v2/health/ready", "").await;
        assert_eq!((status, why.contains("is stopping")), (503, true), "{why}");
        assert_eq!(send(address, "GET", "/v2/health/live", "").await.0, 200);
        let (status, why) = send(address, "POST", INFER, &body).await;
        assert_eq!((status, why.contains("drains")), (503, true), "{why}");
        let index = rig.post("/v2/repository/index", "").await.ok().json();
        assert_eq!(index[0]["state"], "UNAVAILABLE");
        held.permits.add_permits(2);
        for call in accepted {
            let (status, answer) = call.await.unwrap();
            assert_eq!(status, 200, "{answer}");
            let answer: Value = serde_json::from_str(&answer).unwrap();
            assert_eq!(f32s_of(&answer["outputs"][0]["data"]), rig.reference.logits(&image));
        }
        let ending = listening.ended.await.unwrap();
        assert!(matches!(ending, Ending::Drained), "{ending:?}");
        assert!(TcpStream::connect(address).await.is_err(), "it still listens");
        assert_eq!(idle.read(&mut [0; 1024]).await.unwrap(), 0, "the idle connection was not closed");
    });
}

#[test]
fn a_service_that_stops_computes_rows_of_an_older_version_again() {
    test(async {
        let rig = Rig::narrow().await;
        let (second, third) = (Reference::new(2), Reference::new(3));
        let mut held = rig.hold(&second).await;
        let listening = listen(&rig, Duration::from_secs(50), OnFault::Exit).await;
        let images = Numbers(44).images(2);
        let (address, body) = (listening.address, in_json(&images).to_string());
        let accepted = tokio::spawn(async move { send(address, "POST", INFER, &body).await });
        held.began.recv().await.unwrap();
        rig.queued(1).await;
        let next = rig.hold(&third).await;
        listening.stop.send(()).unwrap();
        while rig.service.why_not_ready().is_none() {
            tokio::task::yield_now().await;
        }
        held.permits.add_permits(1);
        next.permits.add_permits(2);
        let (status, answer) = accepted.await.unwrap();
        assert_eq!(status, 200, "{answer}");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let logits: Vec<_> = images.chunks(PIXELS).flat_map(|image| third.logits(image)).collect();
        assert_eq!(f32s_of(&answer["outputs"][0]["data"]), logits);
        let ending = listening.ended.await.unwrap();
        assert!(matches!(ending, Ending::Drained), "{ending:?}");
    });
}

#[test]
fn a_load_during_which_the_service_stops_leaves_the_model() {
    test(async {
        let rig = Rig::new().await;
        let gate = rig.service.loader.hold().unwrap();
        let held = rig.service.loader.issued();
        let load = rig.post("/v2/repository/models/digits/load", "");
        let stop = async {
            // The load has begun once it has enqueued a write, which the gate holds.
            while rig.service.loader.issued() == held {
                tokio::task::yield_now().await;
            }
            rig.service.begin_to_stop();
            gate.open();
        };
        let (loaded, ()) = tokio::join!(load, stop);
        loaded.refuses(StatusCode::SERVICE_UNAVAILABLE, &["version 1 stays", "is stopping"]);
        assert_eq!(rig.service.version(), 1);
    });
}

#[test]
fn a_drain_that_takes_too_long_ends_with_the_numbers_of_those_left() {
    test(async {
        let rig = Rig::narrow().await;
        let mut held = rig.hold(&rig.reference).await;
        let listening = listen(&rig, Duration::from_millis(20), OnFault::Exit).await;
        let body = in_json(&Numbers(41).images(1)).to_string();
        let address = listening.address;
        let spawn = || {
            let body = body.clone();
            tokio::spawn(async move { send(address, "POST", INFER, &body).await })
        };
        let running = spawn();
        held.began.recv().await.unwrap();
        let queued = [spawn(), spawn()];
        rig.queued(2).await;
        listening.stop.send(()).unwrap();
        for call in queued {
            let (status, why) = call.await.unwrap();
            assert_eq!((status, why.contains("drains")), (503, true), "{why}");
        }
        held.permits.add_permits(1);
        assert_eq!(running.await.unwrap().0, 200);
        let ending = listening.ended.await.unwrap();
        assert!(matches!(ending, Ending::Left { refused: 2, running: 1 }), "{ending:?}");
    });
}

/// Returns a service whose device fails while it answers requests, and the body of such a request.
async fn about_to_fail() -> (Rig, String) {
    let rig = Rig::with(Runtime::builder().fail_op(30), |_| {}).await;
    (rig, in_json(&Numbers(42).images(1)).to_string())
}

#[test]
fn a_device_that_fails_makes_the_service_unready_and_requests_fail_fast() {
    test(async {
        let (rig, body) = about_to_fail().await;
        let listening = listen(&rig, Duration::from_secs(50), OnFault::Stay).await;
        let mut answers = 0;
        let failed = loop {
            let answer = rig.post(INFER, body.clone()).await;
            if answer.status != StatusCode::OK {
                break answer;
            }
            answers += 1;
        };
        assert!(answers > 0, "the device failed too early");
        let down = StatusCode::SERVICE_UNAVAILABLE;
        failed.refuses(down, &["the fault plan asked for it"]);
        assert_eq!(failed.header("retry-after"), "");
        // Nothing waits, and nothing becomes ready again.
        for _ in 0..3 {
            rig.get("/v2/health/ready").await.refuses(down, &["cpu:0 has failed", "the fault plan"]);
            rig.get("/v2/models/digits/ready").await.refuses(down, &["cpu:0 has failed"]);
            rig.post(INFER, body.clone()).await.refuses(down, &["failed with its device"]);
            rig.post("/v2/repository/models/digits/load", "").await.refuses(down, &["cpu:0 has failed"]);
        }
        rig.get("/v2/health/live").await.ok();
        let metrics = rig.get("/metrics").await;
        let text = std::str::from_utf8(&metrics.ok().body).unwrap();
        assert!(
            text.contains("\nwarpline_serve_ready 0\n")
                && text.contains("\nwarpline_device_up{device=\"cpu:0\"} 0\n")
        );
        // It stays until it is asked to stop.
        assert_eq!(send(listening.address, "GET", "/v2/health/ready", "").await.0, 503);
        assert!(!listening.ended.is_finished());
        listening.stop.send(()).unwrap();
        let ending = listening.ended.await.unwrap();
        assert!(matches!(ending, Ending::Fault(_)), "{ending:?}");
    });
}

#[test]
fn a_device_that_fails_ends_the_service_after_open_requests_were_answered() {
    test(async {
        let (rig, body) = about_to_fail().await;
        let listening = listen(&rig, Duration::from_secs(50), OnFault::Exit).await;
        let address = listening.address;
        // Each request has its own batch or shares one, and one of the batches fails.
        let calls: Vec<_> = (0..40)
            .map(|_| {
                let body = body.clone();
                tokio::spawn(async move { send_if_open(address, &body).await })
            })
            .collect();
        let ending = listening.ended.await.unwrap();
        let Ending::Fault(error) = ending else { panic!("{ending:?}") };
        assert!(error.to_string().contains("the fault plan asked for it"), "{error}");
        let mut failed = 0;
        for call in calls {
            match call.await.unwrap() {
                Some((503, why)) => {
                    assert!(why.contains("failed with its device"), "{why}");
                    failed += 1;
                }
                Some((status, why)) => assert_eq!(status, 200, "{why}"),
                // The listener was closed.
                None => {}
            }
        }
        assert!(failed > 0);
        drop(listening.stop);
    });
}

/// Sends a request. Returns nothing if no connection was accepted any more.
async fn send_if_open(address: SocketAddr, body: &str) -> Option<(u16, String)> {
    let mut connection = TcpStream::connect(address).await.ok()?;
    let request = format!(
        "POST {INFER} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    connection.write_all(request.as_bytes()).await.ok()?;
    let mut response = String::new();
    connection.read_to_string(&mut response).await.ok()?;
    let (head, body) = response.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

#[test]
fn a_service_whose_device_fails_while_it_loads_does_not_start() {
    test(async {
        let failed = Rig::try_with(Runtime::builder().fail_op(2), |_| {}).await;
        let error = failed.map(drop).unwrap_err();
        assert!(format!("{error:#}").contains("the fault plan asked for it"), "{error:#}");
    });
}

#[test]
fn a_service_whose_batcher_is_closed_is_not_ready() {
    test(async {
        let rig = Rig::new().await;
        rig.get("/v2/health/ready").await.ok();
        rig.service.batcher.drain(tokio::time::Instant::now()).await;
        let down = StatusCode::SERVICE_UNAVAILABLE;
        for path in ["/v2/health/ready", "/v2/models/digits/ready"] {
            rig.get(path).await.refuses(down, &["the batcher accepts no more rows"]);
        }
        rig.get("/v2/health/live").await.ok();
    });
}

#[test]
fn a_model_that_fails_or_panics_is_an_error_of_the_server() {
    test(async {
        let rig = Rig::new().await;
        let image = in_json(&Numbers(43).images(1));
        rig.service.batcher.swap(|_stream, _pixels, _rows| async move { panic!("on purpose") }).unwrap();
        rig.infer(&image).await.refuses(StatusCode::INTERNAL_SERVER_ERROR, &["panicked", "on purpose"]);
        rig.service
            .batcher
            .swap(|_stream, (pixels,), _rows| async move { Ok((pixels.clone(), pixels)) })
            .unwrap();
        rig.infer(&image).await.refuses(StatusCode::INTERNAL_SERVER_ERROR, &["output 0 of the model"]);
        rig.get("/v2/health/ready").await.ok();
    });
}

#[test]
fn a_refusal_has_the_status_of_its_cause() {
    use crate::service::Unanswered;
    use warpline::serve::ServeError;
    let of = |error| Refused::from(Unanswered::from(error));
    let full = of(ServeError::Full { max_queued: 4 });
    assert_eq!((full.status.as_u16(), full.retry_after), (503, Some(1)));
    assert_eq!(of(ServeError::Draining).status.as_u16(), 503);
    assert_eq!(of(ServeError::Stopped).status.as_u16(), 503);
    assert_eq!(of(ServeError::Late).status.as_u16(), 504);
}
