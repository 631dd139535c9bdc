//! Reads of bytes that nothing has written, and operands that are not wholly written.

use crate::launch::{Launch, WORDS};
use warpline_ptx::{Checks, FaultKind, NamedByte};

const INIT: Checks = Checks { races: false, init: true, sync: false };

fn launch(body: &str) -> Launch<'_> {
    Launch { checks: INIT, ..Launch::new(2, 64, body) }
}

fn is_undefined(fault: &FaultKind) -> bool {
    matches!(fault, FaultKind::Uninitialised { .. })
}

#[test]
fn a_read_of_shared_or_local_memory_that_nothing_wrote_is_reported() {
    for (racy, sound) in [
        // Each block starts with undefined shared memory, also one that runs behind another.
        (
            "setp.eq.u32 %p1, %b, 0;\n@%p1 st.shared.u32 [%word], 1;\nld.shared.u32 %r1, [%word];\nret;",
            "st.shared.u32 [%word], 1;\nld.shared.u32 %r1, [%word];\nret;",
        ),
        (
            "atom.shared.add.u32 %r1, [area], 1;\nret;",
            "st.shared.u32 [area], 0;\natom.shared.add.u32 %r1, [area], 1;\nret;",
        ),
        (
            "st.local.u32 [mine+4], 1;\nld.local.u32 %r1, [mine+8];\nret;",
            "st.local.u32 [mine+4], 1;\nld.local.u32 %r1, [mine+4];\nret;",
        ),
        (
            "cvta.shared.u64 %rd1, %word;\nst.u16 [%rd1], 1;\nld.u16 %h1, [%rd1+512];\nret;",
            "cvta.shared.u64 %rd1, %word;\nst.u16 [%rd1], 1;\nld.u16 %h1, [%rd1];\nret;",
        ),
        // Padding may be copied with what is around it, or byte by byte.
        (
            "ld.shared.v4.u32 {%r1, %r2, %r3, %r4}, [area];\nret;",
            "st.shared.u32 [area+4], 1;\nld.shared.v4.u32 {%r1, %r2, %r3, %r4}, [area];\nret;",
        ),
        (
            "st.local.u8 [mine], 1;\nld.local.u8 %h1, [mine+8];\nret;",
            "st.local.u8 [mine], 1;\nld.local.u8 %h1, [mine+3];\nret;",
        ),
        (
            "wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}, [area];\nret;",
            "mad.wide.u32 %rd1, %t, 8, %rd0;\nst.shared.v2.u32 [%rd1], {%t, %t};\nbar.sync 0;\n\
             wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}, [area];\nret;",
        ),
    ] {
        launch(racy).fails(is_undefined);
        launch(sound).passes();
        Launch { checks: Checks { init: false, ..INIT }, ..launch(racy) }.passes();
    }
}

#[test]
fn arguments_and_results_of_functions_are_written() {
    launch(
        "{\n.param .b32 a;\n.param .b32 b;\nst.param.b32 [a], %t;\nst.local.u32 [mine], 3;\n\
         ld.param.b32 %r1, [a];\nst.global.u32 [%own], %r1;\n}\nret;",
    )
    .passes();
}

#[test]
fn an_undefined_operand_is_written_before_it_is_read_and_wholly() {
    let undefined = |body| Launch { is_undefined: true, ..launch(body) };
    let all = "mov.u32 %r3, 0;\nNEXT:\nst.global.u32 [%own], 1;\nadd.u64 %own, %own, 512;\nadd.u32 %r3, %r3, 1;\n\
               setp.lt.u32 %p1, %r3, 4;\n@%p1 bra NEXT;\nret;";
    assert_eq!(WORDS, 4 * 128);
    undefined(all).passes();
    let partly = all.replace("%r3, 4;", "%r3, 3;");
    undefined(&partly).fails(|fault| {
        matches!(fault, FaultKind::NotWritten { region, element: 384, bytes: 512 } if region.name == "data")
    });
    launch(&partly).passes();
    let early = format!("ld.global.u32 %r1, [%own+64];\n{all}");
    undefined(&early).fails(|fault| {
        matches!(fault, FaultKind::Uninitialised { place: NamedByte::Region { .. }, bytes: 4 })
    });
    launch(&early).passes();
}

#[test]
fn the_reports_name_the_bytes() {
    let text = |launch: Launch<'_>| launch.run().unwrap_err().to_string();
    assert_eq!(
        text(launch("ld.shared.u32 %r1, [area+8];\nret;")),
        "main failed in thread [0, 0, 0] of block [0, 0, 0] (PTX line 26): it reads 4 bytes at byte 8 of the \
         shared variable area, which nothing has written yet; write them first, put a barrier between the write \
         and this read, or mend the index"
    );
    assert_eq!(
        text(Launch { is_undefined: true, ..launch("st.global.u32 [%own], 1;\nret;") }),
        "main failed: no thread has written element 128 of data, which is declared as overwritten: 1536 of its \
         2048 bytes are missing; write all of it, or declare data as read and written"
    );
}
