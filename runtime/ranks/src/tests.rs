//! Single situations of the protocol.

use crate::*;
use std::panic::Location;
use std::time::Duration;

mod late;
mod messages;

/// The members of a group and its hub, whose messages arrive at once.
struct Group {
    hub: Hub,
    members: Vec<Member>,
    now: Time,
    /// The messages to the hub and from it.
    sent: usize,
    answered: usize,
    asked: usize,
    /// The processes that neither tick nor take messages.
    is_stopped: Vec<bool>,
}

impl Group {
    fn new(ranks: Rank, check: Check) -> Group {
        let now = Duration::from_secs(100);
        let members = (0..ranks).map(|rank| Member::new(rank, ranks, check, now)).collect();
        Group {
            hub: Hub::new(ranks, now),
            members,
            now,
            sent: 0,
            answered: 0,
            asked: 0,
            is_stopped: vec![false; ranks as usize],
        }
    }

    #[track_caller]
    fn call(&mut self, rank: Rank, kind: Kind, length: u64) -> Number {
        let call = Call { kind, element: Element::F32, length, joined: false, beside: 0, collectives: 0 };
        let number =
            self.members[rank as usize].call(self.now, call, Location::caller()).expect("the group works");
        self.deliver();
        number
    }

    #[track_caller]
    fn calls(&mut self, rank: Rank, calls: u64) {
        for _ in 0..calls {
            self.call(rank, SUM, 8);
        }
    }

    #[track_caller]
    fn call_all(&mut self) {
        for rank in 0..self.members.len() as Rank {
            self.call(rank, SUM, 8);
        }
    }

    fn deliver(&mut self) {
        let mut is_quiet = false;
        while !is_quiet {
            is_quiet = true;
            for (rank, member) in (0..).zip(&mut self.members) {
                while let Some(message) = member.next_message() {
                    self.hub.receive(self.now, rank, message);
                    (self.sent, is_quiet) = (self.sent + 1, false);
                }
            }
            while let Some((rank, message)) = self.hub.next_message() {
                self.asked += usize::from(matches!(message, ToMember::Ask { .. }));
                self.members[rank as usize].receive(self.now, message);
                (self.answered, is_quiet) = (self.answered + 1, false);
            }
        }
    }

    fn pass_ticks(&mut self, ticks: usize) {
        for _ in 0..ticks {
            self.now += TICK;
            for (member, is_stopped) in self.members.iter_mut().zip(&self.is_stopped) {
                if !is_stopped {
                    member.tick(self.now);
                }
            }
            self.deliver();
            self.hub.tick(self.now);
            self.deliver();
        }
    }

    fn limit(&self, rank: usize) -> u64 {
        self.members[rank].limit(Sequence::Collectives)
    }

    /// Returns the text of the failure, which is the same for all these ranks.
    #[track_caller]
    fn failure(&self, ranks: &[usize]) -> String {
        let texts =
            ranks.iter().map(|rank| self.members[*rank].failure().expect("the rank has failed").to_string());
        let texts: Vec<_> = texts.collect();
        assert!(texts.windows(2).all(|pair| pair[0] == pair[1]), "{texts:?}");
        texts[0].replace(file!(), "train.rs")
    }
}

const SUM: Kind = Kind::AllReduce(Reduce::Sum);

#[test]
fn the_engine_gets_a_call_when_all_ranks_have_made_it() {
    let mut group = Group::new(3, Check::Before);
    group.call(0, SUM, 8);
    group.call(1, SUM, 8);
    assert_eq!(group.limit(0), 0);
    group.call(2, SUM, 8);
    assert_eq!([group.limit(0), group.limit(1), group.limit(2)], [1, 1, 1]);
    assert_eq!((group.sent, group.answered, group.asked), (3, 3, 0));
    // A rank that is ahead has reported all that the others have yet to make.
    group.calls(0, 5);
    group.calls(1, 5);
    group.calls(2, 5);
    assert_eq!((group.limit(0), group.answered, group.asked), (6, 3 + 5 * 3, 0));
}

#[test]
fn after_the_first_calls_the_engine_runs_ahead() {
    let mut group = Group::new(2, Check::After);
    for number in 1..=FIRST {
        group.call(0, SUM, number);
        assert_eq!(group.limit(0), number - 1);
        group.call(1, SUM, number);
    }
    assert_eq!(group.limit(0), FIRST + AHEAD);
    let before = group.sent;
    group.call(0, SUM, 1);
    group.call(1, SUM, 1);
    assert_eq!(group.sent, before, "the calls are reported later");
    assert_eq!(group.members[0].unsettled().map(|number| number.position), Some(FIRST + 1));
    group.pass_ticks(2);
    assert_eq!(group.sent, before + 2);
    assert_eq!(group.members[0].unsettled(), None);
    // The rank that made more calls is asked for the position of the other one, once.
    group.call(0, SUM, 2);
    group.call(0, SUM, 3);
    group.call(1, SUM, 2);
    group.pass_ticks(2);
    assert_eq!((group.asked, group.limit(1)), (1, FIRST + 2 + AHEAD));
    group.pass_ticks(2);
    group.pass_ticks(2);
    assert_eq!(group.asked, 1);
}

#[test]
fn a_rank_is_asked_once_even_if_it_answers_late() {
    let mut group = Group::new(2, Check::After);
    (0..FIRST).for_each(|_| group.call_all());
    group.calls(0, 1);
    group.calls(1, 2);
    group.now += DELAY;
    for (rank, member) in (0..).zip(&mut group.members) {
        member.tick(group.now);
        let Some(message) = member.next_message() else { panic!("rank {rank} reports its call") };
        group.hub.receive(group.now, rank, message);
    }
    let position = FIRST + 1;
    group.hub.tick(group.now);
    assert_eq!(
        group.hub.next_message(),
        Some((1, ToMember::Ask { sequence: Sequence::Collectives, position }))
    );
    group.hub.tick(group.now);
    assert_eq!(group.hub.next_message(), None);
}

#[test]
fn a_mismatch_names_both_calls() {
    let mut group = Group::new(3, Check::Before);
    group.call(0, SUM, 1024);
    let first = line!() - 1;
    group.call(2, Kind::Broadcast(1), 1024);
    let text = format!(
        "collective call 1 differs: rank 0 made all_reduce (sum) of 1024 f32 at train.rs:{first}, and rank 2 made \
         broadcast of 1024 f32 from rank 1 at train.rs:{}. All ranks have to make the same calls in the same order",
        first + 2
    );
    assert_eq!(group.failure(&[0, 1, 2]), text);
    let call = Call { kind: SUM, element: Element::F32, length: 1, joined: false, beside: 0, collectives: 0 };
    assert!(group.members[1].call(group.now, call, Location::caller()).is_err());
}

#[test]
fn a_difference_afterwards_is_found_by_bisection() {
    for wrong in FIRST + 1..=3 * STRIDE {
        let mut group = Group::new(2, Check::After);
        for number in 1..=3 * STRIDE {
            for rank in 0..2 {
                if group.members[0].failure().is_none() {
                    group.call(rank, SUM, if rank == 1 && number == wrong { 7 } else { 8 });
                }
            }
        }
        let expected = format!("collective call {wrong} differs: rank 0 made all_reduce (sum) of 8 f32");
        assert!(group.failure(&[0, 1]).starts_with(&expected), "{}", group.failure(&[0]));
        assert!(group.asked <= 2 * 7, "{} questions", group.asked);
    }
}

#[test]
fn a_search_without_answer_says_what_it_knows() {
    search_without_answer(true);
    search_without_answer(false);
}

fn search_without_answer(loses: bool) {
    let mut group = Group::new(2, Check::After);
    (0..FIRST).for_each(|_| group.call_all());
    // The reports are delivered by hand, so nobody answers.
    for (rank, length) in [(0, 8), (1, 9)] {
        let call =
            Call { kind: SUM, element: Element::F32, length, joined: false, beside: 0, collectives: 0 };
        let member = &mut group.members[rank];
        (FIRST..2 * STRIDE).for_each(|_| drop(member.call(group.now, call, Location::caller())));
        while let Some(message) = member.next_message() {
            group.hub.receive(group.now, rank as Rank, message);
        }
    }
    if loses {
        group.hub.lost(1, "its connection has ended".into());
    }
    for _ in 0..=30 {
        group.hub.tick(group.now);
    }
    let text = group.hub.failure().expect("the group has failed").to_string();
    assert!(text.contains("collective call 128 differs"), "{text}");
    assert!(text.contains("; the first difference is after call 100."), "{text}");
}

#[test]
fn the_order_of_groups_and_of_messages_is_compared() {
    let call = |kind, beside, collectives, joined| Call {
        kind,
        element: Element::U8,
        length: 1,
        joined,
        beside,
        collectives,
    };
    let fail = |one: Call, other: Call| {
        let mut group = Group::new(2, Check::Before);
        group.members[0].call(group.now, one, Location::caller()).expect("the group works");
        group.members[1].call(group.now, other, Location::caller()).expect("the group works");
        group.deliver();
        group.failure(&[0, 1])
    };
    let text = fail(call(Kind::Barrier, 3, 0, false), call(Kind::Barrier, 2, 0, false));
    assert!(text.contains("before it, rank 0 made 3 calls of other groups, and rank 1 2"), "{text}");
    let text = fail(call(Kind::Send(1), 0, 0, false), call(Kind::Receive(0), 0, 1, false));
    assert!(text.starts_with("message 1 from rank 0 to rank 1 differs"), "{text}");
    assert!(text.contains("before it, rank 0 made 0 collective calls, and rank 1 1"), "{text}");
    let text = fail(call(SUM, 0, 0, true), call(SUM, 0, 0, false));
    assert!(text.contains("rank 0 submits it with the call before it, and rank 1 does not"), "{text}");
}

fn group_call(length: u64) -> Call {
    Call { kind: SUM, element: Element::F32, length, joined: false, beside: 0, collectives: 0 }
}

/// A rank's call is beyond its deadline, and the hub judges.
fn late(group: &mut Group, rank: usize, number: Number, deadline: Time) {
    let made = Made { call: group_call(8), site: "train.rs:7".into() };
    group.members[rank].late(group.now, number, made, deadline, deadline);
    group.deliver();
    group.pass_ticks(5);
}

#[test]
fn a_difference_is_found_beside_a_rank_that_makes_no_calls() {
    // Ranks 0 to 3 stop at different calls, rank 4 makes none, and rank 3 differs.
    let mut group = Group::new(5, Check::After);
    (0..FIRST).for_each(|_| group.call_all());
    group.calls(0, 1);
    group.calls(1, 3);
    group.calls(2, 7);
    for number in 0..20 {
        group.call(3, SUM, if number == 5 { 9 } else { 8 });
    }
    group.pass_ticks(9);
    assert!(group.failure(&[0, 1, 2, 3, 4]).starts_with("collective call 106 differs"));
}

#[test]
fn the_limit_stays_when_the_group_fails() {
    let mut group = Group::new(2, Check::Before);
    group.call_all();
    group.members[1].abort(group.now, "enough".into());
    group.deliver();
    assert_eq!((group.limit(0), group.limit(1)), (1, 1));
    assert_eq!(group.failure(&[0]), "rank 1 ended the group: enough");
    assert!(group.hub.is_over());
}

#[test]
fn a_rank_that_runs_ahead_reports_a_window_of_calls() {
    for check in [Check::Before, Check::After] {
        let mut group = Group::new(2, check);
        (0..FIRST).for_each(|_| group.call_all());
        group.sent = 0;
        group.calls(0, 50_000);
        group.pass_ticks(20);
        let most = WINDOW + AHEAD / STRIDE + 10;
        assert!((group.sent as u64) < most, "{} messages with {check:?}", group.sent);
        // The other rank follows, and all calls get agreed.
        group.calls(1, 50_000);
        group.pass_ticks(40);
        assert_eq!(group.members[0].unsettled(), None);
        assert!(group.hub.is_settled());
    }
}

#[test]
fn an_exchange_in_one_submission_fits() {
    let mut group = Group::new(2, Check::Before);
    for (rank, peer) in [(0, 1), (1, 0)] {
        for (kind, joined) in [(Kind::Send(peer), false), (Kind::Receive(peer), true)] {
            let call = Call { kind, joined, ..group_call(8) };
            group.members[rank].call(group.now, call, Location::caller()).expect("the group works");
        }
    }
    group.deliver();
    assert_eq!(group.members[0].unsettled(), None);
}

#[test]
fn a_call_with_a_rank_that_is_not_in_the_group_is_refused() {
    let mut group = Group::new(3, Check::Before);
    let refusals = [
        (Kind::Broadcast(3), "the root is rank 3, and the group has 3 ranks"),
        (Kind::Reduce(Reduce::Sum, 7), "the root is rank 7"),
        (Kind::Send(3), "the peer is rank 3"),
        (Kind::Receive(1), "rank 1 cannot exchange messages with itself"),
    ];
    for (kind, expected) in refusals {
        let call = Call { kind, ..group_call(8) };
        let refusal = group.members[1].call(group.now, call, Location::caller()).expect_err("it is refused");
        assert!(
            matches!(refusal, Refusal::Invalid(_)) && refusal.to_string().starts_with(expected),
            "{refusal}"
        );
    }
    group.call_all();
    assert_eq!(group.limit(1), 1, "the group works");
}

#[test]
fn a_thousand_ranks_send_few_messages() {
    const RANKS: usize = 1024;
    let mut group = Group::new(RANKS as Rank, Check::After);
    let call = |group: &mut Group| {
        for member in &mut group.members {
            member.call(group.now, group_call(8), Location::caller()).expect("the group works");
        }
        group.deliver();
    };
    (0..FIRST).for_each(|_| call(&mut group));
    // One report and one answer for each rank and call.
    assert_eq!((group.sent, group.answered), (100 * RANKS, 100 * RANKS));
    (group.sent, group.answered) = (0, 0);
    (0..10 * STRIDE).for_each(|_| call(&mut group));
    assert_eq!((group.sent, group.answered), (10 * RANKS, 10 * RANKS));
    // Ranks that stopped at different calls are asked, at most once each.
    let now = group.now;
    for (rank, member) in group.members.iter_mut().enumerate() {
        for _ in 0..1 + rank % 3 {
            member.call(now, group_call(8), Location::caller()).expect("the group works");
        }
    }
    (group.sent, group.answered) = (0, 0);
    group.pass_ticks(6);
    assert!(group.sent < 2 * RANKS && group.asked < RANKS, "{} sent, {} asked", group.sent, group.asked);
    assert_eq!(group.limit(5), FIRST + 10 * STRIDE + 1 + AHEAD);
}

#[test]
fn each_part_of_a_call_is_in_its_fingerprint() {
    let call =
        |kind, element, length, joined| Call { kind, element, length, joined, beside: 0, collectives: 0 };
    let mut calls = Vec::new();
    for reduce in [Reduce::Sum, Reduce::Product, Reduce::Min, Reduce::Max, Reduce::Mean] {
        calls.push(call(Kind::AllReduce(reduce), Element::F32, 8, false));
        calls.push(call(Kind::ReduceScatter(reduce), Element::F32, 8, false));
        calls.extend((0..3).map(|root| call(Kind::Reduce(reduce, root), Element::F32, 8, false)));
    }
    calls.extend((0..3).map(|root| call(Kind::Broadcast(root), Element::F32, 8, false)));
    calls.push(call(Kind::AllGather, Element::F32, 8, false));
    calls.push(call(Kind::AllGather, Element::F32, 8, true));
    calls.push(call(Kind::AllGather, Element::F32, 1 << 40, false));
    calls.push(Call { beside: 1, ..call(Kind::AllGather, Element::F32, 8, false) });
    calls.push(Call { collectives: 1, ..call(Kind::AllGather, Element::F32, 8, false) });
    calls.push(call(Kind::Barrier, Element::F32, 8, false));
    calls.push(call(Kind::Send(1), Element::F32, 8, false));
    let elements = [
        Element::Bool,
        Element::U8,
        Element::I8,
        Element::I32,
        Element::U32,
        Element::I64,
        Element::U64,
        Element::F16,
        Element::Bf16,
        Element::F64,
    ];
    calls.extend(elements.map(|element| call(Kind::AllGather, element, 8, false)));
    let fingerprints: std::collections::BTreeSet<_> =
        calls.iter().map(|call| Fingerprint::default().with(call).0).collect();
    assert_eq!(fingerprints.len(), calls.len());
    // The order counts, and the two ends of a message are alike.
    let [one, other] = [calls[0], calls[1]].map(|call| Fingerprint::default().with(&call));
    assert_ne!(one.with(&calls[1]), other.with(&calls[0]));
    let ends =
        [Kind::Send(1), Kind::Receive(0)].map(|kind| call(kind, Element::F32, 8, kind == Kind::Send(1)));
    assert_eq!(Fingerprint::default().with(&ends[0]), Fingerprint::default().with(&ends[1]));
}
