//! The rules for clusters of several blocks.

use crate::launch::Launch;
use warpline_ptx::{Checks, FaultKind, NamedByte, Relation};

const RACES: Checks = Checks { races: true, init: false, sync: false };
const MEET: &str = "barrier.cluster.arrive;\nbarrier.cluster.wait;";

/// Returns a body in which `%there` is the address in `.shared::cluster` of the thread's word in
/// the other block of its cluster.
fn with_there(body: &str) -> String {
    format!(
        "mov.u32 %r0, %cluster_ctarank;\nxor.b32 %r0, %r0, 1;\nmapa.shared::cluster.u64 %there, %word, %r0;\n{body}"
    )
}

/// A launch of clusters of two blocks of two warps.
fn of_pairs(body: &str) -> Launch<'_> {
    Launch { cluster: 2, ..Launch::new(4, 64, body) }
}

/// Checks that the first body has a race in each order, between threads of that relation, and the
/// second none.
fn rule_of(relation: Relation, name: &str, racy: &str, sound: &str) {
    println!("{name}");
    let is_it = |fault: &FaultKind| matches!(fault, FaultKind::Race(race) if race.relation == relation);
    Launch { checks: RACES, ..of_pairs(&with_there(&format!("{racy}\n{MEET}\nret;"))) }.fails(is_it);
    of_pairs(&with_there(&format!("{sound}\n{MEET}\nret;"))).passes();
}

fn rule(name: &str, racy: &str, sound: &str) {
    rule_of(Relation::SameCluster, name, racy, sound);
}

#[test]
fn the_barrier_of_the_cluster_orders_accesses_of_its_blocks() {
    let put = "st.shared::cluster.u32 [%there], %n;";
    let take = "ld.shared::cluster.u32 %r1, [%there];";
    let generic = "cvta.shared::cluster.u64 %rd1, %there;\nld.u32 %r1, [%rd1];";
    let (own, far) = ("st.shared.u32 [%word], %t;", "ld.shared.u32 %r1, [%word];");
    for (first, second) in [(put, far), (own, take), (own, generic), (put, own)] {
        rule(
            "a barrier of the block is not enough",
            &format!("{first}\nbar.sync 0;\n{second}"),
            &format!("{first}\n{MEET}\n{second}"),
        );
    }
    rule(
        "a read is before a write behind the barrier",
        &format!("{own}\n{MEET}\n{take}\nbar.sync 0;\n{own}"),
        &format!("{own}\n{MEET}\n{take}\n{MEET}\n{own}"),
    );
    rule(
        "a write is before the arrival",
        &format!("barrier.cluster.arrive;\n{own}\nbarrier.cluster.wait;\n{take}"),
        &format!("{own}\nbarrier.cluster.arrive;\nbarrier.cluster.wait;\n{take}"),
    );
    rule(
        "a read is behind the wait",
        &format!("{own}\nbarrier.cluster.arrive;\n{take}\nbarrier.cluster.wait;"),
        &format!("{own}\nbarrier.cluster.arrive;\nbarrier.cluster.wait;\n{take}"),
    );
}

#[test]
fn the_barrier_of_the_cluster_orders_accesses_to_global_memory_of_its_blocks_alone() {
    // Each block reads what the other one of its cluster wrote, or one of another cluster.
    let body = |between: &str, other: u32| {
        format!(
            "st.global.u32 [%own], %t;\n{between}\nxor.b32 %r1, %b, {other};\nmad.lo.u32 %r1, %r1, %n, %t;
             mad.wide.u32 %rd1, %r1, 4, %data;\nld.global.u32 %r1, [%rd1];"
        )
    };
    rule("between blocks", &body("bar.sync 0;", 1), &body(MEET, 1));
    rule_of(Relation::TwoBlocks, "between clusters", &body(MEET, 2), &body(MEET, 1));
}

#[test]
fn the_scope_of_an_atomic_operation_has_both_blocks() {
    let add = |scope: &str| {
        format!(
            "mapa.shared::cluster.u64 %rd1, %word, 0;\nred.relaxed.{scope}.shared::cluster.add.u32 [%rd1], 1;"
        )
    };
    let begin = format!("st.shared.u32 [%word], 0;\n{MEET}\n");
    for scope in ["cluster", "gpu"] {
        rule(
            "an operation of the block is none for the other one",
            &(begin.clone() + &add("cta")),
            &(begin.clone() + &add(scope)),
        );
    }
}

#[test]
fn a_flag_in_another_block_passes_on_what_a_fence_covers() {
    let body = |fence: &str| {
        format!(
            "setp.ne.u32 %p1, %t, 0;
@!%p1 st.shared.u32 [%word], 0;
{MEET}
@%p1 bra END;
mov.u32 %r1, %cluster_ctarank;
setp.ne.u32 %p1, %r1, 0;
@%p1 bra READ;
st.shared::cluster.u32 [%there+512], 7;
{fence}
st.volatile.shared::cluster.u32 [%there], 1;
bra END;
READ:
ld.volatile.shared.u32 %r2, [%word];
setp.eq.u32 %p2, %r2, 0;
@%p2 bra READ;
ld.shared.u32 %r3, [%word+512];
END:"
        )
    };
    for fence in ["fence.acq_rel.cluster;", "membar.gl;"] {
        rule("a fence is before the flag", &body(""), &body(fence));
    }
}

#[test]
fn a_block_may_define_the_memory_of_another_one() {
    let take = "ld.shared.u32 %r1, [%word];";
    let remote = "ld.shared::cluster.u32 %r1, [%there];";
    let put = "st.shared::cluster.u32 [%there], %t;";
    of_pairs(&with_there(&format!("{put}\n{MEET}\n{take}\nret;"))).passes();
    of_pairs(&with_there(&format!("st.shared.u32 [%word], %t;\n{MEET}\n{remote}\n{MEET}\nret;"))).passes();
    for (load, barrier) in [(take, "a barrier"), (remote, "the barrier of the cluster (cluster.sync())")] {
        let body = with_there(&format!("{MEET}\n{load}\n{MEET}\nret;"));
        let advice = format!("put {barrier} between the write and this read");
        of_pairs(&body).fails(|fault| {
            matches!(fault, FaultKind::Uninitialised { bytes: 4, .. }) && fault.to_string().contains(&advice)
        });
    }
}

#[test]
fn lanes_that_a_block_does_not_have_order_nothing() {
    let body =
        |split: &str| with_there(&format!("{split}\nld.shared::cluster.u32 %r1, [%there];\n{MEET}\nret;"));
    let behind = body("barrier.cluster.arrive;\nst.shared.u32 [%word], %t;\nbarrier.cluster.wait;");
    let before = body("st.shared.u32 [%word], %t;\nbarrier.cluster.arrive;\nbarrier.cluster.wait;");
    for threads in [16, 48] {
        let launch = |body| Launch { threads, ..of_pairs(body) };
        Launch { checks: RACES, ..launch(&behind) }.fails(|fault| matches!(fault, FaultKind::Race(_)));
        launch(&before).passes();
    }
}

#[test]
fn a_report_names_the_block_that_has_the_memory() {
    let body = with_there(&format!(
        "setp.eq.u32 %p1, %r0, 1;\n@%p1 st.shared.u32 [%word], %t;\n@!%p1 ld.shared::cluster.u32 %r1, [%there];\n{MEET}\nret;"
    ));
    let fault = Launch { checks: RACES, ..of_pairs(&body) }.run().unwrap_err();
    let FaultKind::Race(race) = &fault.kind else { panic!("{fault}") };
    assert!(matches!(race.place, NamedByte::Shared { offset: 0, block: Some(0), .. }), "{race:?}");
    assert_eq!((fault.block, race.earlier.block), ([1, 0, 0], [0, 0, 0]));
    let text = fault.to_string();
    let end = "it reads byte 0 of the shared variable area of block 0 of its cluster, which thread [0, 0, 0] of block \
               [0, 0, 0] of the same cluster writes (PTX line 30), and nothing orders the two accesses; separate them by \
               the barrier of the cluster (cluster.sync()); use atomic operations if both threads update it, or let \
               the first one call __threadfence() and then set a flag that the second one reads by an atomic operation \
               or as volatile";
    assert!(text.ends_with(end), "{text}");
}

#[test]
fn accesses_of_earlier_clusters_are_none_of_this_one() {
    let body = with_there(&format!(
        "st.shared.u32 [%word], %t;\nst.shared::cluster.u32 [%there+512], %t;\n{MEET}\nld.shared.u32 %r1, [%word+512];\nret;"
    ));
    Launch { cluster: 2, ..Launch::new(8, 64, &body) }.passes();
}
