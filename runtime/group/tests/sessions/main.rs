//! Groups whose ranks are threads of this process, over loopback.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::panic::Location;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use warpline_group::{Config, Session};
use warpline_ranks::{
    Call, Check, Element, Hello, Kind, Made, Number, Rank, Reduce, ToHub, Token, VERSION, Welcome, decode,
    encode,
};

mod meeting;

/// Long enough for a busy machine. No test waits for it to pass.
const LONG: Duration = Duration::from_secs(120);

fn sum(length: u64) -> Call {
    let kind = Kind::AllReduce(Reduce::Sum);
    Call { kind, element: Element::F32, length, joined: false, beside: 0, collectives: 0 }
}

/// A session, and the news of it.
struct Member {
    session: Session,
    news: Receiver<()>,
}

impl Member {
    /// Makes a call, and waits until the engine may get it.
    #[track_caller]
    fn call(&self, call: Call) -> Result<Number, String> {
        let number = self.session.call(call, Location::caller()).map_err(|refusal| refusal.to_string())?;
        loop {
            if let Some(failure) = self.session.failure() {
                return Err(failure.to_string());
            }
            if self.session.limit(number.sequence) >= number.position {
                return Ok(number);
            }
            self.news.recv_timeout(LONG).expect("there is news");
        }
    }

    fn failure(&self) -> String {
        while self.session.failure().is_none() {
            self.news.recv_timeout(LONG).expect("there is news");
        }
        self.session.failure().expect("it has failed").to_string()
    }
}

fn config(rank: Rank, size: Rank, address: &str, check: Check) -> Config {
    Config { rank, size, address: address.into(), token: Token("secret".into()), check, arrival: LONG }
}

/// Runs `run` on a thread for each rank, and returns their results.
fn on_ranks<T: Send + 'static>(
    size: Rank,
    check: Check,
    run: impl Fn(Rank, Member) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let (listener, address) = listen();
    let run = Arc::new(run);
    let mut listener = Some(listener);
    let threads = (0..size).map(|rank| {
        let (run, listener, config) =
            (Arc::clone(&run), listener.take(), config(rank, size, &address, check));
        std::thread::spawn(move || {
            let (sender, news) = channel();
            let on_change = move || {
                let _ = sender.send(());
            };
            let session = match listener {
                Some(listener) => Session::host(listener, config, on_change),
                None => Session::join(config, on_change),
            };
            run(rank, Member { session: session.expect("the ranks meet"), news })
        })
    });
    let threads: Vec<_> = threads.collect();
    threads.into_iter().map(|thread| thread.join().expect("the rank has not panicked")).collect()
}

#[test]
fn ranks_meet_call_and_leave() {
    for check in [Check::Before, Check::After] {
        let results = on_ranks(4, check, |_, member| {
            for length in 1..=300 {
                member.call(sum(length)).expect("the calls are the same");
            }
            member.session.close(LONG)
        });
        assert!(results.iter().all(Result::is_ok), "{results:?}");
    }
    assert_eq!(on_ranks(1, Check::Before, |_, member| member.session.close(LONG)), [Ok(())]);
}

#[test]
fn a_difference_is_the_same_error_on_all_ranks() {
    for (check, wrong) in [(Check::Before, 1), (Check::After, 150)] {
        let texts = on_ranks(4, check, move |rank, member| {
            for number in 1..=wrong {
                let length = if rank == 2 && number == wrong { 9 } else { 8 };
                if let Err(text) = member.call(sum(length)) {
                    return text;
                }
            }
            member.failure()
        });
        let start = format!("collective call {wrong} differs: rank ");
        assert!(
            texts[0].starts_with(&start) && texts[0].contains("rank 2 made all_reduce (sum) of 9 f32"),
            "{}",
            texts[0]
        );
        assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
    }
}

#[test]
fn a_dropped_group_and_an_abort_end_it_on_all_ranks() {
    let texts = on_ranks(3, Check::Before, |rank, member| {
        if rank == 1 {
            drop(member.session);
            return None;
        }
        Some(member.failure())
    });
    assert_eq!(texts[2].as_deref(), Some("rank 1 ended the group: its group was dropped"));
    assert_eq!(texts[0], texts[2]);
    let texts = on_ranks(3, Check::Before, |rank, member| {
        if rank == 0 {
            member.session.abort("enough");
        }
        let text = member.failure();
        // The messages of rank 0 still arrive.
        assert!(member.session.close(LONG).is_err());
        text
    });
    assert_eq!(texts, ["rank 0 ended the group: enough"; 3]);
}

#[test]
fn a_rank_that_leaves_too_early_is_named() {
    let texts = on_ranks(2, Check::Before, |rank, member| {
        member.call(sum(8)).expect("the calls are the same");
        if rank == 1 {
            return member.session.close(LONG).map_err(|failure| failure.to_string());
        }
        member.call(sum(8)).map(|_| ())
    });
    let text = texts[0].as_ref().expect_err("rank 1 has left");
    assert!(text.starts_with("rank 1 left the group after 1 calls, but rank 0 made call 2"), "{text}");
}

#[test]
fn a_late_call_names_the_rank_that_makes_none() {
    let texts = on_ranks(3, Check::Before, |rank, member| {
        member.call(sum(8)).expect("the calls are the same");
        if rank == 2 {
            return member.failure();
        }
        let number = member.session.call(sum(8), Location::caller()).expect("the group works");
        let made = Made { call: sum(8), site: "train.rs:7".into() };
        let second = Duration::from_secs(1);
        member.session.late(number, made, second, second);
        member.failure()
    });
    assert!(texts[0].contains("Rank 2 has reported 1 of these calls"), "{}", texts[0]);
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
}

#[test]
fn a_rank_that_cannot_leave_in_time_says_so() {
    let results = on_ranks(2, Check::Before, |rank, member| {
        if rank == 1 {
            return member.failure();
        }
        member.session.close(Duration::from_millis(1)).expect_err("rank 1 does not leave").to_string()
    });
    assert_eq!(results, ["rank 0 ended the group: it has waited for 0.0 s to leave the group"; 2]);
}

/// A connection that says it is this rank.
fn raw_rank(address: &str, rank: Rank, size: Rank) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("rank 0 listens");
    let hello = Hello { version: VERSION, token: Token("secret".into()), rank, size, check: Check::Before };
    stream.write_all(&encode(&hello)).expect("rank 0 reads");
    stream
}

fn welcome(stream: &TcpStream) -> Welcome {
    let mut line = Vec::new();
    BufReader::new(stream).read_until(b'\n', &mut line).expect("rank 0 answers");
    decode(&line).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&line)))
}

fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a port");
    let address = listener.local_addr().expect("the listener has an address").to_string();
    (listener, address)
}

/// Runs rank 0 on a thread, until it has met the others.
fn host(listener: TcpListener, config: Config) -> std::thread::JoinHandle<Member> {
    std::thread::spawn(move || {
        let (sender, news) = channel();
        let on_change = move || {
            let _ = sender.send(());
        };
        Member { session: Session::host(listener, config, on_change).expect("the ranks meet"), news }
    })
}

#[test]
fn an_owner_is_told_that_its_own_abort_ended_the_group() {
    on_ranks(2, Check::Before, |rank, member| {
        if rank == 1 {
            member.session.abort("enough");
        }
        member.news.recv_timeout(LONG).expect("there is news");
        assert_eq!(member.failure(), "rank 1 ended the group: enough");
    });
}

#[test]
fn a_member_with_more_messages_than_its_queue_waits() {
    const SIZE: Rank = 64;
    let (listener, address) = listen();
    let calls = 256 * 2 * (SIZE - 2);
    let hub = std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("the rank connects");
        let mut lines = BufReader::new(stream.try_clone().expect("the socket works")).split(b'\n');
        let mut next = move || lines.next().expect("the rank sends").expect("the socket works");
        assert!(decode::<Hello>(&next()).is_ok());
        (&stream).write_all(&encode(&Welcome::Complete)).expect("the rank reads");
        let mut reports = 0;
        while reports < calls {
            reports += Rank::from(matches!(decode(&next()), Ok(ToHub::Report(_))));
        }
    });
    let one = Session::join(config(1, SIZE, &address, Check::Before), || {}).expect("the ranks meet");
    for peer in (0..256).flat_map(|_| (0..SIZE).filter(|peer| ![1, 63].contains(peer))) {
        for kind in [Kind::Send(peer), Kind::Receive(peer)] {
            one.call(Call { kind, ..sum(1) }, Location::caller()).expect("the group works");
        }
    }
    hub.join().expect("all reports arrive");
}

#[test]
fn a_rank_whose_hub_takes_no_messages_can_leave() {
    let (listener, address) = listen();
    let (end, ended) = channel::<()>();
    let hub = std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("the rank connects");
        let mut hello = Vec::new();
        BufReader::new(&stream).read_until(b'\n', &mut hello).expect("the rank sends");
        (&stream).write_all(&encode(&Welcome::Complete)).expect("the rank reads");
        assert!(ended.recv().is_err(), "the other end is dropped");
    });
    let one = Session::join(config(1, 300, &address, Check::Before), || {}).expect("the ranks meet");
    for peer in (0..100).flat_map(|_| 2..300) {
        one.call(Call { kind: Kind::Send(peer), ..sum(1) }, Location::caller()).expect("the group works");
    }
    let failure = one.close(Duration::from_millis(1)).expect_err("nothing is compared").to_string();
    assert_eq!(failure, "rank 1 ended the group: it has waited for 0.0 s to leave the group");
    drop(end);
    hub.join().expect("the hub has not panicked");
}

#[test]
fn a_late_call_is_judged_while_messages_arrive_all_the_time() {
    let (listener, address) = listen();
    let host = host(listener, config(0, 4, &address, Check::Before));
    let ranks: Vec<_> = (1..4).map(|rank| raw_rank(&address, rank, 4)).collect();
    ranks.iter().for_each(|rank| assert_eq!(welcome(rank), Welcome::Complete));
    let host = host.join().expect("the rank has not panicked");
    let writers = ranks.into_iter().map(|mut rank| {
        let lines = encode(&ToHub::Alive).repeat(5000);
        // It ends when rank 0 closes the connection.
        std::thread::spawn(move || while rank.write_all(&lines).is_ok() {})
    });
    let writers: Vec<_> = writers.collect();
    let number = host.session.call(sum(8), Location::caller()).expect("the group works");
    let made = Made { call: sum(8), site: "train.rs:7".into() };
    host.session.late(number, made, Duration::from_secs(1), Duration::from_secs(1));
    assert!(host.failure().contains("Rank 1 has reported 0 of these calls"));
    drop(host);
    writers.into_iter().for_each(|writer| writer.join().expect("the writer has not panicked"));
}

#[test]
fn a_rank_that_sends_at_the_end_gets_the_reason() {
    for _ in 0..20 {
        let texts = on_ranks(2, Check::Before, |rank, member| {
            if rank == 0 {
                member.session.abort("enough");
            }
            while member.session.failure().is_none() {
                member.session.pause(Duration::ZERO);
            }
            member.failure()
        });
        assert_eq!(texts, ["rank 0 ended the group: enough"; 2]);
    }
}

#[test]
fn a_rank_that_sends_nonsense_is_lost() {
    let (listener, address) = listen();
    let host = config(0, 2, &address, Check::Before);
    let host = std::thread::spawn(move || {
        let (sender, news) = channel();
        let session = Session::host(listener, host, move || {
            let _ = sender.send(());
        })
        .expect("the ranks meet");
        Member { session, news }.failure()
    });
    let mut other = TcpStream::connect(&address).expect("rank 0 listens");
    let (rank, size, check) = (1, 2, Check::Before);
    let hello = Hello { version: VERSION, token: Token("secret".into()), rank, size, check };
    other.write_all(&encode(&hello)).expect("rank 0 reads");
    let mut welcome = vec![0; encode(&Welcome::Complete).len()];
    other.read_exact(&mut welcome).expect("rank 0 answers");
    assert_eq!(welcome, encode(&Welcome::Complete));
    other.write_all(b"{\"Leaf\":1}\n").expect("rank 0 reads");
    let text = host.join().expect("the rank has not panicked");
    assert!(
        text.starts_with("rank 1 is lost: it sent something else than a message: unknown variant `Leaf`"),
        "{text}"
    );
}

#[test]
fn a_panic_of_the_callback_is_an_error_and_ends_the_group() {
    let (listener, address) = listen();
    let (host, other) = (config(0, 2, &address, Check::Before), config(1, 2, &address, Check::Before));
    let host = std::thread::spawn(move || {
        let (sender, news) = channel();
        let on_change = move || {
            let _ = sender.send(());
        };
        let session = Session::host(listener, host, on_change).expect("the ranks meet");
        session.call(sum(8), Location::caller()).expect("the group works");
        Member { session, news }.failure()
    });
    let other = Session::join(other, || panic!("the callback fails")).expect("the ranks meet");
    other.call(sum(8), Location::caller()).expect("the group works");
    assert!(
        host.join().expect("the rank has not panicked").starts_with("rank 1 is lost: its connection has")
    );
    let failure = other.close(LONG).expect_err("its thread is gone").to_string();
    assert_eq!(failure, "rank 1 ended the group: the thread of the group has panicked");
}
