//! Messages of broken peers, lines and their limits, and the meeting of the ranks.

use super::{Group, SUM, group_call, late};
use crate::*;
use std::panic::Location;
use std::time::Duration;

#[test]
fn a_report_that_the_protocol_does_not_allow_ends_the_group() {
    let from_to = |from, to| Sequence::Messages { from, to };
    let far = AHEAD + WINDOW + 1;
    let bad = [
        (from_to(1, 2), 1, "message 1 from rank 1 to rank 2, which is none of its calls"),
        (from_to(0, 7), 1, "message 1 from rank 0 to rank 7, which is none of its calls"),
        (from_to(0, 0), 1, "message 1 from rank 0 to rank 0, which is none of its calls"),
        (Sequence::Collectives, 0, "collective call 0, which is none of its calls"),
        (Sequence::Collectives, far, "collective call 4353, and it may report 4352 before others follow"),
        (Sequence::Collectives, u64::MAX, "collective call 18446744073709551615, and it may report 4352"),
    ];
    for (sequence, position, expected) in bad {
        let mut group = Group::new(3, Check::Before);
        let made = Made { call: group_call(8), site: "x".repeat(10_000) };
        let report = Report { sequence, position, fingerprint: Fingerprint(1), made };
        group.hub.receive(group.now, 0, ToHub::Report(report));
        group.deliver();
        let text = group.failure(&[0, 1, 2]);
        assert!(text.starts_with("rank 0 broke the protocol between ranks: it reported"), "{text}");
        assert!(text.contains(expected), "{text}");
    }
    // It waits for a call that it has not reported.
    let mut hub = Hub::new(2, Time::ZERO);
    let made = Made { call: group_call(8), site: "train.rs:7".into() };
    let (sequence, position) = (from_to(7, 9), u64::MAX);
    let (waited, deadline) = (Time::MAX, Time::ZERO);
    hub.receive(Time::ZERO, 1, ToHub::Late { sequence, position, made, waited, deadline });
    (0..5).for_each(|_| hub.tick(Time::MAX));
    assert!(hub.failure().is_some_and(|failure| failure.to_string().contains("which it has not reported")));
}

#[test]
fn a_broken_hub_panics_no_rank() {
    let made = Made { call: group_call(8), site: "train.rs:7".into() };
    let (one, other) = ((0, made.clone()), (1, made));
    let sequence = Sequence::Collectives;
    let mut group = Group::new(2, Check::Before);
    group.call(0, SUM, 8);
    for position in [0, 2, u64::MAX] {
        group.members[0].receive(group.now, ToMember::Ask { sequence, position });
        group.members[0].receive(group.now, ToMember::Agreed { sequence, position });
    }
    let failure = Failure::Mismatch { sequence, equal: u64::MAX, position: 1, one, other };
    group.members[0].receive(group.now, ToMember::Failed(failure));
    assert!(group.failure(&[0]).starts_with("collective call 1 differs"));
    // Nor do the longest times.
    let mut group = Group::new(2, Check::Before);
    group.members[1].pause(group.now, Time::MAX);
    let number = group.call(0, SUM, 8);
    late(&mut group, 0, number, Time::MAX);
    group.now = Time::ZERO;
    group.pass_ticks(2);
    assert!(decode::<ToHub>(br#"{"Pause":{"secs":18446744073709551615,"nanos":1000000000}}"#).is_err());
}

#[test]
fn all_messages_fit_a_line() {
    let long = || Made { call: group_call(8), site: "\u{1}".repeat(10_000) };
    let mut group = Group::new(3, Check::Before);
    for (rank, fingerprint) in [(0, 1), (1, 2)] {
        let sequence = Sequence::Collectives;
        let report = Report { sequence, position: 1, fingerprint: Fingerprint(fingerprint), made: long() };
        group.hub.receive(group.now, rank, ToHub::Report(report));
    }
    let (_, message) = group.hub.next_message().expect("the group has failed");
    assert!(encode(&message).len() < LONGEST);

    let mut member = Member::new(0, 1, Check::Before, Time::ZERO);
    let number = member.call(Time::ZERO, group_call(8), Location::caller()).expect("the group works");
    member.late(Time::ZERO, number, long(), Time::ZERO, Time::ZERO);
    member.abort(Time::ZERO, "\u{1}".repeat(100_000));
    while let Some(message) = member.next_message() {
        assert!(encode(&message).len() < LONGEST);
    }

    let mut meeting = meeting_of(4096);
    (0..20).for_each(|connection| drop(meeting.arrive(connection, &hello(5000))));
    assert!(encode(&Welcome::Missing(meeting.missing())).len() < LONGEST);
}

fn hello(rank: Rank) -> Hello {
    Hello { version: VERSION, token: Token("secret".into()), rank, size: 4, check: Check::Before }
}

fn meeting_of(size: Rank) -> Meeting {
    Meeting::new(Hello { size, ..hello(0) }).expect("the hello is right")
}

#[test]
fn ranks_meet_and_missing_ones_are_named() {
    let mut meeting = meeting_of(4);
    assert_eq!(meeting.arrive(7, &hello(3)), Arrival::Arrived);
    assert_eq!(meeting.arrive(8, &hello(1)), Arrival::Arrived);
    assert_eq!(meeting.missing().to_string(), "rank 2 of 4 has not arrived");
    meeting.leave(7);
    assert_eq!(meeting.missing().to_string(), "ranks 2 and 3 of 4 have not arrived");
    assert_eq!(meeting.arrive(9, &hello(2)), Arrival::Arrived);
    assert_eq!(meeting.arrive(10, &hello(3)), Arrival::Arrived);
    assert!(meeting.is_complete());
    let large = meeting_of(1024).missing().to_string();
    assert!(large.ends_with("15, 16 and 1007 more of 1024 have not arrived"), "{large}");
    let all = meeting_of(17).missing().to_string();
    assert!(all.ends_with("15 and 16 of 17 have not arrived"), "{all}");
    assert!(meeting_of(1).is_complete());
}

#[test]
fn a_rank_that_does_not_belong_is_refused_and_a_stranger_gets_nothing() {
    let mut meeting = meeting_of(4);
    let wrong = |token: &str| Hello { token: Token(token.into()), ..hello(1) };
    for token in ["", "secre", "secret!", "Secret"] {
        assert_eq!(meeting.arrive(1, &wrong(token)), Arrival::Stranger);
    }
    meeting.arrive(1, &hello(1));
    let refusals = [
        (
            Hello { version: 9, ..hello(2) },
            "rank 2 has version 9 of the protocol between ranks, and rank 0 version 1",
        ),
        (Hello { size: 8, ..hello(2) }, "rank 2 expects 8 ranks, and rank 0 expects 4"),
        (hello(4), "there is no rank 4 in a group of 4 ranks"),
        (hello(0), "rank 0 has arrived already"),
        (hello(1), "rank 1 has arrived already"),
        (Hello { check: Check::After, ..hello(2) }, "rank 2 has Check::After, and rank 0 Check::Before"),
    ];
    for (hello, expected) in &refusals {
        let arrival = meeting.arrive(2, hello);
        let Arrival::Refused(Welcome::Refused(reason)) = &arrival else { panic!("{arrival:?}") };
        assert!(reason.starts_with(expected), "{reason}");
    }
    assert!(matches!(meeting.arrive(1, &hello(2)), Arrival::Refused(_)), "a connection is one rank");
    assert!(!format!("{meeting:?}").contains("secret"));
    for hello in [Hello { token: Token(String::new()), ..hello(0) }, Hello { size: 0, ..hello(0) }, hello(1)]
    {
        assert!(Meeting::new(hello).is_err());
    }
    let missing = meeting.missing();
    assert_eq!((missing.ranks.as_slice(), missing.refused.len()), (&[2, 3][..], refusals.len() + 1));
    assert!(missing.to_string().contains("; refused: rank 1 has arrived already"));
}

#[test]
fn messages_are_lines_with_a_limit() {
    let made = Made { call: group_call(8), site: "train.rs:7".into() };
    let late = ToHub::Late {
        sequence: Sequence::Messages { from: 1, to: 0 },
        position: 7,
        made: made.clone(),
        waited: Duration::from_millis(1500),
        deadline: Duration::from_secs(1),
    };
    let failed =
        ToMember::Failed(Failure::Lost { rank: 1, last: Some(made), why: "a \"line\"\nand more".into() });
    let (line, other) = (encode(&late), encode(&failed));
    // Bytes arrive in any pieces.
    let mut lines = Lines::default();
    for byte in &line[..line.len() - 1] {
        lines.push(&[*byte]);
        assert_eq!(lines.next_line(), Ok(None));
    }
    lines.push(b"\n");
    lines.push(&other);
    let next = |lines: &mut Lines| {
        lines.next_line().expect("no line is too long").expect("a line is complete").to_vec()
    };
    assert_eq!(decode::<ToHub>(&next(&mut lines)).expect("it is such a message"), late);
    assert_eq!(decode::<ToMember>(&next(&mut lines)).expect("it is such a message"), failed);
    assert_eq!(lines.next_line(), Ok(None));
    assert!(
        decode::<ToMember>(b"{\"Agreed\":{}}").expect_err("it has no position").contains("missing field")
    );

    lines.push(&vec![b'x'; LONGEST - 1]);
    assert_eq!(lines.next_line(), Ok(None));
    lines.push(b"x");
    assert!(
        lines
            .next_line()
            .expect_err("the line is too long")
            .contains("16384 bytes or more, and the limit is 16383")
    );
}

#[test]
fn a_long_reason_is_shortened_between_letters() {
    let mut member = Member::new(0, 1, Check::Before, Time::ZERO);
    member.abort(Time::ZERO, "é".repeat(100_000));
    let Some(ToHub::Abort { reason }) = member.next_message() else { panic!("the abort is sent") };
    assert!(reason.len() <= 1024 && reason.ends_with("é…"), "{}", reason.len());
}
