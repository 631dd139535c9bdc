//! Late calls, pauses, and ranks that are stopped, lost or have left.

use super::{Group, SUM, group_call, late};
use crate::*;
use std::panic::Location;
use std::time::Duration;

#[test]
fn a_late_call_names_the_rank_with_the_fewest_calls() {
    let mut group = Group::new(3, Check::Before);
    group.call_all();
    let number = group.call(0, SUM, 8);
    group.call(1, SUM, 8);
    let deadline = Duration::from_secs(3);
    late(&mut group, 0, number, deadline);
    let text = group.failure(&[0, 1, 2]);
    assert!(text.starts_with(
        "call 2 of rank 0 is late after 3.0 s: all_reduce (sum) of 8 f32 at train.rs:7. Rank 2 has"
    ));
    assert!(text.contains(
        "Rank 2 has reported 1 of these calls. The last call of rank 2 is all_reduce (sum) of 8 f32"
    ));
    assert!(text.ends_with("It was last heard of 0.5 s ago"), "{text}");
}

#[test]
fn of_several_ranks_behind_the_one_with_the_oldest_call_is_named() {
    let mut group = Group::new(3, Check::Before);
    group.call_all();
    group.now += Duration::from_secs(1);
    // Rank 1 waits for a message of rank 2.
    group.call(1, Kind::Receive(2), 8);
    let number = group.call(0, SUM, 8);
    late(&mut group, 0, number, Duration::from_secs(5));
    assert!(group.failure(&[0, 1, 2]).contains("Rank 2 has reported 1 of these calls"));
}

#[test]
fn a_rank_that_was_stopped_after_its_call_is_named() {
    let mut group = Group::new(3, Check::Before);
    let number = group.call(0, SUM, 8);
    group.call(1, SUM, 8);
    group.call(2, SUM, 8);
    group.is_stopped[2] = true;
    group.pass_ticks(100);
    late(&mut group, 0, number, Duration::from_secs(10));
    let text = group.failure(&[0, 1]);
    assert!(text.contains("All ranks have reported this call, but rank 2 does not answer"), "{text}");
    assert!(text.ends_with("It was last heard of 10.5 s ago"), "{text}");
    // If all answer, the engine is to blame.
    let mut group = Group::new(2, Check::Before);
    let number = group.call(0, SUM, 8);
    group.call(1, SUM, 8);
    late(&mut group, 0, number, Duration::from_secs(10));
    assert!(group.failure(&[0, 1]).ends_with("and answer; the engine has not finished it"));
}

#[test]
fn a_late_call_waits_for_reports_before_it_blames() {
    for ranks in [1, 3] {
        let mut group = Group::new(ranks, Check::After);
        (0..FIRST).for_each(|_| group.call_all());
        let number = group.call(0, SUM, 8);
        for rank in 1..ranks {
            group.call(rank, SUM, 8);
        }
        late(&mut group, 0, number, Duration::from_millis(1));
        assert!(group.failure(&[0]).ends_with("and answer; the engine has not finished it"));
    }
}

#[test]
fn a_pause_excuses_a_late_call_until_the_deadline_after_it() {
    let mut group = Group::new(2, Check::Before);
    group.call_all();
    group.members[1].pause(group.now, Duration::from_secs(60));
    let number = group.call(0, SUM, 8);
    let deadline = Duration::from_secs(5);
    for round in 0..9 {
        group.pass_ticks(55);
        late(&mut group, 0, number, deadline);
        let (now, sent) = (group.now, group.sent);
        let made = Made { call: group_call(8), site: "train.rs:7".into() };
        group.members[0].late(now, number, made, deadline, deadline);
        group.deliver();
        assert_eq!(group.sent, sent, "it asks once in each deadline, not again, in round {round}");
    }
    assert_eq!(group.members[0].failure(), None, "after 54 s");
    group.pass_ticks(80);
    late(&mut group, 0, number, deadline);
    assert_eq!(group.members[0].failure(), None, "after 62.5 s");
    group.pass_ticks(80);
    late(&mut group, 0, number, deadline);
    assert!(group.failure(&[0, 1]).contains("Rank 1 has reported 1 of these calls"));
}

#[test]
fn a_call_ends_the_pause() {
    let mut group = Group::new(2, Check::Before);
    group.call_all();
    group.members[1].pause(group.now, Duration::from_secs(3600));
    let number = group.call(0, SUM, 8);
    let deadline = Duration::from_secs(5);
    late(&mut group, 0, number, deadline);
    assert_eq!(group.members[0].failure(), None);
    // Another call than the one that rank 0 waits for.
    group.call(1, Kind::Send(0), 8);
    for _ in 0..20 {
        late(&mut group, 0, number, deadline);
    }
    assert!(group.failure(&[0, 1]).contains("is late after 5.0 s"));
}

#[test]
fn calls_made_before_a_pause_do_not_end_it() {
    let mut group = Group::new(2, Check::After);
    (0..FIRST).for_each(|_| group.call_all());
    group.now += Duration::from_millis(2);
    let number = group.call(0, SUM, 8);
    group.call(1, SUM, 8);
    // Another thread has read the clock before.
    group.members[1].pause(group.now - Duration::from_millis(1), Duration::from_secs(60));
    group.deliver();
    group.pass_ticks(100);
    late(&mut group, 0, number, Duration::from_secs(5));
    assert_eq!(group.members[0].failure(), None);
}

#[test]
fn a_process_that_was_stopped_takes_the_answer_that_waits_for_it() {
    let mut group = Group::new(2, Check::Before);
    group.call_all();
    group.members[1].pause(group.now, Duration::from_secs(600));
    let number = group.call(0, SUM, 8);
    let made = Made { call: group_call(8), site: "train.rs:7".into() };
    group.members[0].late(group.now, number, made, Duration::from_secs(5), Duration::from_secs(5));
    group.now += Duration::from_secs(600);
    // Even if it looks at the clock first.
    group.members[0].tick(group.now);
    assert_eq!(group.members[0].failure(), None);
}

#[test]
fn ranks_learn_why_another_one_gave_up_a_slow_hub() {
    let mut group = Group::new(3, Check::Before);
    group.call_all();
    let number = group.call(1, SUM, 8);
    let made = Made { call: group_call(8), site: "train.rs:7".into() };
    group.members[1].late(group.now, number, made, TICK, TICK);
    for _ in 0..51 {
        group.now += TICK;
        group.members[1].tick(group.now);
    }
    let failure = group.members[1].failure().expect("the hub did not answer").to_string();
    assert_eq!(failure, "rank 0 is lost: it has not answered for 5s");
    group.deliver();
    assert_eq!(group.failure(&[0, 2]), "rank 1 ended the group: rank 0 is lost: it has not answered for 5s");
}

#[test]
fn a_late_call_or_a_loss_does_not_hide_a_difference() {
    for loses in [false, true] {
        let mut group = Group::new(3, Check::After);
        (0..FIRST).for_each(|_| group.call_all());
        let mut number = None;
        for (rank, length) in [(0, 8), (1, 9)] {
            let member = &mut group.members[rank];
            for _ in FIRST..2 * STRIDE {
                number =
                    Some(member.call(group.now, group_call(length), Location::caller()).expect("it works"));
            }
            while let Some(message) = member.next_message() {
                group.hub.receive(group.now, rank as Rank, message);
            }
        }
        let made = Made { call: group_call(9), site: "train.rs:7".into() };
        group.members[1].late(group.now, number.expect("calls were made"), made, TICK, TICK);
        while let Some(message) = group.members[1].next_message() {
            group.hub.receive(group.now, 1, message);
        }
        if loses {
            group.hub.lost(2, "its connection has ended".into());
        }
        group.deliver();
        assert!(group.failure(&[0, 1]).contains("collective call 101 differs"));
    }
}

#[test]
fn a_rank_that_left_is_no_loss_until_others_call() {
    let mut group = Group::new(2, Check::Before);
    group.call_all();
    group.members[1].leave(group.now);
    group.deliver();
    group.hub.lost(1, "its connection has ended".into());
    group.deliver();
    assert_eq!(group.members[0].failure(), None);
    assert!(!group.hub.is_over());
    group.call(0, SUM, 8);
    assert_eq!(group.members[1].failure(), None, "nothing is sent to a rank whose connection has ended");
    assert!(group.failure(&[0]).starts_with("rank 1 left the group after 1 calls, but rank 0 made call 2"));

    let mut group = Group::new(2, Check::Before);
    (0..2).for_each(|rank| group.members[rank].leave(group.now));
    group.deliver();
    assert!(group.hub.is_over());
}

#[test]
fn a_lost_rank_is_named_with_its_last_call() {
    let mut group = Group::new(3, Check::Before);
    group.call(2, SUM, 8);
    group.hub.lost(2, "its connection has ended".into());
    group.deliver();
    let text = group.failure(&[0, 1]);
    assert!(
        text.starts_with(
            "rank 2 is lost: its connection has ended. Its last reported call is all_reduce (sum)"
        ),
        "{text}"
    );
}
