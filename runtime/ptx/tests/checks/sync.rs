//! Barriers that not all threads reach, and shuffles from lanes that have exited.

use crate::launch::Launch;
use warpline_ptx::{AtBarrier, Checks, FaultKind};

const SYNC: Checks = Checks { races: false, init: false, sync: true };

fn launch(body: &str) -> Launch<'_> {
    Launch { checks: SYNC, ..Launch::new(1, 64, body) }
}

/// Bodies with a fault and without.
const EXITED: [&str; 2] = [
    "setp.lt.u32 %p1, %t, 40;\n@!%p1 ret;\nbar.sync 0;\nret;",
    "setp.lt.u32 %p1, %t, 40;\nbar.sync 0;\n@!%p1 ret;\nret;",
];
const TWO_PLACES: [&str; 2] = [
    "setp.lt.u32 %p1, %t, 32;\n@%p1 bra FIRST;\nbar.sync 0;\nret;\nFIRST:\nbar.sync 0;\nret;",
    "setp.lt.u32 %p1, %t, 32;\n@%p1 bra FIRST;\nbar.sync 1, 64;\nret;\nFIRST:\nbar.sync 1, 64;\nret;",
];
const SHUFFLE: [&str; 2] = [
    "setp.lt.u32 %p1, %t, 40;\n@!%p1 ret;\nshfl.sync.down.b32 %r1, %t, 8, 31, -1;\nret;",
    "setp.lt.u32 %p1, %t, 40;\n@!%p1 ret;\nshfl.sync.down.b32 %r1, %t, 4, 0x1807, -1;\nret;",
];

#[test]
fn a_barrier_of_all_threads_waits_for_all_threads() {
    launch(EXITED[0]).fails(|fault| {
        matches!(
            fault,
            FaultKind::ExitedBeforeBarrier { waited: 40, exited: 24, thread: [40, 0, 0], block: None }
        )
    });
    launch(TWO_PLACES[0]).fails(|fault| matches!(fault, FaultKind::DivergentBarrier { .. }));
    launch(SHUFFLE[0]).fails(|fault| matches!(fault, FaultKind::ShuffleFromExited { .. }));
    for [faulty, sound] in [EXITED, TWO_PLACES, SHUFFLE] {
        launch(sound).passes();
        Launch { checks: Checks { sync: false, ..SYNC }, ..launch(faulty) }.passes();
    }
}

#[test]
fn the_reports_name_the_other_threads() {
    let text = |body| launch(body).run().unwrap_err().to_string();
    assert_eq!(
        text(EXITED[0]),
        "main failed in thread [0, 0, 0] of block [0, 0, 0] (PTX line 28): the barrier opened for 40 threads of \
         the block, and 24 had exited without reaching it, among them thread [40, 0, 0]; let all threads of the \
         block reach the barrier before they return"
    );
    assert_eq!(
        text(TWO_PLACES[0]),
        "main failed in thread [0, 0, 0] of block [0, 0, 0] (PTX line 31): it waits at this barrier while \
         thread [32, 0, 0] of the block waits at another one (PTX line 28); let all threads of the block reach \
         the same barrier"
    );
    assert_eq!(
        text(SHUFFLE[0]),
        "main failed in thread [32, 0, 0] of block [0, 0, 0] (PTX line 28): its shuffle asks for the value of \
         lane 8, which has exited, so the value is undefined; keep the lane running, or shuffle among fewer \
         lanes"
    );
}

#[test]
fn lanes_of_a_warp_may_wait_at_barriers_with_other_numbers() {
    // Lanes with even and odd numbers of both warps meet at barriers 1 and 2.
    let body = "and.b32 %r1, %t, 1;\nadd.u32 %r1, %r1, 1;\nst.shared.u32 [%word], %t;\nbarrier.sync %r1, 32;\n\
                ld.shared.u32 %r2, [%far];\nxor.b32 %r3, %r2, %t;\nsetp.eq.u32 %p1, %r3, 32;\n@!%p1 trap;\nret;";
    Launch { checks: Checks::ALL, ..launch(body) }.passes();
    // Barrier 1 alone does not open for lanes that wait at barrier 2.
    let body = "and.b32 %r1, %t, 1;\nadd.u32 %r1, %r1, 1;\nbarrier.sync %r1, 64;\nret;";
    launch(body).fails(|fault| {
        let at = |barrier| AtBarrier { barrier, waiting: 32, arrived: 0, needed: Some(64) };
        matches!(fault, FaultKind::Deadlock { at_barriers, .. } if at_barriers[..] == [at(1), at(2)])
    });
    let body =
        "and.b32 %r1, %t, 1;\nadd.u32 %r1, %r1, 1;\nbarrier.arrive %r1, 64;\nbarrier.sync 1, 96;\nret;";
    launch(body).passes();
}

/// Launches two clusters of two blocks.
fn of_pairs(body: &str) -> Launch<'_> {
    Launch { checks: SYNC, cluster: 2, ..Launch::new(4, 64, body) }
}

#[test]
fn the_barrier_of_a_cluster_waits_for_all_threads_of_its_blocks() {
    let meet = "barrier.cluster.arrive;\nbarrier.cluster.wait;";
    let half_of_a_block =
        format!("setp.eq.u32 %p1, %b, 3;\nsetp.ge.and.u32 %p1, %t, 40, %p1;\n@%p1 exit;\n{meet}\nret;");
    let text = of_pairs(&half_of_a_block).run().unwrap_err().to_string();
    let end = "the barrier opened for 104 threads of the cluster, and 24 had exited without reaching it, among them \
               thread [40, 0, 0] of block [3, 0, 0]; let all threads of the cluster reach the barrier before they \
               return";
    assert!(text.ends_with(end), "{text}");
    Launch { checks: Checks { sync: false, ..SYNC }, ..of_pairs(&half_of_a_block) }.passes();

    let is_it = |fault: &FaultKind| {
        matches!(fault, FaultKind::ExitedBeforeBarrier { waited: 64, exited: 64, block: Some([1, 0, 0]), .. })
    };
    let second_block = "and.b32 %r1, %b, 1;\nsetp.eq.u32 %p1, %r1, 1;";
    of_pairs(&format!("{second_block}\n@%p1 exit;\n{meet}\nret;")).fails(is_it);
    // Of two phases the second one misses a block.
    of_pairs(&format!("{second_block}\n{meet}\n@%p1 exit;\n{meet}\nret;")).fails(is_it);
    // The report names an arrival, also where no thread waits yet, or ever.
    for rest in
        ["mov.u32 %r2, 0;\nAGAIN:\nadd.u32 %r2, %r2, 1;\nsetp.lt.u32 %p2, %r2, 100000;\n@%p2 bra AGAIN;", ""]
    {
        let body = format!("{second_block}\n@%p1 exit;\nbarrier.cluster.arrive;\n{rest}\nret;");
        let fault = of_pairs(&body).run().unwrap_err();
        assert!(is_it(&fault.kind), "{fault}");
        assert_eq!(fault.ptx_line, 29, "{fault}");
    }
    // A thread may exit that has arrived and not waited, or behind the last phase.
    of_pairs(&format!("{second_block}\nbarrier.cluster.arrive;\n@%p1 exit;\nbarrier.cluster.wait;\nret;"))
        .passes();
    of_pairs(&format!("{second_block}\n{meet}\n@%p1 exit;\nbar.sync 0;\nret;")).passes();
}

#[test]
fn a_deadlock_names_the_barriers_and_the_threads_that_they_need() {
    let text = |body| launch(body).run().unwrap_err().to_string();
    for (body, end) in [
        (
            "bar.sync 1, 96;\nret;",
            "no thread of the block can go on: 64 wait at barrier 1, which needs 96; let as many threads reach the \
             barrier as it needs",
        ),
        (
            "setp.lt.u32 %p1, %t, 32;\n@%p1 bar.arrive 1, 96;\n@%p1 ret;\nbar.sync 1, 96;\nret;",
            "no thread of the block can go on: 32 wait and 32 have arrived at barrier 1, which needs 96, 32 have \
             exited; let as many threads reach the barrier as it needs",
        ),
        (
            "setp.lt.u32 %p1, %t, 32;\n@%p1 bar.sync 0;\n@!%p1 bar.sync 2;\nret;",
            "no thread of the block can go on: 32 wait at barrier 0 (__syncthreads()), 32 wait at barrier 2; let \
             all threads reach the same barrier",
        ),
    ] {
        let text = text(body);
        assert!(text.ends_with(end), "{text}");
    }
}
