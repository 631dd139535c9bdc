//! Instructions of clusters: PTX ISA 9.7.9.23, 9.7.9.24 and 9.7.13.3.

use crate::program::Program;
use warpline_ptx::Config;

/// A program of three warps with shared memory.
pub(super) fn of_three_warps(body: &str) -> Program {
    let before = ".shared .align 4 .b8 area[512];".to_owned();
    let body = format!("add.s64 %at, %at, %out;\nmov.u32 %r2, area;\nmad.lo.u32 %r3, %i, 4, %r2;\n{body}");
    Program { before, len: 96, config: Config::linear(1, 96), ..Program::new(body) }
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
    // before it arrives too. Without a cluster, ptxas makes a barrier of the block of the wait,
    // and nothing of the arrival: the first warp would hang on a GPU.
    let mut program = of_three_warps(
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
    );
    program.config.cluster = Some([1, 1, 1]);
    program.gives(|_| 2);
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
        mov.u32 %r7, %cluster_ctarank;
        mapa.u64 %rd2, %rd1, %r7;
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

/// A program of two clusters of four blocks of two warps. `%r2` is the number of the block in its
/// cluster, `%r3` the address of the own word of `area`, and `%r4` that of the thread's word in
/// the next block of the cluster.
pub(super) fn of_four_blocks(body: &str) -> Program {
    let before = ".shared .align 8 .b8 area[512];\n.shared .align 8 .b8 words[512];".to_owned();
    let body = format!(
        "add.s64 %at, %at, %out;
        mov.u32 %r2, %cluster_ctarank;
        mov.u32 %r3, %tid.x;
        mov.u32 %r4, area;
        mad.lo.u32 %r3, %r3, 4, %r4;
        add.u32 %r4, %r2, 1;
        and.b32 %r4, %r4, 3;
        mapa.shared::cluster.u32 %r4, %r3, %r4;
        {body}"
    );
    let config = Config { cluster: Some([4, 1, 1]), ..Config::linear(8, 64) };
    Program { before, len: 512, config, ..Program::new(body) }
}

pub(super) const MEET: &str = "barrier.cluster.arrive;\nbarrier.cluster.wait;";

/// The number of the thread, in its cluster's next block, that has the place of thread `i`.
fn in_next_block(i: u64) -> u64 {
    i / 256 * 256 + (i + 64) % 256
}

/// Programs in which each thread gives the number of the thread at its place in the next block.
fn reads_of_the_next_block() -> Vec<Program> {
    let loads = [
        "ld.shared::cluster.u32 %r5, [%r4];",
        // By generic addresses, from either form.
        "cvt.u64.u32 %rd1, %r4;\ncvta.shared::cluster.u64 %rd1, %rd1;\nld.u32 %r5, [%rd1];",
        "cvt.u64.u32 %rd1, %r3;\ncvta.shared.u64 %rd1, %rd1;\nadd.u32 %r6, %r2, 1;\nand.b32 %r6, %r6, 3;
        mapa.u64 %rd1, %rd1, %r6;\nld.u32 %r5, [%rd1];",
        "cvt.u64.u32 %rd1, %r4;\ncvta.shared::cluster.u64 %rd1, %rd1;\ncvta.to.shared::cluster.u64 %rd1, %rd1;
        cvt.u32.u64 %r6, %rd1;\nld.shared::cluster.u32 %r5, [%r6];",
        "atom.relaxed.cluster.shared::cluster.add.u32 %r5, [%r4], 9;",
    ];
    let of = |load: &str| {
        of_four_blocks(&format!(
            "st.shared.u32 [%r3], %i;\n{MEET}\n{load}\nst.global.u32 [%at], %r5;\n{MEET}\nret;"
        ))
    };
    loads.map(of).into()
}

/// The texts of programs here, for the count of opcodes.
pub(crate) fn texts() -> Vec<String> {
    reads_of_the_next_block().iter().map(Program::text).collect()
}

#[test]
fn blocks_read_each_others_shared_memory() {
    reads_of_the_next_block().iter().for_each(|program| program.gives(in_next_block));
}

#[test]
fn blocks_write_each_others_shared_memory() {
    for store in [
        "st.shared::cluster.u32 [%r4], %i;",
        "st.shared::cluster.v2.u32 [%r4], {%i, %i};",
        "cvt.u64.u32 %rd1, %r4;\ncvta.shared::cluster.u64 %rd1, %rd1;\nst.u32 [%rd1], %i;",
        "red.relaxed.cluster.shared::cluster.max.u32 [%r4], %i;",
    ] {
        // A vector of two words per thread needs every other one.
        let is_vector = store.contains("v2");
        let place =
            if is_vector { "mad.lo.u32 %r3, %tid.x, 4, %r3;\nmad.lo.u32 %r4, %tid.x, 4, %r4;" } else { "" };
        let body = format!(
            "{place}\nst.shared.u32 [%r3], 0;\n{MEET}\n{store}\n{MEET}\nld.shared.u32 %r5, [%r3];
            st.global.u32 [%at], %r5;\nret;"
        );
        let body = body.replace("%tid.x, 4,", "%r7, 4,");
        of_four_blocks(&format!("mov.u32 %r7, %tid.x;\n{body}")).gives(|i| i / 256 * 256 + (i + 192) % 256);
    }
}

#[test]
fn addresses_tell_whose_memory_they_are_in() {
    let tests = ["shared::cluster", "shared::cta", "shared", "global", "local"];
    let bits: String = tests
        .iter()
        .enumerate()
        .map(|(at, space)| {
            format!(
                "isspacep.{space} %p1, %rd1;\nselp.u32 %r6, {}, 0, %p1;\nor.b32 %r5, %r5, %r6;\n",
                1 << at
            )
        })
        .collect();
    let of_shared = "cvt.u64.u32 %rd1, %r3;\ncvta.shared.u64 %rd1, %rd1;";
    let of_other = "cvt.u64.u32 %rd1, %r4;\ncvta.shared::cluster.u64 %rd1, %rd1;";
    for (address, rank, expected) in [(of_shared, 0, 0b111), (of_other, 1, 0b1)] {
        // The number of the block that has it is in the next bits.
        of_four_blocks(&format!(
            "{address}\nmov.u32 %r5, 0;\n{bits}getctarank.u64 %r6, %rd1;\nshl.b32 %r6, %r6, 8;\nor.b32 %r5, %r5, %r6;
            st.global.u32 [%at], %r5;\n{MEET}\nret;"
        ))
        .gives(|i| (((i / 64 + rank) % 4) << 8) | expected);
    }
    let of_global = "mov.u64 %rd1, %at;\nmov.u32 %r5, 0;";
    of_four_blocks(&format!("{of_global}\n{bits}\nst.global.u32 [%at], %r5;\n{MEET}\nret;"))
        .gives(|_| 0b1000);
    of_four_blocks(&format!(
        "getctarank.shared::cluster.u32 %r5, %r4;\nst.global.u32 [%at], %r5;\n{MEET}\nret;"
    ))
    .gives(|i| (i / 64 + 1) % 4);
}

#[test]
fn a_mapped_address_means_the_same_block_in_each_one() {
    // The first block hands the address in its next one to all others.
    for (hand_on, take) in [
        (
            "st.shared.u32 [area+256], %r4;",
            "ld.shared::cluster.u32 %r6, [%r6];\nld.shared::cluster.u32 %r5, [%r6];",
        ),
        (
            "cvt.u64.u32 %rd1, %r4;\ncvta.shared::cluster.u64 %rd1, %rd1;\nst.shared.u64 [area+256], %rd1;",
            "ld.shared::cluster.u64 %rd2, [%r6];\nld.u32 %r5, [%rd2];",
        ),
    ] {
        of_four_blocks(&format!(
            "st.shared.u32 [%r3], %i;
            mov.u32 %r8, %tid.x;
            setp.ne.u32 %p1, %r8, 3;
            @%p1 bra MEET;
            {hand_on}
            MEET: {MEET}
            mov.u32 %r6, area;
            add.u32 %r6, %r6, 256;
            mapa.shared::cluster.u32 %r6, %r6, 0;
            {take}
            st.global.u32 [%at], %r5;
            {MEET}
            ret;"
        ))
        .gives(|i| i / 256 * 256 + 64 + 3);
    }
}

#[test]
fn a_block_hands_on_the_address_of_its_own_memory() {
    // Each block tells the next one where its own word is, in all forms.
    for (own, take) in [
        (
            "mapa.shared::cluster.u32 %r6, %r3, %r2;\ncvt.u64.u32 %rd1, %r6;",
            "ld.shared::cluster.u32 %r5, [%rd2];",
        ),
        (
            "cvt.u64.u32 %rd1, %r3;\ncvta.shared.u64 %rd1, %rd1;\ncvta.to.shared::cluster.u64 %rd1, %rd1;
            ld.shared.u32 %r5, [%rd1];\ncvta.shared.u64 %rd3, %rd1;\nld.u32 %r5, [%rd3];",
            "ld.shared::cluster.u32 %r5, [%rd2];",
        ),
        ("cvt.u64.u32 %rd1, %r3;\ncvta.shared.u64 %rd1, %rd1;", "ld.u32 %r5, [%rd2];"),
    ] {
        of_four_blocks(&format!(
            "mov.u64 %rd4, words;
            mov.u32 %r7, %tid.x;
            mad.wide.u32 %rd4, %r7, 8, %rd4;
            add.u32 %r8, %r2, 1;
            and.b32 %r8, %r8, 3;
            mapa.shared::cluster.u64 %rd5, %rd4, %r8;
            st.shared.u32 [%r3], %i;
            {own}
            {MEET}
            st.shared::cluster.u64 [%rd5], %rd1;
            {MEET}
            ld.shared.u64 %rd2, [%rd4];
            {take}
            st.global.u32 [%at], %r5;
            {MEET}
            ret;"
        ))
        .gives(|i| i / 256 * 256 + (i + 192) % 256);
    }
}

#[test]
fn an_address_beside_the_memory_of_a_block_is_mapped_with_it() {
    // A pointer to the end, and one in front of the start, in both forms.
    for offset in [512_i32, -4] {
        of_four_blocks(&format!(
            "st.shared.u32 [%r3], %i;
            {MEET}
            mov.u32 %r6, area;
            add.u32 %r6, %r6, {offset};
            add.u32 %r8, %r2, 1;
            and.b32 %r8, %r8, 3;
            mov.u32 %r7, %tid.x;
            mad.lo.u32 %r9, %r7, 4, 0;
            sub.u32 %r9, %r9, {offset};
            cvt.s64.s32 %rd1, %r6;
            cvta.shared.u64 %rd1, %rd1;
            mapa.u64 %rd1, %rd1, %r8;
            getctarank.u64 %r10, %rd1;
            cvt.s64.s32 %rd2, %r9;
            add.s64 %rd2, %rd2, %rd1;
            ld.u32 %r5, [%rd2];
            cvta.to.shared::cluster.u64 %rd1, %rd1;
            cvt.u32.u64 %r11, %rd1;
            add.u32 %r11, %r11, %r9;
            ld.shared::cluster.u32 %r12, [%r11];
            sub.u32 %r12, %r12, %r5;
            add.u32 %r5, %r5, %r12;
            sub.u32 %r10, %r10, %r8;
            add.u32 %r5, %r5, %r10;
            st.global.u32 [%at], %r5;
            {MEET}
            ret;"
        ))
        .gives(in_next_block);
    }
}

#[test]
fn a_block_may_wait_for_a_flag_in_another_one() {
    // Each block waits for the one before, in the order in which they run and against it.
    for first in [0, 3] {
        let step = if first == 0 { 1 } else { 3 };
        of_four_blocks(&format!(
            "mov.u32 %r5, %tid.x;
            setp.ne.u32 %p1, %r5, 0;
            @!%p1 st.volatile.shared.u32 [area], 0;
            {MEET}
            @%p1 bra DONE;
            setp.eq.u32 %p2, %r2, {first};
            @%p2 bra NEXT;
            WAIT: ld.volatile.shared.u32 %r6, [area];
            setp.eq.u32 %p3, %r6, 0;
            @%p3 bra WAIT;
            NEXT:
            @%p2 mov.u32 %r6, 0;
            st.global.u32 [%at], %r6;
            add.u32 %r6, %r6, 1;
            add.u32 %r7, %r2, {step};
            and.b32 %r7, %r7, 3;
            setp.eq.u32 %p2, %r7, {first};
            @%p2 bra DONE;
            mapa.shared::cluster.u32 %r8, %r3, %r7;
            st.volatile.shared::cluster.u32 [%r8], %r6;
            DONE: {MEET}
            ret;"
        ))
        .gives(|i| match i % 64 {
            0 if first == 0 => i / 64 % 4,
            0 => 3 - i / 64 % 4,
            _ => 0,
        });
    }
}

#[test]
fn a_phase_waits_for_all_blocks_and_not_for_those_that_have_exited() {
    of_four_blocks(&format!(
        "st.shared.u32 [%r3], %i;
        setp.eq.u32 %p1, %r2, 3;
        {MEET}
        ld.shared::cluster.u32 %r5, [%r4];
        st.global.u32 [%at], %r5;
        {MEET}
        @%p1 exit;
        {MEET}
        setp.eq.u32 %p1, %r2, 2;
        @%p1 exit;
        setp.ne.u32 %p1, %r2, 0;
        @!%p1 ld.shared::cluster.u32 %r5, [%r4];
        {MEET}
        @!%p1 st.global.u32 [%at], %r5;
        ret;"
    ))
    .gives(in_next_block);
}
