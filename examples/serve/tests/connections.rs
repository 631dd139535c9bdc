//! Limits of connections and of their clients.

use super::*;
use crate::connections::{Connections, CutOff};
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const LIVE: &[u8] = b"GET /v2/health/live HTTP/1.1\r\nhost: digits\r\n\r\n";
const NONE: CutOff = CutOff { stalled: 0, open: 0 };
const LONG: Duration = Duration::from_secs(60);

/// Connections that are accepted until `close` is sent or dropped, and then their cut off ones.
struct Accepting {
    address: SocketAddr,
    close: oneshot::Sender<()>,
    cut_off: JoinHandle<CutOff>,
}

impl Accepting {
    async fn new(rig: &Rig, most: usize, time: Duration, grace: Duration) -> Self {
        let mut listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut connections = Connections::new(rig.router.clone(), most, time);
        let (close, closed) = oneshot::channel();
        let cut_off = tokio::spawn(async move {
            tokio::select! {
                _ = closed => {}
                never = connections.accept(&mut listener) => match never {},
            }
            connections.close(grace).await
        });
        Accepting { address, close, cut_off }
    }

    async fn connect(&self, sends: &[u8]) -> TcpStream {
        let mut client = TcpStream::connect(self.address).await.unwrap();
        client.write_all(sends).await.unwrap();
        client
    }

    /// Closes the connections, and returns the numbers of those that were cut off.
    async fn cut_off(self) -> CutOff {
        drop(self.close);
        self.cut_off.await.unwrap()
    }
}

/// Reads an answer without a body.
async fn is_live(client: &mut TcpStream) {
    let mut answer = [0; 1024];
    let len = client.read(&mut answer).await.unwrap();
    assert!(answer[..len].starts_with(b"HTTP/1.1 200 OK\r\n"), "{:?}", &answer[..len]);
}

/// Waits for the time after which an idle connection makes room, until one elsewhere has done so.
async fn idle_time_passes(rig: &Rig) {
    let elsewhere = Accepting::new(rig, 1, LONG, LONG).await;
    let mut idle = elsewhere.connect(b"").await;
    let mut next = elsewhere.connect(LIVE).await;
    is_live(&mut next).await;
    assert_eq!(rest(&mut idle).await, "");
}

/// Reads until the service closes the connection.
async fn rest(client: &mut TcpStream) -> String {
    let mut rest = String::new();
    client.read_to_string(&mut rest).await.unwrap();
    rest
}

#[test]
fn clients_beyond_the_limit_wait_while_all_connections_have_a_request() {
    test(async {
        let rig = Rig::narrow().await;
        let mut held = rig.hold(&rig.reference).await;
        let accepting = Accepting::new(&rig, 1, LONG, LONG).await;
        let body = in_json(&Numbers(52).images(1)).to_string();
        let head = format!("POST {INFER} HTTP/1.1\r\nhost: digits\r\ncontent-length: {}\r\n\r\n", body.len());
        let mut first = accepting.connect((head + &body).as_bytes()).await;
        held.began.recv().await.unwrap();
        let mut second = accepting.connect(LIVE).await;
        idle_time_passes(&rig).await;
        assert!(second.try_read(&mut [0]).is_err(), "there was no place for it");
        held.permits.add_permits(1);
        is_live(&mut first).await;
        is_live(&mut second).await;
        assert_eq!(rest(&mut first).await, "", "the idle connection was not closed");
        assert_eq!(accepting.cut_off().await, NONE);
        assert_eq!(rest(&mut second).await, "", "the idle connection was not closed");
    });
}

#[test]
fn the_connection_that_is_idle_longest_makes_room() {
    test(async {
        let rig = Rig::new().await;
        let accepting = Accepting::new(&rig, 3, LONG, LONG).await;
        let mut oldest = accepting.connect(LIVE).await;
        let mut next = accepting.connect(LIVE).await;
        is_live(&mut oldest).await;
        is_live(&mut next).await;
        idle_time_passes(&rig).await;
        let mut silent = accepting.connect(b"").await;
        idle_time_passes(&rig).await;
        // Its client would leave only later, and need not be waited for.
        oldest.write_all(b"GET /v3 HTTP/1.1\r\nhost: digits\r\n\r\n").await.unwrap();
        assert!(oldest.read(&mut [0; 1024]).await.unwrap() > 0);
        // Or a probe could fall idle within the same millisecond.
        idle_time_passes(&rig).await;
        // The order in which they fell idle.
        let mut probes = vec![];
        for client in [&mut next, &mut silent, &mut oldest] {
            let mut probe = accepting.connect(LIVE).await;
            is_live(&mut probe).await;
            assert_eq!(rest(client).await, "");
            probes.push(probe);
        }
        for probe in &mut probes {
            probe.write_all(LIVE).await.unwrap();
            is_live(probe).await;
        }
        assert_eq!(accepting.cut_off().await, NONE);
    });
}

#[test]
fn clients_that_stall_in_a_head_are_cut_off_and_idle_ones_only_closed() {
    test(async {
        let rig = Rig::new().await;
        let accepting = Accepting::new(&rig, 8, Duration::from_secs(1), LONG).await;
        let mut silent = accepting.connect(b"").await;
        let mut idle = accepting.connect(LIVE).await;
        is_live(&mut idle).await;
        let mut stalled = accepting.connect(&LIVE[..20]).await;
        for client in [&mut silent, &mut idle, &mut stalled] {
            assert_eq!(rest(client).await, "");
        }
        assert_eq!(accepting.cut_off().await, CutOff { stalled: 1, open: 0 });
    });
}

#[test]
fn a_body_that_does_not_arrive_in_time_is_answered_and_cut_off() {
    test(async {
        let set = |settings: &mut Settings| settings.client_time = Duration::from_millis(50);
        let rig = Rig::with(Runtime::builder(), set).await;
        let accepting = Accepting::new(&rig, 8, LONG, LONG).await;
        let request = format!("POST {INFER} HTTP/1.1\r\nhost: digits\r\ncontent-length: 9\r\n\r\n{{");
        let answer = rest(&mut accepting.connect(request.as_bytes()).await).await;
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
        assert!(answer.contains("{\"error\":\"the body was not sent within 50ms"), "{answer}");
        assert_eq!(accepting.cut_off().await, CutOff { stalled: 1, open: 0 });
    });
}

#[test]
fn refusals_reach_clients_that_still_send_the_body() {
    test(async {
        let rig = Rig::new().await;
        let accepting = Accepting::new(&rig, 8, LONG, LONG).await;
        let body = vec![b'x'; 20 << 20];
        let head = |header, len| {
            format!("POST {INFER} HTTP/1.1\r\nhost: digits\r\n{header}content-length: {len}\r\n\r\n")
        };
        let other_site = "origin: http://evil.example\r\n";
        for (status, header) in [(413, ""), (403, other_site)] {
            let mut client = accepting.connect(head(header, body.len()).as_bytes()).await;
            client.write_all(&body).await.unwrap();
            let answer = rest(&mut client).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        }
        // A client that sends without an end is cut off.
        let mut client = accepting.connect(head("", usize::MAX).as_bytes()).await;
        while client.write_all(&body).await.is_ok() {}
        // One that stops sending does not hold up the end.
        let mut client = accepting.connect(head(other_site, 9).as_bytes()).await;
        assert!(rest(&mut client).await.starts_with("HTTP/1.1 403 "));
        assert_eq!(accepting.cut_off().await, NONE);
    });
}

#[test]
fn a_client_that_does_not_take_its_answers_is_cut_off() {
    test(async {
        let rig = Rig::new().await;
        let accepting = Accepting::new(&rig, 8, Duration::from_secs(1), LONG).await;
        let mut client = accepting.connect(LIVE).await;
        is_live(&mut client).await;
        // Both buffers fill up, until the service closes the connection.
        let page = b"GET / HTTP/1.1\r\nhost: digits\r\n\r\n".repeat(1000);
        while client.write_all(&page).await.is_ok() {}
        assert_eq!(accepting.cut_off().await, CutOff { stalled: 1, open: 0 });
    });
}

#[test]
fn a_long_wait_for_an_answer_is_no_stall() {
    test(async {
        let time = Duration::from_millis(200);
        let rig = Rig::narrow().await;
        let mut held = rig.hold(&rig.reference).await;
        let accepting = Accepting::new(&rig, 8, time, LONG).await;
        let body = in_json(&Numbers(50).images(1)).to_string();
        let head = format!("POST {INFER} HTTP/1.1\r\nhost: digits\r\ncontent-length: {}\r\n\r\n", body.len());
        let mut client = accepting.connect((head + &body).as_bytes()).await;
        held.began.recv().await.unwrap();
        // A connection that is idle for this time is closed meanwhile, so it has passed.
        for _ in 0..3 {
            assert_eq!(rest(&mut accepting.connect(b"").await).await, "");
        }
        held.permits.add_permits(1);
        is_live(&mut client).await;
        assert_eq!(accepting.cut_off().await, NONE);
    });
}

#[test]
fn connections_that_outlast_the_grace_are_cut_off() {
    test(async {
        let rig = Rig::narrow().await;
        let mut held = rig.hold(&rig.reference).await;
        let accepting = Accepting::new(&rig, 8, LONG, Duration::from_millis(50)).await;
        let body = in_json(&Numbers(51).images(1)).to_string();
        let head = format!("POST {INFER} HTTP/1.1\r\nhost: digits\r\ncontent-length: {}\r\n\r\n", body.len());
        let mut client = accepting.connect((head + &body).as_bytes()).await;
        held.began.recv().await.unwrap();
        assert_eq!(accepting.cut_off().await, CutOff { stalled: 0, open: 1 });
        assert_eq!(rest(&mut client).await, "");
    });
}
