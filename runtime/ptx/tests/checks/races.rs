//! Two accesses that nothing orders.

use crate::launch::Launch;
use warpline_ptx::Relation::{self, SameBlock, SameInstruction, SameWarp, TwoBlocks};
use warpline_ptx::{Access, Checks, FaultKind};

const RACES: Checks = Checks { races: true, init: false, sync: false };

/// Two bodies, of which the first has a race between threads of this relation, and the second has
/// none. Both run in blocks of 64 threads.
struct Rule {
    name: &'static str,
    blocks: u32,
    relation: Relation,
    racy: String,
    sound: String,
}

fn rule(name: &'static str, blocks: u32, relation: Relation, racy: String, sound: String) -> Rule {
    Rule { name, blocks, relation, racy, sound }
}

/// The body of a thread that passes the word at `data` on to another one: `publish` is what the
/// first thread does behind its write. Then it writes the flag with `store`. The threads of
/// `reader`, a predicate, wait for the flag with `load`, and read the word.
fn passed_on(reader: &str, publish: &str, store: &str, load: &str, behind: &str) -> String {
    format!(
        "\
{reader}
setp.eq.u32 %p2, %t, 0;
not.pred %p3, %p1;
and.pred %p2, %p2, %p3;
@!%p2 bra READ;
st.global.u32 [%data], 7;
{publish}
{store} [%data+1024], 1;
ret;
READ:
@!%p1 bra END;
WAIT:
{load} %r1, [%data+1024];
setp.eq.u32 %p4, %r1, 0;
@%p4 bra WAIT;
{behind}
ld.global.u32 %r2, [%data];
END:
ret;"
    )
}

/// Thread 32 of the same block reads.
const OTHER_WARP: &str = "setp.eq.u32 %p1, %t, 32;";
/// Thread 0 of block 1 reads.
const OTHER_BLOCK: &str = "setp.eq.u32 %p1, %b, 1;\nsetp.eq.u32 %p5, %t, 0;\nand.pred %p1, %p1, %p5;\n@%p1 bra READ;\nsetp.eq.u32 %p5, %b, 0;\n@!%p5 bra END;";

fn rules() -> Vec<Rule> {
    let exchange = |store: &str, between: &str, load: &str| format!("{store}\n{between}\n{load}\nret;");
    let (own, near, far) =
        ("st.shared.u32 [%word], %t;", "ld.shared.u32 %r1, [%near];", "ld.shared.u32 %r1, [%far];");
    let mut rules = Vec::new();
    for meeting in
        ["bar.warp.sync -1;", "bar.sync 0;", "setp.eq.u32 %p1, %t, 0;\nbar.red.and.pred %p2, 0, %p1;"]
    {
        rules.push(rule("lanes meet", 1, SameWarp, exchange(own, "", near), exchange(own, meeting, near)));
    }
    for together in [
        "shfl.sync.idx.b32 %r2, %t, 0, 31, -1;",
        "setp.eq.u32 %p1, %t, 0;\nvote.sync.any.pred %p2, %p1, -1;",
        "redux.sync.add.u32 %r2, %t, -1;",
        "match.any.sync.b32 %r2, %t, -1;",
    ] {
        let meeting = format!("{together}\nbar.warp.sync -1;");
        rules.push(rule(
            "lanes that exchange values order no accesses",
            1,
            SameWarp,
            exchange(own, together, near),
            exchange(own, &meeting, near),
        ));
    }
    rules.push(rule(
        "a warp waits for another",
        1,
        SameBlock,
        exchange(own, "bar.warp.sync -1;", far),
        exchange(own, "bar.sync 0;", far),
    ));
    rules.push(rule(
        "a write waits for a read",
        1,
        SameBlock,
        format!("{own}\nbar.sync 0;\n{far}\nst.shared.u32 [%word], 99;\nret;"),
        format!("{own}\nbar.sync 0;\n{far}\nbar.sync 0;\nst.shared.u32 [%word], 99;\nret;"),
    ));
    let copied =
        "cp.async.ca.shared.global [%word], [%own], 4;\nbar.sync 0;\ncp.async.wait_all;\nbar.sync 0;\nret;";
    rules.push(rule(
        "a copy may write as soon as it is issued",
        1,
        SameBlock,
        format!("{far}\n{copied}"),
        format!("{far}\nbar.sync 0;\n{copied}"),
    ));
    let copied_from_far = |meeting: &str| {
        format!(
            "xor.b32 %r1, %t, 32;\nmad.wide.u32 %rd1, %r1, 4, %data;\nst.global.u32 [%own], %t;\n{meeting}\n\
             cp.async.ca.shared.global [%word], [%rd1], 4;\ncp.async.wait_all;\nret;"
        )
    };
    rules.push(rule(
        "a copy reads its source",
        1,
        SameBlock,
        copied_from_far("bar.warp.sync -1;"),
        copied_from_far("bar.sync 0;"),
    ));
    let copied_from_block = |from: &str| {
        format!(
            "mad.wide.u32 %rd1, %t, 4, %data;\nsetp.eq.u32 %p1, %b, 0;\n@!%p1 st.global.u32 [%rd1], %t;\n\
             @!%p1 ret;\ncp.async.ca.shared.global [%word], [{from}], 4;\ncp.async.wait_all;\nret;"
        )
    };
    rules.push(rule(
        "a block writes the source of a copy of another one",
        2,
        TwoBlocks,
        copied_from_block("%rd1"),
        copied_from_block("%rd1+1024"),
    ));
    let store = "mad.wide.u32 %rd1, %t, 8, %rd0;\nst.shared.v2.u32 [%rd1], {%t, %t};";
    let load =
        "wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}, [%rd0];";
    rules.push(rule(
        "a matrix is loaded behind a barrier",
        1,
        SameBlock,
        exchange(store, "bar.warp.sync -1;", load),
        exchange(store, "bar.sync 0;", load),
    ));
    let overwritten = |meeting| exchange(&format!("{store}\nbar.sync 0;\n{load}"), meeting, store);
    rules.push(rule(
        "a matrix is overwritten behind a barrier",
        1,
        SameBlock,
        overwritten("bar.warp.sync -1;"),
        overwritten("bar.sync 0;"),
    ));
    let byte_of = |offset: &str| {
        format!("cvt.u64.u32 %rd1, {offset};\nadd.u64 %rd1, %data, %rd1;\nst.global.u8 [%rd1+1], %b;\nret;")
    };
    rules.push(rule("bytes of a word differ", 2, TwoBlocks, byte_of("0"), byte_of("%b")));
    let hand_over = |first: &str, second: &str| {
        format!(
            "setp.lt.u32 %p1, %t, 32;\n@!%p1 bra TAKE;\n{first}\nret;\nTAKE:\nbar.sync 3, 64;\n{second}\nret;"
        )
    };
    rules.push(rule(
        "an arrival is behind what comes before it",
        1,
        SameBlock,
        hand_over(&format!("bar.arrive 3, 64;\n{own}"), far),
        hand_over(&format!("{own}\nbar.arrive 3, 64;"), far),
    ));
    let (arrive, wait) = ("barrier.cluster.arrive;", "barrier.cluster.wait;");
    rules.push(rule(
        "a read is behind the wait at the barrier of the cluster",
        1,
        SameBlock,
        format!("{own}\n{arrive}\n{far}\n{wait}\nret;"),
        format!("{own}\n{arrive}\n{wait}\n{far}\nret;"),
    ));
    rules.push(rule(
        "a write is before the arrival at the barrier of the cluster",
        1,
        SameBlock,
        format!("{arrive}\n{own}\n{wait}\n{far}\nret;"),
        format!("{own}\nbarrier.cluster.arrive.relaxed;\n{wait}\n{far}\nret;"),
    ));
    // The first warp waits when the second one has gone on.
    let late = |before: &str, behind: &str| {
        format!(
            "setp.eq.u32 %p1, %t, 0;\n@%p1 st.shared.u32 [area+512], 0;\nbar.sync 0;\n{own}\n{arrive}\n\
             setp.lt.u32 %p1, %t, 32;\n@%p1 bra LATE;\n{wait}\nst.volatile.shared.u32 [area+512], 1;\nret;\nLATE:\n\
             ld.volatile.shared.u32 %r1, [area+512];\nsetp.eq.u32 %p2, %r1, 0;\n@%p2 bra LATE;\n\
             {before}\n{wait}\n{behind}\nret;"
        )
    };
    rules.push(rule("a late wait orders too", 1, SameBlock, late(far, ""), late("", far)));
    // The barriers with numbers 1 and 2 open for other warps than those that have the value.
    let of_two = |id: &str| {
        format!(
            "setp.lt.u32 %p1, %t, 32;\n@!%p1 bra TAKE;\n{own}\nbar.sync {id}, 32;\nbar.arrive 4, 64;\nret;\n\
             TAKE:\nbar.sync 2, 32;\n{far}\nbar.sync 4, 64;\nret;"
        )
    };
    rules.push(rule(
        "barriers order the warps that meet",
        1,
        SameBlock,
        of_two("1"),
        format!("{own}\nbar.sync 5, 64;\n{far}\nret;"),
    ));

    let volatile = ("st.volatile.global.u32", "ld.volatile.global.u32");
    let relaxed = ("st.relaxed.gpu.global.u32", "ld.relaxed.gpu.global.u32");
    for (reader, blocks, relation, fence) in [
        (OTHER_WARP, 1, SameBlock, "membar.cta;"),
        (OTHER_WARP, 1, SameBlock, "fence.acq_rel.cta;"),
        (OTHER_WARP, 1, SameBlock, "fence.acq_rel.cluster;"),
        (OTHER_BLOCK, 2, TwoBlocks, "membar.gl;"),
        (OTHER_BLOCK, 2, TwoBlocks, "membar.sys;"),
        (OTHER_BLOCK, 2, TwoBlocks, "fence.sc.gpu;"),
    ] {
        for (store, load) in [volatile, relaxed] {
            rules.push(rule(
                "a fence is before the flag",
                blocks,
                relation,
                passed_on(reader, "", store, load, ""),
                passed_on(reader, fence, store, load, ""),
            ));
        }
    }
    for narrow in ["membar.cta;", "fence.acq_rel.cluster;"] {
        rules.push(rule(
            "a fence of the block is not enough between blocks",
            2,
            TwoBlocks,
            passed_on(OTHER_BLOCK, narrow, volatile.0, volatile.1, ""),
            passed_on(OTHER_BLOCK, "membar.gl;", volatile.0, volatile.1, ""),
        ));
    }
    rules.push(rule(
        "a fence behind the flag is too late",
        2,
        TwoBlocks,
        passed_on(
            OTHER_BLOCK,
            "st.volatile.global.u32 [%data+1024], 1;\nmembar.gl;\nret;",
            volatile.0,
            volatile.1,
            "",
        ),
        passed_on(OTHER_BLOCK, "membar.gl;", volatile.0, volatile.1, ""),
    ));
    rules.push(rule(
        "a release stands for a fence",
        2,
        TwoBlocks,
        passed_on(OTHER_BLOCK, "", "st.relaxed.gpu.global.u32", "ld.acquire.gpu.global.u32", ""),
        passed_on(OTHER_BLOCK, "", "st.release.gpu.global.u32", "ld.acquire.gpu.global.u32", ""),
    ));
    rules.push(rule(
        "an atomic operation passes on what a release covers",
        2,
        TwoBlocks,
        passed_on(OTHER_BLOCK, "", "red.relaxed.gpu.global.add.u32", "ld.acquire.gpu.global.u32", ""),
        passed_on(OTHER_BLOCK, "", "red.release.gpu.global.add.u32", "ld.acquire.gpu.global.u32", ""),
    ));
    // A plain wait for the flag is a race itself, whatever the fence does.
    rules.push(rule(
        "the flag is read by a strong load",
        2,
        TwoBlocks,
        passed_on(OTHER_BLOCK, "membar.gl;", "st.volatile.global.u32", "ld.global.u32", ""),
        passed_on(OTHER_BLOCK, "membar.gl;", "st.volatile.global.u32", "ld.volatile.global.u32", ""),
    ));
    let counted = |first: &str, second: &str| {
        format!("setp.eq.u32 %p1, %b, 0;\n@%p1 {first} [%data], 1;\n@!%p1 {second} [%data], 1;\nret;")
    };
    let (of_block, of_device) = ("red.relaxed.cta.global.add.u32", "red.relaxed.gpu.global.add.u32");
    for (first, second) in [(of_block, of_block), (of_device, of_block), (of_block, "red.global.add.u32")] {
        rules.push(rule(
            "an atomic operation of a block is none for another block",
            2,
            TwoBlocks,
            counted(first, second),
            counted(of_device, "red.sys.global.add.u32"),
        ));
    }
    // Thread 0 publishes what the other threads of its block wrote.
    let cumulative = |meeting: &str| {
        format!(
            "\
setp.eq.u32 %p1, %b, 0;
setp.eq.u32 %p2, %t, 0;
@!%p1 bra READ;
st.global.u32 [%own], %t;
{meeting}
@!%p2 bra END;
membar.gl;
st.volatile.global.u32 [%data+1024], 1;
ret;
READ:
ld.volatile.global.u32 %r1, [%data+1024];
setp.eq.u32 %p3, %r1, 0;
@%p3 bra READ;
mad.wide.u32 %rd1, %t, 4, %data;
ld.global.u32 %r2, [%rd1];
END:
ret;"
        )
    };
    rules.push(rule(
        "a fence covers what barriers put before it",
        2,
        TwoBlocks,
        cumulative(""),
        cumulative("bar.sync 0;"),
    ));
    // Lane 0 alone waits for the flag.
    let by_lane_0 = |behind: &str| {
        format!(
            "\
setp.eq.u32 %p1, %b, 0;
setp.eq.u32 %p2, %t, 0;
@!%p1 bra READ;
@!%p2 bra END;
st.global.u32 [%data], 7;
membar.gl;
st.volatile.global.u32 [%data+1024], 1;
ret;
READ:
@!%p2 bra GO;
WAIT:
ld.volatile.global.u32 %r1, [%data+1024];
setp.eq.u32 %p3, %r1, 0;
@%p3 bra WAIT;
GO:
{behind}
ld.global.u32 %r2, [%data];
END:
ret;"
        )
    };
    rules.push(rule(
        "a lane has what another one read when they have met",
        2,
        TwoBlocks,
        by_lane_0(""),
        by_lane_0("bar.sync 0;"),
    ));
    rules.push(rule(
        "strong accesses do not race",
        2,
        SameWarp,
        "atom.global.add.u32 %r1, [%data], 1;\nld.global.u32 %r2, [%data];\nret;".to_owned(),
        "atom.global.add.u32 %r1, [%data], 1;\nld.volatile.global.u32 %r2, [%data];\nret;".to_owned(),
    ));
    rules.push(rule(
        "an atomic operation races with a plain write",
        2,
        SameWarp,
        "st.global.u32 [%data], 3;\natom.global.add.u32 %r1, [%data+4], 1;\nred.global.add.u32 [%data], 1;\nret;".to_owned(),
        "red.global.add.u32 [%data], 3;\natom.global.add.u32 %r1, [%data+4], 1;\nred.global.add.u32 [%data], 1;\nret;".to_owned(),
    ));
    // Thread 0 of block 0 and that of block 1.
    let of_two_blocks = |first: &str, then: &str| {
        format!(
            "setp.ne.u32 %p1, %t, 0;\n@%p1 ret;\nsetp.ne.u32 %p1, %b, 0;\n@%p1 bra THEN;\n{first}\nTHEN:\n{then}\nret;"
        )
    };
    let count = "red.global.add.u32 [%data], 1;";
    for (racy, sound) in [
        ("st.global.u32 [%data], 0;\nbar.warp.sync 1;", "st.volatile.global.u32 [%data], 0;"),
        ("st.global.u32 [%data], 0;\nred.global.add.u32 [%data], 1;", "red.global.add.u32 [%data], 1;"),
        ("ld.global.u32 %r1, [%data];\nbar.warp.sync 1;", "ld.volatile.global.u32 %r1, [%data];"),
        (
            "ld.global.u32 %r1, [%data];\nld.volatile.global.u32 %r1, [%data];",
            "ld.volatile.global.u32 %r1, [%data];",
        ),
    ] {
        rules.push(rule(
            "a thread's atomic operation hides no plain access before it",
            2,
            TwoBlocks,
            of_two_blocks(racy, count),
            of_two_blocks(sound, count),
        ));
    }
    rules.push(rule(
        "a thread's operation for the device hides none for its block",
        2,
        TwoBlocks,
        of_two_blocks("red.relaxed.cta.global.add.u32 [%data], 1;\nred.global.add.u32 [%data], 1;", count),
        of_two_blocks("red.relaxed.gpu.global.add.u32 [%data], 1;\nred.global.add.u32 [%data], 1;", count),
    ));
    // The word is behind others that two lanes of block 0 read before a barrier.
    let read_before = |load: &str| {
        format!(
            "setp.ne.u32 %p1, %b, 0;\n@%p1 bra OTHER;\nld.global.u32 %r1, [%data];\nmembar.gl;\n\
             atom.global.add.u32 %r3, [%data+1024], 1;\nWAIT:\nld.volatile.global.u32 %r2, [%data+1028];\n\
             setp.eq.u32 %p2, %r2, 0;\n@%p2 bra WAIT;\nbar.sync 0;\nsetp.eq.u32 %p1, %t, 0;\n\
             @%p1 st.global.u32 [%data], 5;\nret;\nOTHER:\nsetp.ne.u32 %p1, %t, 0;\n@%p1 ret;\nGO:\n\
             ld.volatile.global.u32 %r2, [%data+1024];\nsetp.lt.u32 %p2, %r2, 64;\n@%p2 bra GO;\n{load}\n\
             st.volatile.global.u32 [%data+1028], 1;\nret;"
        )
    };
    rules.push(rule(
        "a strong read counts beside weak ones",
        2,
        TwoBlocks,
        read_before("ld.volatile.global.u32 %r1, [%data];"),
        read_before("ld.volatile.global.u32 %r1, [%data];\nmembar.gl;"),
    ));
    rules.push(rule(
        "a strong write ends no strong read",
        2,
        TwoBlocks,
        of_two_blocks(
            "GO:\nld.volatile.global.u32 %r1, [%data+1024];\nsetp.eq.u32 %p2, %r1, 0;\n@%p2 bra GO;\n\
             atom.global.exch.b32 %r1, [%data], 3;\nst.global.u32 [%data], 4;\nret;",
            "ld.volatile.global.u32 %r1, [%data];\nst.volatile.global.u32 [%data+1024], 1;",
        ),
        of_two_blocks(
            "GO:\nld.volatile.global.u32 %r1, [%data+1024];\nsetp.eq.u32 %p2, %r1, 0;\n@%p2 bra GO;\n\
             atom.global.exch.b32 %r1, [%data], 3;\nst.global.u32 [%data], 4;\nret;",
            "ld.volatile.global.u32 %r1, [%data];\nmembar.gl;\nst.volatile.global.u32 [%data+1024], 1;",
        ),
    ));
    let counted_in_a_warp = |between: &str| {
        format!(
            "setp.ge.u32 %p1, %t, 32;\n@%p1 ret;\nsetp.eq.u32 %p1, %t, 0;\n@%p1 st.shared.u32 [area], 0;\n{between}\n\
             red.shared.add.u32 [area], 1;\nret;"
        )
    };
    rules.push(rule(
        "nor does that of the thread which set the count",
        1,
        SameWarp,
        counted_in_a_warp(""),
        counted_in_a_warp("bar.warp.sync -1;"),
    ));
    rules.push(rule(
        "writes of one value do not race",
        2,
        SameInstruction,
        "st.global.u32 [%data], %t;\nret;".to_owned(),
        "st.global.u32 [%data], 5;\nret;".to_owned(),
    ));
    rules.push(rule(
        "blocks that write one value do not race",
        3,
        TwoBlocks,
        "setp.eq.u32 %p1, %t, 0;\n@%p1 st.global.u32 [%data], %b;\nret;".to_owned(),
        "setp.eq.u32 %p1, %t, 0;\n@%p1 st.global.u32 [%data], 5;\nret;".to_owned(),
    ));
    let bytes = |at: &str| {
        format!("cvt.u64.u32 %rd1, %t;\nadd.u64 %rd1, %rd0, %rd1;\ncvt.u16.u32 %h1, %t;\n{at}\nret;")
    };
    rules.push(rule(
        "bytes of one word are apart",
        1,
        SameWarp,
        bytes("st.shared.u8 [%rd1], %h1;\nld.shared.u8 %h2, [%rd1+1];"),
        bytes("st.shared.u8 [%rd1], %h1;\nld.shared.u8 %h2, [%rd1];"),
    ));
    rules.push(rule(
        "accesses of two sizes meet in the bytes that they share",
        1,
        SameBlock,
        "setp.lt.u32 %p1, %t, 32;\n@%p1 st.shared.v2.u32 [area], {1, 1};\n@!%p1 ld.shared.u32 %r1, [area+4];\nret;".to_owned(),
        "setp.lt.u32 %p1, %t, 32;\n@%p1 st.shared.v2.u32 [area], {1, 1};\n@!%p1 ld.shared.u32 %r1, [area+8];\nret;".to_owned(),
    ));
    rules.push(rule(
        "generic addresses point to the same memory",
        1,
        SameBlock,
        format!("{own}\ncvta.shared.u64 %rd1, %far;\nld.u32 %r1, [%rd1];\nret;"),
        format!("{own}\nbar.sync 0;\ncvta.shared.u64 %rd1, %far;\nld.u32 %r1, [%rd1];\nret;"),
    ));
    // A compiler may load in all lanes what only one of them uses. The tab keeps `with_uses` from
    // adding a use.
    let loads = |behind: &str| {
        format!(
            "setp.ge.u32 %p2, %t, 32;\n@%p2 ret;\nsetp.eq.u32 %p1, %t, 0;\nld.shared.b32 \t%r1, [area];\n{behind}\nst.global.u32 [%own], %r2;\n\
             @%p1 st.shared.u32 [area], 7;\nret;"
        )
    };
    rules.push(rule(
        "a load whose value is dropped does not race",
        1,
        SameWarp,
        loads("mov.u32 %r2, %r1;"),
        loads("selp.b32 %r2, %r1, 0, %p1;"),
    ));
    // Thread 0 loads a word and its first byte, and drops one. Thread 32 writes the last byte.
    let word_and_byte = |dropped: &str| {
        format!(
            "setp.eq.u32 %p1, %t, 0;\nsetp.eq.u32 %p2, %t, 32;\nsetp.ne.u32 %p3, %t, %t;\nmov.u16 %h1, 9;\n@%p2 bra WRITE;\n@!%p1 ret;\n\
             ld.shared.u32 \t%r1, [area];\nld.shared.u8 \t%r2, [area];\nselp.b32 {dropped}, {dropped}, 7, %p3;\n\
             add.u32 %r1, %r1, %r2;\nst.global.u32 [%own], %r1;\nret;\nWRITE:\nst.shared.u8 [area+3], %h1;\nret;"
        )
    };
    rules.push(rule(
        "a load whose value is dropped is not taken for another load of the thread",
        1,
        SameBlock,
        word_and_byte("%r2"),
        word_and_byte("%r1"),
    ));
    let halves = |meeting: &str| {
        exchange(
            "st.shared.u16 [%word], 7;\nst.shared.u16 [%word+2], 8;",
            meeting,
            "ld.shared.u16 %h2, [%near];",
        )
    };
    rules.push(rule(
        "a store to other bytes hides no other store of the thread",
        1,
        SameWarp,
        halves(""),
        halves("bar.warp.sync -1;"),
    ));
    let bytes_in_a_loop = |meeting: &str| {
        let store = "mov.u64 %rd1, %word;\nadd.u64 %rd2, %word, 4;\nLOOP:\nst.shared.u8 [%rd1], 7;\n\
                     add.u64 %rd1, %rd1, 1;\nsetp.lt.u64 %p1, %rd1, %rd2;\n@%p1 bra LOOP;";
        exchange(store, meeting, "ld.shared.u8 %h2, [%near];")
    };
    rules.push(rule(
        "the stores of a loop to bytes of a word count as one",
        1,
        SameWarp,
        bytes_in_a_loop(""),
        bytes_in_a_loop("bar.warp.sync -1;"),
    ));
    let halves_of_two = |meeting: &str| {
        format!(
            "setp.eq.u32 %p1, %t, 0;\nsetp.eq.u32 %p2, %t, 1;\nsetp.eq.u32 %p3, %t, 32;\n\
             @%p1 st.shared.u16 [area], 7;\n@%p2 st.shared.u16 [area+2], 8;\n{meeting}\n\
             @!%p3 ret;\nld.shared.u16 %h2, [area];\nret;"
        )
    };
    rules.push(rule(
        "a store to other bytes hides no store of another thread",
        1,
        SameBlock,
        halves_of_two("bar.warp.sync -1;"),
        halves_of_two("bar.sync 0;"),
    ));
    rules
}

#[test]
fn accesses_that_nothing_orders_are_reported_and_others_are_not() {
    for Rule { name, blocks, relation, racy, sound } in rules() {
        let launch = |body| Launch { checks: RACES, ..Launch::new(blocks, 64, body) };
        launch(&sound).passes();
        for fault in launch(&racy).faults() {
            // A seed may split the lanes that run an instruction.
            let is_near = |found| found == relation || (found, relation) == (SameWarp, SameInstruction);
            let is_it = |fault: &FaultKind| matches!(fault, FaultKind::Race(race) if is_near(race.relation));
            assert!(fault.as_ref().is_some_and(is_it), "{name}: {fault:?}\n{racy}");
        }
    }
}

#[test]
fn atomic_operations_of_a_block_do_not_race_within_it() {
    let body = "setp.lt.u32 %p1, %t, 40;\n@%p1 red.relaxed.cta.global.add.u32 [%data], 1;\n\
                @!%p1 red.relaxed.gpu.global.add.u32 [%data], 1;\nret;";
    Launch { checks: RACES, ..Launch::new(1, 64, body) }.passes();
}

/// Each block reads the word behind its own, passes the value between lanes, and writes its word.
/// The value may be dropped, so that the write of the next block is not reported. The read is,
/// where the next block runs first.
#[test]
fn a_seed_finds_a_race_between_blocks_that_depends_on_their_order() {
    let body = "mad.wide.u32 %rd1, %b, 4, %data;\nld.global.u32 \t%r1, [%rd1+4];\n\
                shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1;\nadd.u32 %r1, %r1, %r2;\nsetp.eq.u32 %p1, %t, 0;\n\
                @%p1 st.global.u32 [%rd1], %r1;\nret;";
    let launch = Launch { checks: RACES, ..Launch::new(4, 32, body) };
    assert!(launch.run().is_ok(), "{:?}", launch.run());
    let mut found = 0;
    for seed in 0..20 {
        let fault = Launch { seed: Some(seed), ..launch }.run().err().map(|fault| fault.kind);
        let is_it = |fault: &FaultKind| matches!(fault, FaultKind::Race(race) if race.relation == TwoBlocks);
        assert!(fault.as_ref().is_none_or(is_it), "{fault:?}");
        found += u32::from(fault.is_some());
    }
    // The orders of four blocks in which no block runs after the one behind it: 1 in 24.
    assert!(found >= 15, "{found} of 20 seeds");
}

#[test]
fn memory_is_not_watched_without_the_check() {
    for Rule { blocks, racy, .. } in rules() {
        Launch { checks: Checks { races: false, ..RACES }, ..Launch::new(blocks, 64, &racy) }.passes();
    }
}

#[test]
fn a_report_names_both_accesses_and_the_remedy() {
    let text = |blocks, body: &str| {
        let launch = Launch { checks: RACES, ..Launch::new(blocks, 64, body) };
        let fault = launch.run().unwrap_err().to_string();
        fault.strip_prefix("main failed in ").map(str::to_owned).unwrap_or(fault)
    };
    let far = "st.shared.u32 [%word], %t;\nld.shared.u32 %r1, [%far];\nret;";
    assert_eq!(
        text(1, far),
        "thread [32, 0, 0] of block [0, 0, 0] (PTX line 26): it writes byte 128 of the shared variable area, \
         which thread [0, 0, 0] of the same block reads (PTX line 27), and nothing orders the two accesses; \
         separate them by __syncthreads(); use atomic operations if both threads update it"
    );
    let near = "st.shared.u32 [%word], %t;\nld.shared.u32 %r1, [%near];\nret;";
    assert_eq!(
        text(1, near),
        "thread [0, 0, 0] of block [0, 0, 0] (PTX line 27): it reads byte 20 of the shared variable area, \
         which thread [5, 0, 0] of the same warp writes (PTX line 26), and nothing orders the two accesses; \
         separate them by __syncthreads(), or by __syncwarp() if this warp alone uses the memory; use atomic \
         operations if both threads update it"
    );
    let scopes = "atom.global.cta.add.u32 %r1, [%data+8], 1;\nret;";
    let remedy = "which thread [63, 0, 0] of block [0, 0, 0] writes (volatile or atomic) (PTX line 26), and nothing orders \
         the two accesses; one of them is atomic for the threads of its own block alone; give it the scope of the \
         device, as atomicAdd() has in place of atomicAdd_block()";
    assert!(text(2, scopes).ends_with(remedy), "{}", text(2, scopes));
    let blocks = "st.global.u32 [%data+8], %b;\nret;";
    assert_eq!(
        text(2, blocks),
        "thread [0, 0, 0] of block [1, 0, 0] (PTX line 26): it writes element 2 of data, which thread \
         [63, 0, 0] of block [0, 0, 0] writes (PTX line 26), and nothing orders the two accesses; use atomic \
         operations, or let the first block call __threadfence() and then set a flag that the second one reads \
         by an atomic operation or as volatile"
    );
    let lanes = "st.global.u32 [%data+8], %t;\nret;";
    assert_eq!(
        text(1, lanes),
        "thread [1, 0, 0] of block [0, 0, 0] (PTX line 26): it writes element 2 of data, which thread \
         [0, 0, 0] of the same warp writes (PTX line 26) by the same instruction, with another value; let one \
         thread write it, or use an atomic operation"
    );
    // A loop that adds by compare and swap starts with a plain read.
    let swap = "ld.global.u32 %r1, [%data+8];\nadd.u32 %r2, %r1, 1;\natom.global.cas.b32 %r3, [%data+8], %r1, %r2;\nret;";
    let remedy = "; let the read be atomic or volatile, or let a barrier separate the two";
    assert!(text(1, swap).ends_with(remedy), "{}", text(1, swap));
    let mixed = "setp.lt.u32 %p1, %t, 32;\n@%p1 red.global.add.u32 [%data+8], 1;\n@!%p1 ld.global.u32 %r1, [%data+8];\nret;";
    assert_eq!(
        text(1, mixed),
        "thread [32, 0, 0] of block [0, 0, 0] (PTX line 28): it reads element 2 of data, which thread \
         [31, 0, 0] of the same block writes (volatile or atomic) (PTX line 27), and nothing orders the two \
         accesses; let the read be atomic or volatile, or let a barrier separate the two"
    );
}

#[test]
fn a_race_has_what_each_thread_does() {
    let body = "setp.lt.u32 %p1, %t, 32;\n@%p1 ld.shared.u32 %r1, [area+12];\n@!%p1 st.shared.u32 [area+12], 1;\nret;";
    let fault = Launch { checks: RACES, ..Launch::new(1, 64, body) }.run().unwrap_err();
    let FaultKind::Race(race) = &fault.kind else { panic!("{fault}") };
    assert_eq!((race.access, race.is_strong), (Access::Write, false));
    assert_eq!((race.earlier.access, race.earlier.is_strong), (Access::Read, false));
    assert_eq!((fault.thread, race.earlier.thread), ([32, 0, 0], [31, 0, 0]));
    assert_eq!((fault.ptx_line, race.earlier.ptx_line), (28, 27));
}
