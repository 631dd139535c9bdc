//! Instructions and directives of clusters of one block: PTX ISA 9.7.9.23, 9.7.9.24, 9.7.13.3 and
//! 11.7.

use crate::program::Program;
use warpline_ptx::{Config, FaultKind, Module};

/// A program of three warps with shared memory.
fn of_three_warps(body: &str) -> Program {
    let before = ".shared .align 4 .b8 area[512];".to_owned();
    let body = format!("add.s64 %at, %at, %out;\nmov.u32 %r2, area;\nmad.lo.u32 %r3, %i, 4, %r2;\n{body}");
    Program { before, len: 96, config: Config::linear(1, 96), ..Program::new(body) }
}

fn fault(body: &str) -> (FaultKind, String) {
    let fault = of_three_warps(body).try_run().unwrap_err();
    (fault.kind.clone(), fault.to_string())
}

#[test]
fn the_barrier_of_the_cluster_opens_for_the_block() {
    for (arrive, wait) in [
        ("barrier.cluster.arrive", "barrier.cluster.wait"),
        ("barrier.cluster.arrive.release.aligned", "barrier.cluster.wait.acquire.aligned"),
        ("barrier.cluster.arrive.relaxed", "barrier.cluster.wait.acquire"),
    ] {
        of_three_warps(&format!(
            "st.shared::cluster.u32 [%r3], %i;
            fence.acq_rel.cluster;
            {arrive};
            {wait};
            mapa.shared::cluster.u32 %r4, %r2, 0;
            sub.u32 %r5, 95, %i;
            mad.lo.u32 %r4, %r5, 4, %r4;
            ld.shared::cluster.u32 %r6, [%r4];
            st.global.u32 [%at], %r6;
            ret;"
        ))
        .gives(|i| 95 - i);
    }
}

#[test]
fn a_thread_may_wait_long_after_the_others_have_gone_on() {
    // The first warp waits when the others have arrived for the next phase, which does not end
    // before it arrives too.
    of_three_warps(
        "setp.eq.u32 %p1, %i, 0;
        @%p1 st.shared.u32 [area+400], 0;
        st.shared.u32 [%r3], 1;
        bar.sync 0;
        barrier.cluster.arrive;
        setp.lt.u32 %p1, %i, 32;
        @%p1 bra LATE;
        barrier.cluster.wait;
        barrier.cluster.arrive;
        atom.shared.add.u32 %r4, [area+400], 1;
        bra NEXT;
        LATE:
        ld.volatile.shared.u32 %r4, [area+400];
        setp.ne.u32 %p2, %r4, 64;
        @%p2 bra LATE;
        barrier.cluster.wait;
        st.shared.u32 [%r3], 2;
        barrier.cluster.arrive;
        NEXT:
        barrier.cluster.wait;
        ld.shared.u32 %r5, [area];
        st.global.u32 [%at], %r5;
        ret;",
    )
    .gives(|_| 2);
}

#[test]
fn threads_that_exit_are_not_waited_for() {
    of_three_warps(
        "st.global.u32 [%at], 1;
        and.b32 %r4, %i, 1;
        setp.eq.u32 %p1, %r4, 1;
        @%p1 exit;
        barrier.cluster.arrive;
        setp.ge.u32 %p1, %i, 64;
        @%p1 exit;
        barrier.cluster.wait;
        st.global.u32 [%at], 2;
        ret;",
    )
    .gives(|i| if i % 2 == 0 && i < 64 { 2 } else { 1 });
}

#[test]
fn addresses_are_those_of_the_only_block() {
    of_three_warps(
        "st.shared.u32 [%r3], %i;
        cvt.u64.u32 %rd1, %r3;
        cvta.shared::cluster.u64 %rd1, %rd1;
        mapa.u64 %rd2, %rd1, %cluster_ctarank;
        isspacep.shared::cluster %p1, %rd2;
        getctarank.u64 %r4, %rd2;
        getctarank.shared::cluster.u32 %r5, %r3;
        add.u32 %r4, %r4, %r5;
        ld.u32 %r6, [%rd2];
        selp.u32 %r4, %r4, 99, %p1;
        st.global.v2.u32 [%at], {%r6, %r4};
        ret;",
    )
    .gives(|i| i);
}

#[test]
fn wrong_uses_of_clusters_are_faults() {
    let (kind, text) = fault("mapa.shared::cluster.u32 %r4, %r3, 1;\nret;");
    assert_eq!(kind, FaultKind::NoSuchRank { rank: 1 });
    let end = "it maps an address to block 1 of its cluster, and each block is the only one of its cluster here; map it \
               to block 0, or run the kernel on a GPU with clusters";
    assert!(text.ends_with(end), "{text}");
    let (kind, text) = fault("barrier.cluster.arrive;\nbarrier.cluster.arrive;\nret;");
    assert_eq!(kind, FaultKind::ArrivedTwice);
    assert!(text.ends_with("where it has arrived already; wait there before each further arrival"), "{text}");
    let (kind, text) = fault("barrier.cluster.wait;\nret;");
    assert_eq!(kind, FaultKind::NotArrived);
    assert!(text.ends_with("where it has not arrived; arrive there before each wait"), "{text}");
    let (kind, _) = fault(
        "setp.lt.u32 %p1, %i, 32;\n@%p1 bar.sync 0;\nbarrier.cluster.arrive;\nbarrier.cluster.wait;\nret;",
    );
    assert_eq!(kind, FaultKind::Deadlock { at_barrier: 96, for_lanes: 0, exited: 0 });
}

#[test]
fn kernels_for_larger_clusters_are_refused() {
    let load = |directives: &str| {
        let text = format!(
            ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry main()\n.maxntid 32\n{directives}\n{{ ret; }}"
        );
        Module::new(text).unwrap().kernel("main").map(drop).map_err(|error| error.to_string())
    };
    for sound in ["", ".explicitcluster .reqnctapercluster 1, 1, 1", ".maxclusterrank 8"] {
        assert_eq!(load(sound), Ok(()), "{sound}");
    }
    let rest = "and each block is the only one of its cluster here; run the kernel on a GPU with clusters, or compile it \
                for clusters of one block";
    for (directives, problem) in [
        (
            ".explicitcluster\n.reqnctapercluster 2, 3, 1",
            "line 7: .reqnctapercluster 2, 3, 1 asks for clusters of 6 blocks",
        ),
        (".reqnctapercluster 4", "line 6: .reqnctapercluster 4 asks for clusters of 4 blocks"),
        (".explicitcluster", "line 6: .explicitcluster asks for a launch with clusters"),
    ] {
        assert_eq!(load(directives), Err(format!("{problem}, {rest}")));
    }
}
