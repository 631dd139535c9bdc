//! Ranks that meet, are missing or refused, and strangers.

use super::{LONG, config, host, listen, raw_rank, welcome};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use warpline_group::{Config, MeetError, Session};
use warpline_ranks::{Check, Hello, LONGEST, Token, VERSION, Welcome, encode};

#[test]
fn missing_ranks_are_named_on_those_that_arrived() {
    let (listener, address) = listen();
    let arrival = Duration::from_millis(500);
    let config = |rank| Config { arrival, ..config(rank, 4, &address, Check::Before) };
    let (host, two) = (config(0), config(2));
    let host = std::thread::spawn(move || Session::host(listener, host, || {}).map(drop));
    let two = std::thread::spawn(move || Session::join(two, || {}).map(drop));
    // A rank with another idea of the group is refused at once, and is mentioned to the others.
    let refused = Session::join(Config { size: 8, ..config(3) }, || {}).map(drop).expect_err("it is refused");
    assert_eq!(refused, MeetError::Refused("rank 3 expects 8 ranks, and rank 0 expects 4".into()));
    for rank in [host, two] {
        let error = rank.join().expect("the rank has not panicked").expect_err("ranks are missing");
        let text = error.to_string();
        assert_eq!(
            text,
            "ranks 1 and 3 of 4 have not arrived; refused: rank 3 expects 8 ranks, and rank 0 expects 4 \
             at rank 0 within 0.5 s"
        );
    }
}

#[test]
fn a_missing_rank_0_is_named_alone() {
    let (listener, address) = listen();
    drop(listener);
    let config = Config { arrival: Duration::from_millis(300), ..config(1, 2, &address, Check::Before) };
    let error = Session::join(config, || {}).map(drop).expect_err("nothing listens").to_string();
    assert!(error.starts_with(&format!("rank 0 did not answer at {address} within 0.")), "{error}");
}

#[test]
fn strangers_make_no_rank_leave_that_has_arrived() {
    let (listener, address) = listen();
    let host = host(listener, config(0, 3, &address, Check::Before));
    let one = raw_rank(&address, 1, 3);
    // Rank 0 has taken its hello, since it refuses another one.
    let refused = Welcome::Refused("rank 1 has arrived already; two processes have the same rank".into());
    while welcome(&raw_rank(&address, 1, 3)) != refused {}
    let silent: Vec<_> = (0..100).map(|_| TcpStream::connect(&address).expect("rank 0 listens")).collect();
    let two = raw_rank(&address, 2, 3);
    assert_eq!([welcome(&one), welcome(&two)], [Welcome::Complete, Welcome::Complete]);
    drop((silent, host.join().expect("the rank has not panicked")));
}

#[test]
fn a_rank_in_front_of_many_strangers_arrives() {
    let (listener, address) = listen();
    let one = raw_rank(&address, 1, 2);
    // All of them wait for rank 0, which makes room for the newest.
    let silent: Vec<_> = (0..100).map(|_| TcpStream::connect(&address).expect("rank 0 listens")).collect();
    let host = host(listener, config(0, 2, &address, Check::Before));
    assert_eq!(welcome(&one), Welcome::Complete);
    drop((silent, host.join().expect("the rank has not panicked")));
}

#[test]
fn a_rank_that_is_lost_while_the_ranks_meet_may_arrive_again() {
    let (listener, address) = listen();
    let host = host(listener, config(0, 3, &address, Check::Before));
    let first = raw_rank(&address, 1, 3);
    while !matches!(welcome(&raw_rank(&address, 1, 3)), Welcome::Refused(_)) {}
    drop(first);
    let _two = raw_rank(&address, 2, 3);
    // Rank 0 refuses it until it has noticed the end of the first connection.
    while matches!(welcome(&raw_rank(&address, 1, 3)), Welcome::Refused(_)) {}
    drop(host.join().expect("the rank has not panicked"));
}

#[test]
fn strangers_get_nothing_and_stall_nobody() {
    let (listener, address) = listen();
    let connect = || TcpStream::connect(&address).expect("rank 0 listens");
    let hello = |token: &str| {
        let (rank, size, check) = (1, 2, Check::Before);
        encode(&Hello { version: VERSION, token: Token(token.into()), rank, size, check })
    };
    let words = [b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![b'x'; 2 * LONGEST], hello("guess"), hello("")];
    let (host, other) = (config(0, 2, &address, Check::Before), config(1, 2, &address, Check::Before));
    let host = std::thread::spawn(move || Session::host(listener, host, || {}));
    // More than may wait.
    let silent: Vec<_> = (0..200).map(|_| connect()).collect();
    for words in words {
        let mut stranger = connect();
        let _ = stranger.write_all(&words);
        let mut answer = Vec::new();
        // Rank 0 closes the connection, with a reset if it has not read everything.
        let _ = stranger.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{answer:?}");
    }
    let other = Session::join(other, || {}).expect("the ranks meet");
    let host = host.join().expect("the rank has not panicked").expect("the ranks meet");
    drop(silent);
    let other = std::thread::spawn(move || other.close(LONG));
    assert_eq!(host.close(LONG), Ok(()));
    assert_eq!(other.join().expect("the rank has not panicked"), Ok(()));
}

#[test]
fn a_wrong_token_is_an_error_of_its_rank() {
    let (listener, address) = listen();
    let arrival = Duration::from_secs(1);
    let host = Config { arrival, ..config(0, 2, &address, Check::Before) };
    let host = std::thread::spawn(move || Session::host(listener, host, || {}).map(drop));
    // It tries again and again, since rank 0 may only have had no room.
    let arrival = Duration::from_millis(300);
    let guess = Config { token: Token("guess".into()), arrival, ..config(1, 2, &address, Check::Before) };
    let error = Session::join(guess, || {}).map(drop).expect_err("the token is wrong").to_string();
    assert!(error.ends_with("it closed the connection; do all ranks have the same token?"), "{error}");
    assert!(host.join().expect("the rank has not panicked").is_err());
}

#[test]
fn a_configuration_that_cannot_be_right_is_refused() {
    let config = |rank, size, token: String| Config {
        token: Token(token),
        ..config(rank, size, "127.0.0.1:1", Check::Before)
    };
    let cases = [
        (config(4, 4, "secret".into()), "there is no rank 4 in a group of 4 ranks"),
        (
            config(1, u32::MAX, "secret".into()),
            "a group of 4294967295 ranks is too large; the limit is 65536",
        ),
        (config(1, 2, String::new()), "the token of the group is empty"),
        (config(1, 2, "x".repeat(2000)), "the token of the group has 2000 bytes, and the limit is 1024"),
        (config(0, 2, "secret".into()), "rank 0 cannot connect to itself"),
    ];
    for (config, expected) in cases {
        let error = Session::join(config, || {}).map(drop).expect_err("it is refused").to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    // The longest time is no mistake.
    let (listener, _) = listen();
    let alone = Config { arrival: Duration::MAX, ..config(0, 1, "secret".into()) };
    assert_eq!(
        Session::host(listener, alone, || {}).expect("there are no others").close(Duration::MAX),
        Ok(())
    );
}
