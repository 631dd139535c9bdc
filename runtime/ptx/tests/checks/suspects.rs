//! Loads whose value some paths drop: they are reported when a lane uses the value.

use crate::launch::Launch;
use warpline_ptx::{Access, Checks, FaultKind};

const RACES: Checks = Checks { races: true, init: false, sync: false };
const INIT: Checks = Checks { races: false, init: true, sync: false };

/// The body of a thread that reads the word of another lane into `%r1`, which races. `%p1` is true
/// and `%p2` false, `%r6` is 0, unless `behind` sets them.
fn racy(behind: &str) -> String {
    let body = format!(
        "\
setp.lt.u32 %p1, %t, 64;
setp.ge.u32 %p2, %t, 64;
mov.u32 %r6, %b;
st.shared.u32 [%word], %t;
ld.shared.u32 %r1, [%near];
{behind}
END:
ret;"
    );
    without_uses(&body)
}

/// Keeps `Launch` from adding a use of each value.
fn without_uses(body: &str) -> String {
    body.replace("u32 %r", "u32 \t%r").replace("u32 {", "u32 \t{").replace("u64 %r", "u64 \t%r")
}

/// The loads of two neighbouring lanes: each loads the words of both.
const PAIR: &str = "and.b32 %r2, %t, 62;\nmad.wide.u32 %rd1, %r2, 4, %rd0;\n\
     ld.shared.v2.u32 {%r7, %r8}, [%rd1];\nand.b32 %r2, %t, 1;\nsetp.eq.u32 %p3, %r2, 0;\n";

/// A shuffle of a register in lanes 0 to 6, and of another one in the others.
fn at_two_places(register: &str) -> String {
    format!(
        "setp.lt.u32 %p3, %t, 7;\n@%p3 bra COPY;\nshfl.sync.idx.b32 %r2, %t, 0, 31, -1;\nbra END;\n\
         COPY:\nshfl.sync.idx.b32 %r3, {register}, 0, 31, -1;\nEND:\n"
    )
}

/// A loop that loads the value of its next round. In the second round it races.
fn pipelined(rounds: u32) -> String {
    format!(
        "mov.u32 %r5, 0;\nld.shared.u32 %r1, [%word];\nLOOP:\nst.global.u32 [%own], %r1;\n\
         setp.eq.u32 %p3, %r5, 1;\nselp.b64 %rd1, %near, %word, %p3;\nld.shared.u32 %r1, [%rd1];\n\
         add.u32 %r5, %r5, 1;\nsetp.lt.u32 %p3, %r5, {rounds};\n@%p3 bra LOOP;"
    )
}

fn in_order(checks: Checks, body: &str) -> Option<FaultKind> {
    Launch { checks, ..Launch::new(1, 64, body) }.run().err().map(|fault| fault.kind)
}

#[test]
fn a_load_is_reported_when_its_value_is_used() {
    let uses = [
        "@%p1 st.global.u32 [%own], %r1;",
        "@!%p1 bra END;\nst.global.u32 [%own], %r1;",
        "selp.b32 %r2, %r1, 0, %p1;\nst.global.u32 [%own], %r2;",
        "selp.b32 %r2, 0, %r1, %p2;\nst.global.u32 [%own], %r2;",
        "slct.b32.s32 %r2, %r1, 0, %r6;\n@%p1 st.global.u32 [%own], %r2;",
        // By a result of arithmetic.
        "add.u32 %r2, %r1, 1;\nmul.lo.u32 %r2, %r2, 3;\nselp.b32 %r3, %r2, 0, %p1;\nst.global.u32 [%own], %r3;",
        "@!%p1 bra END;\nmov.b32 %r2, %r1;\ncvt.u64.u32 %rd1, %r2;\nneg.s64 %rd1, %rd1;\n@%p1 st.local.u64 [mine], %rd1;",
        "@!%p1 bra END;\nand.b32 %r2, %r1, 255;\nshl.b32 %r2, %r2, 3;\n@%p1 st.global.u32 [%own], %r2;",
        "mov.b64 %rd1, {%r1, %t};\n@%p1 st.local.u64 [mine], %rd1;",
        "@!%p1 bra END;\nadd.cc.u32 %r2, %r1, 1;\naddc.u32 %r3, %r1, 1;\n@%p1 st.global.u32 [%own], %r3;",
        // By a comparison.
        "setp.lt.u32 %p3, %r1, 77;\nand.pred %p3, %p3, %p1;\n@%p2 bra END;\nselp.u32 %r2, 1, 0, %p3;\n@%p1 st.global.u32 [%own], %r2;",
        "@!%p1 bra END;\nsetp.eq.u32 %p3, %r1, 7;\n@%p3 bra END;",
        "@!%p1 bra END;\nsetp.eq.u32 %p3, %r1, 7;\nand.pred %p3, %p3, %p1;\nselp.u32 %r2, 1, 0, %p3;\n@%p1 st.global.u32 [%own], %r2;",
        "@!%p1 bra END;\nsetp.eq.u32 %p3, %r1, 7;\nor.pred %p3, %p2, %p3;\n@%p3 bra END;",
        "@!%p1 bra END;\nsetp.ne.u32 %p3|%p4, %r1, 7;\n@%p4 st.global.u32 [%own], 1;",
        // It is an address.
        "@!%p1 bra END;\nand.b32 %r1, %r1, 31;\nmad.wide.u32 %rd1, %r1, 4, %data;\nst.global.u32 [%rd1], 5;",
        "@!%p1 bra END;\nand.b32 %r1, %r1, 31;\nmad.wide.u32 %rd1, %r1, 4, %data;\nld.global.u32 %r2, [%rd1];\n\
         st.local.u32 [mine], %r2;",
        // By other lanes, and by operations on memory.
        "@%p1 red.global.add.u32 [%data], %r1;",
        "@!%p1 bra END;\nshfl.sync.idx.b32 %r2, %r1, 0, 31, -1;\n@%p1 st.global.u32 [%own], %r2;",
        "@!%p1 bra END;\nsetp.eq.u32 %p3, %r1, 7;\nvote.sync.any.pred %p4, %p3, -1;",
        "@!%p1 bra END;\n{\n.param .b32 a;\nst.param.b32 [a], %r1;\n}",
        "@!%p1 bra END;\nmma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%r2, %r3}, {%r1}, {%t}, {%r6, %r6};",
        "@!%p1 bra END;\nand.b32 %r1, %r1, 31;\nmad.wide.u32 %rd1, %r1, 4, %data;\n\
         cp.async.ca.shared.global [area+512], [%rd1], 4;",
        // The element that another lane writes.
        &format!("{PAIR}selp.b32 %r3, %r8, %r7, %p3;\n@%p1 st.global.u32 [%own], %r3;"),
        &pipelined(3),
    ];
    for behind in uses {
        let body = racy(behind);
        let Some(FaultKind::Race(race)) = in_order(RACES, &body) else { panic!("no report\n{body}") };
        assert_eq!((race.access, race.earlier.access), (Access::Read, Access::Write), "{body}");
        assert_eq!(in_order(Checks { races: false, ..RACES }, &body), None);
    }
}

#[test]
fn a_load_is_not_reported_if_its_value_is_dropped() {
    let wide = PAIR.replace("v2.u32 {%r7, %r8}, [%rd1];", "u64 %rd2, [%rd1];\nmov.b64 {%r7, %r8}, %rd2;");
    let drops = [
        "@%p2 st.global.u32 [%own], %r1;",
        "@!%p2 bra END;\nst.global.u32 [%own], %r1;",
        "selp.b32 %r2, %r1, 0, %p2;\nst.global.u32 [%own], %r2;",
        "slct.b32.s32 %r2, 0, %r1, %r6;\n@%p1 st.global.u32 [%own], %r2;",
        "add.u32 %r2, %r1, 1;\nmul.lo.u32 %r2, %r2, 3;\nselp.b32 %r3, %r2, 0, %p2;\nst.global.u32 [%own], %r3;",
        // Overwritten.
        "@!%p1 bra GO;\nmov.u32 %r1, 0;\nGO:\n@%p1 st.global.u32 [%own], %r1;",
        "@!%p1 bra GO;\nld.shared.u32 %r1, [%word];\nGO:\n@%p1 st.global.u32 [%own], %r1;",
        "@!%p1 bra GO;\nshfl.sync.idx.b32 %r1, %t, 0, 31, -1;\nGO:\n@%p1 st.global.u32 [%own], %r1;",
        "@!%p1 bra GO;\natom.global.add.u32 %r1, [%data+1024], 1;\nGO:\n@%p1 st.global.u32 [%own], %r1;",
        "@!%p1 bra GO;\nmma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%r1, %r2}, {%t}, {%t}, {%r6, %r6};\nGO:\n\
         @%p1 st.global.u32 [%own], %r1;",
        // Masked.
        "setp.lt.u32 %p3, %r1, 77;\nand.pred %p3, %p3, %p2;\n@%p2 bra END;\nselp.u32 %r2, 1, 0, %p3;\n@%p1 st.global.u32 [%own], %r2;",
        "@!%p1 bra END;\nand.b32 %r2, %r1, %r6;\n@%p1 st.global.u32 [%own], %r2;",
        "@!%p1 bra END;\nmul.lo.u32 %r2, %r6, %r1;\n@%p1 st.global.u32 [%own], %r2;",
        "@!%p1 bra END;\nmad.lo.u32 %r2, %r1, %r6, %t;\n@%p1 st.global.u32 [%own], %r2;",
        "@!%p1 bra END;\nsetp.eq.u32 %p3, %r1, 7;\nand.pred %p3, %p3, %p2;\n@%p3 bra END;",
        "@!%p1 bra END;\nsetp.eq.u32 %p3, %r1, 7;\nor.pred %p3, %p1, %p3;\n@%p3 bra END;",
        "@!%p1 bra END;\nsetp.eq.u32 %p3, %r1, 7;\nsetp.lt.and.u32 %p4, %t, 0, %p3;\n@%p4 bra END;",
        "setp.lt.u32 %p3, %r1, 77;\nor.pred %p3, %p1, %p3;\n@%p3 bra END;\nst.global.u32 [%own], 1;",
        "add.u32 %r4, %t, 1;\nor.b32 %r4, %r4, %r1;\nsetp.eq.u32 %p3, %r4, 0;\n@%p3 bra END;\nst.global.u32 [%own], 1;",
        "add.u32 %r4, %r6, 1;\nand.b32 %r4, %r4, %r1;\nand.b32 %r4, %r4, 8;\nsetp.ne.u32 %p3, %r4, 0;\n@%p3 bra END;\n\
         st.global.u32 [%own], 1;",
        // Of another lane.
        "and.b32 %r7, %t, 31;\nsetp.eq.u32 %p3, %r7, 0;\nselp.u32 %r1, 9, %r1, %p3;\nshfl.sync.idx.b32 %r2, %r1, 0, 31, -1;\n\
         st.global.u32 [%own], %r2;",
        // The other half of a pair.
        "mov.b64 %rd1, {%r1, %t};\nmov.b64 {%r2, %r3}, %rd1;\n@%p1 st.global.u32 [%own], %r3;",
        "@!%p1 bra END;\nshl.b32 %r2, %t, 16;\nor.b32 %r2, %r2, %r1;\nshr.u32 %r3, %r2, 16;\n@%p1 st.global.u32 [%own], %r3;",
        "@!%p1 bra END;\nprmt.b32 %r2, %r1, %t, 0x5410;\nshr.u32 %r3, %r2, 16;\n@%p1 st.global.u32 [%own], %r3;",
        &format!("{}@%p2 st.global.u32 [%own], %r1;", at_two_places("%r6").replace("END", "BEHIND")),
        // The element of this lane.
        &format!("{PAIR}selp.b32 %r3, %r7, %r8, %p3;\n@%p1 st.global.u32 [%own], %r3;"),
        &format!("{wide}selp.b32 %r3, %r7, %r8, %p3;\n@%p1 st.global.u32 [%own], %r3;"),
        &pipelined(2),
    ];
    for behind in drops {
        Launch { checks: RACES, ..Launch::new(1, 64, &racy(behind)) }.passes();
    }
}

#[test]
fn a_report_is_about_the_load() {
    let behind = "bar.warp.sync -1;\nsetp.eq.u32 %p3, %t, 9;\n@!%p3 bra END;\nxor.b32 %r2, %r1, 3;\nst.global.u32 [%own], %r2;";
    let body = racy(behind);
    let fault = Launch { checks: RACES, ..Launch::new(1, 64, &body) }.run().unwrap_err();
    let FaultKind::Race(race) = &fault.kind else { panic!("{fault}") };
    assert_eq!((race.access, race.earlier.access), (Access::Read, Access::Write));
    assert_eq!((fault.thread, race.earlier.thread), ([9, 0, 0], [12, 0, 0]));
    assert_eq!((fault.ptx_line, race.earlier.ptx_line), (30, 29));
    let text = fault.to_string();
    let what =
        "it reads byte 48 of the shared variable area, which thread [12, 0, 0] of the same warp writes";
    assert!(text.contains(what), "{text}");
}

#[test]
fn undefined_bytes_are_reported_when_they_are_used() {
    for load in ["ld.shared.u32 %r1, [area+8];", "ld.local.u32 %r1, [mine+8];"] {
        let body = |guard: &str| {
            let head = "setp.lt.u32 %p1, %t, 64;\nsetp.ge.u32 %p2, %t, 64;";
            without_uses(&format!(
                "{head}\n{load}\nadd.u32 %r2, %r1, 1;\nselp.b32 %r2, %r2, 0, {guard};\nst.global.u32 [%own], %r2;\nret;"
            ))
        };
        let fault = in_order(INIT, &body("%p1"));
        assert!(matches!(fault, Some(FaultKind::Uninitialised { bytes: 4, .. })), "{fault:?}");
        Launch { checks: INIT, ..Launch::new(1, 64, &body("%p2")) }.passes();
    }
}

#[test]
fn a_reversal_in_place_needs_a_barrier_although_its_store_is_guarded() {
    let reversal = |barrier: &str| {
        without_uses(&format!(
            "sub.u32 %r1, 63, %t;\nmad.wide.u32 %rd1, %r1, 4, %data;\nld.global.u32 %r2, [%rd1];\n{barrier}\n\
             setp.lt.u32 %p1, %t, 60;\n@%p1 st.global.u32 [%own], %r2;\nret;"
        ))
    };
    let fault = in_order(RACES, &reversal(""));
    assert!(matches!(fault, Some(FaultKind::Race(_))), "{fault:?}");
    Launch { checks: RACES, ..Launch::new(1, 64, &reversal("bar.sync 0;")) }.passes();
}

#[test]
fn a_jacobi_step_needs_its_last_barrier_although_the_border_keeps_its_values() {
    let steps = |barrier: &str| {
        without_uses(&format!(
            "\
st.shared.u32 [%word], %t;
bar.sync 0;
setp.gt.u32 %p1, %t, 0;
setp.lt.u32 %p2, %t, 63;
and.pred %p1, %p1, %p2;
mov.u32 %r5, 0;
LOOP:
ld.shared.u32 %r1, [%word];
mov.u32 %r4, %r1;
@!%p1 bra KEEP;
ld.shared.u32 %r2, [%word+-4];
ld.shared.u32 %r3, [%word+4];
add.u32 %r2, %r2, %r3;
mov.u32 %r4, %r2;
KEEP:
selp.b32 %r4, %r4, %r1, %p1;
bar.sync 0;
st.shared.u32 [%word], %r4;
{barrier}
add.u32 %r5, %r5, 1;
setp.lt.u32 %p3, %r5, 4;
@%p3 bra LOOP;
ret;"
        ))
    };
    let fault = in_order(RACES, &steps(""));
    assert!(matches!(fault, Some(FaultKind::Race(_))), "{fault:?}");
    Launch { checks: RACES, ..Launch::new(1, 64, &steps("bar.sync 0;")) }.passes();
}

#[test]
fn a_suspicion_ends_with_its_block() {
    // The second block reads a register that it has not written.
    let stale = without_uses(
        "setp.eq.u32 %p1, %b, 1;\nst.shared.u32 [%word], %t;\n@%p1 bra OTHER;\nld.shared.u32 %r1, [%near];\n\
         OTHER:\n@%p1 st.global.u32 [%own], %r1;\nret;",
    );
    Launch { checks: RACES, ..Launch::new(2, 64, &stale) }.passes();
}
