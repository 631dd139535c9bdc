//! Wrong uses of the instructions of clusters: PTX ISA 9.7.9.23, 9.7.9.24 and 9.7.13.3.

use crate::clusters::{MEET, of_four_blocks, of_three_warps};
use warpline_ptx::{AtBarrier, FaultKind};

fn fault(body: &str) -> (FaultKind, String) {
    let fault = of_three_warps(body).try_run().unwrap_err();
    (fault.kind.clone(), fault.to_string())
}

#[test]
fn wrong_uses_of_clusters_are_faults() {
    let (kind, text) =
        fault("mapa.shared::cluster.u32 %r4, %r3, 1;\nld.shared::cluster.u32 %r5, [%r4];\nret;");
    assert_eq!(kind, FaultKind::NoSuchRank { rank: 1, blocks: 1 });
    let end = "it uses an address in block 1 of its cluster, which has no other block than block 0; launch the kernel \
               with larger clusters";
    assert!(text.ends_with(end), "{text}");
    let (kind, text) = fault("barrier.cluster.arrive;\nbarrier.cluster.arrive;\nret;");
    assert_eq!(kind, FaultKind::ArrivedTwice);
    assert!(text.ends_with("where it has arrived already; wait there before each further arrival"), "{text}");
    let (kind, text) = fault("barrier.cluster.wait;\nret;");
    assert_eq!(kind, FaultKind::NotArrived);
    assert!(text.ends_with("where it has not arrived; arrive there before each wait"), "{text}");
    let (kind, text) = fault(
        "setp.lt.u32 %p1, %i, 32;\n@%p1 bar.sync 0;\nbarrier.cluster.arrive;\nbarrier.cluster.wait;\nret;",
    );
    let expected = FaultKind::Deadlock {
        at_barriers: vec![AtBarrier { barrier: 0, waiting: 32, arrived: 0, needed: None }],
        at_cluster_barrier: 64,
        for_lanes: 0,
        exited: 0,
    };
    assert_eq!(kind, expected);
    let end = "no thread of the block can go on: 32 wait at barrier 0 (__syncthreads()), 64 wait at the barrier of \
               the cluster; let all threads reach the same barrier";
    assert!(text.ends_with(end), "{text}");
}

#[test]
fn wrong_accesses_to_other_blocks_are_faults() {
    let fault = |body: &str| {
        let fault = of_four_blocks(body).try_run().unwrap_err();
        (fault.kind.clone(), fault.to_string())
    };
    for (map, rank) in [
        ("mapa.shared::cluster.u32 %r4, %r3, 4;\nld.shared::cluster.u32 %r5, [%r4+4];", 4),
        ("mapa.shared::cluster.u32 %r4, %r3, -1;\nst.shared::cluster.u32 [%r4], %r5;", 126),
        (
            "cvt.u64.u32 %rd1, %r3;\ncvta.shared.u64 %rd1, %rd1;\nmapa.u64 %rd1, %rd1, 5;\nld.u32 %r5, [%rd1];",
            5,
        ),
        (
            "cvt.u64.u32 %rd1, %r3;\ncvta.shared.u64 %rd1, %rd1;\nmapa.u64 %rd1, %rd1, -1;\natom.add.u32 %r5, [%rd1], 1;",
            126,
        ),
    ] {
        let (kind, _) = fault(&format!("{map}\nret;"));
        assert_eq!(kind, FaultKind::NoSuchRank { rank, blocks: 4 });
    }
    // A lane that does not use the address may map any.
    of_four_blocks(&format!("mapa.shared::cluster.u32 %r4, %r3, 4;\nst.global.u32 [%at], %i;\n{MEET}\nret;"))
        .gives(|i| i);
    let (_, text) = fault("mapa.shared::cluster.u32 %r4, %r3, 4;\nld.shared::cluster.u32 %r5, [%r4];\nret;");
    let end = "it uses an address in block 4 of its cluster, which has blocks 0 to 3; use one of these, or launch the \
               kernel with larger clusters";
    assert!(text.ends_with(end), "{text}");
    let (kind, _) = fault("ld.shared::cluster.u32 %r5, [%r4+512];\nret;");
    assert!(matches!(kind, FaultKind::OutOfShared { offset: 512, bytes: 4, len_bytes: 512, .. }), "{kind:?}");
    let (kind, _) = fault("ld.shared::cluster.u32 %r5, [%r4+2];\nret;");
    assert!(matches!(kind, FaultKind::Misaligned { bytes: 4, .. }), "{kind:?}");
    // The window of the block ends where its memory does, and so does a generic address.
    let (kind, _) = fault("ld.shared.u32 %r5, [%r4];\nret;");
    assert!(matches!(kind, FaultKind::OutOfShared { .. }), "{kind:?}");
    for window in ["shared", "shared::cluster"] {
        let (kind, _) = fault(&format!("mov.u32 %r5, 0;\nld.{window}.u32 %r5, [%r5-4];\nret;"));
        assert!(matches!(kind, FaultKind::OutOfShared { offset: 0xffff_fffc, .. }), "{kind:?}");
    }
    for offset in ["512", "-4"] {
        let (kind, _) = fault(&format!(
            "mov.u64 %rd1, area;\ncvta.shared.u64 %rd1, %rd1;\nld.u32 %r5, [%rd1+{offset}];\nret;"
        ));
        let expected: i64 = offset.parse().unwrap();
        let is_it = matches!(kind, FaultKind::OutOfShared { offset, .. } if offset == expected as u64);
        assert!(is_it, "{kind:?}");
    }
    // A generic address in another block ends there too. The report names the block, also at the
    // ends of the cluster and behind them.
    let map = "mov.u64 %rd1, area;\ncvta.shared.u64 %rd1, %rd1;\nmapa.u64 %rd1, %rd1,";
    for (rank, at, block) in [
        (2, 512, " of block 2 of its cluster"),
        (2, -4, " of block 2 of its cluster"),
        (3, 512, " of block 3 of its cluster"),
        (3, 4096, " of block 3 of its cluster"),
        (0, -4096, ""),
    ] {
        for load in [
            format!("setp.ne.u32 %p1, %r2, 0;\n@%p1 bra END;\n{map} {rank};\nld.u32 %r5, [%rd1+{at}];"),
            format!(
                "setp.ne.u32 %p1, %r2, 0;\n@%p1 bra END;\nmov.u32 %r5, area;\n\
                 mapa.shared::cluster.u32 %r5, %r5, {rank};\nld.shared::cluster.u32 %r5, [%r5+{at}];"
            ),
        ] {
            let (_, text) = fault(&format!("{load}\nEND:\n{MEET}\nret;"));
            let end = format!(
                "it reads 4 bytes at byte {at} of the shared variable area{block}, which has 512 bytes; mend the \
                 index"
            );
            assert!(text.ends_with(&end), "{text}");
        }
    }
    // An index of 32 bits without a sign that is one less than 0.
    for (base, window, block) in [
        ("mov.u64 %rd1, area;".to_owned(), ".shared", ""),
        (format!("{map} 3;"), "", " of block 3 of its cluster"),
    ] {
        let (_, text) = fault(&format!(
            "setp.ne.u32 %p1, %r2, 0;\n@%p1 bra END;\n{base}\nmov.u32 %r5, -1;\n\
             mad.wide.u32 %rd1, %r5, 4, %rd1;\nld{window}.u32 %r5, [%rd1];\nEND:\n{MEET}\nret;"
        ));
        let end =
            format!("at byte -4 of the shared variable area{block}, which has 512 bytes; mend the index");
        assert!(text.ends_with(&end), "{text}");
    }
    let exits = "setp.eq.u32 %p1, %r2, 1;\n@%p1 exit;\nbarrier.cluster.arrive;\nbarrier.cluster.wait;";
    for load in [
        "ld.shared::cluster.u32 %r5, [%r4];",
        "cvt.u64.u32 %rd1, %r4;\ncvta.shared::cluster.u64 %rd1, %rd1;\nld.u32 %r5, [%rd1];",
    ] {
        let (kind, text) = fault(&format!("{exits}\n{load}\nret;"));
        assert!(matches!(kind, FaultKind::BlockExited { rank: 1, bytes: 4, .. }), "{kind:?}");
        let end = "it reads 4 bytes at byte 0 of the shared variable area of block 1 of its cluster, whose threads \
                   have exited; let all threads of the cluster meet at its barrier before they exit";
        assert!(text.ends_with(end), "{text}");
    }
    let (kind, _) = fault(
        "setp.eq.u32 %p1, %r2, 1;\n@%p1 bra END;\nbarrier.cluster.arrive;\nEND:\nbar.sync 0;\nbarrier.cluster.wait;\nret;",
    );
    assert_eq!(kind, FaultKind::NotArrived);
}
