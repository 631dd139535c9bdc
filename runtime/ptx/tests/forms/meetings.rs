//! Exchanges whose lanes are at several instructions. PTX ISA 9.7.9.6 and 9.7.13: a lane waits for
//! those that run the instruction "with the same qualifiers and same membermask value".

use crate::program::Program;
use crate::warps::{Case, case, shuffles, votes};
use warpline_ptx::{Checks, Config, FaultKind};

/// Returns a text with other registers and labels.
fn renamed(body: &str) -> String {
    let mut found = String::new();
    let mut rest = body;
    while let Some(at) = rest.find('%') {
        let (before, register) = rest.split_at(at + 1);
        found.push_str(before);
        let name = register.trim_start_matches(|c: char| c.is_ascii_lowercase());
        let kind = &register[..register.len() - name.len()];
        let digits = name.len() - name.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let number = name[..digits].parse::<u32>().ok();
        let moved = match (kind, number) {
            ("p", Some(number)) => format!("{}", number + 8),
            ("r" | "rd", Some(number @ ..30)) => format!("{}", number + 30),
            _ => name[..digits].to_owned(),
        };
        found.push_str(kind);
        found.push_str(&moved);
        rest = &name[digits..];
    }
    found.push_str(rest);
    ["HERE", "LATER"].into_iter().fold(found, |text, label| text.replace(label, &format!("{label}_TOO")))
}

/// Returns the program in which the lanes that `set` makes `%p15` true for run a copy of the body.
fn in_two_copies((program, of): Case, set: &str) -> Case {
    let copy = renamed(&program.body);
    let body = format!("{set}\n@%p15 bra COPY;\n{}\nCOPY:\n{copy}", program.body);
    (Program { body, ..program }, of)
}

const SETS: [&str; 3] = [
    "and.b32 %r60, %i, 1;\nsetp.eq.u32 %p15, %r60, 0;",
    "setp.lt.u32 %p15, %i, 5;",
    "and.b32 %r60, %i, 20;\nsetp.eq.u32 %p15, %r60, 16;",
];

#[test]
fn members_at_two_copies_of_an_exchange_get_what_they_get_at_one() {
    for set in SETS {
        for case in shuffles().into_iter().chain(votes()) {
            // The result of activemask is that of one instruction.
            if !case.0.body.contains("activemask") {
                let (program, of) = in_two_copies(case, set);
                program.gives(of);
            }
        }
    }
}

#[test]
fn a_vote_of_a_predicate_and_of_a_negated_one_is_one_exchange() {
    let body = "setp.lt.u32 %p1, %i, 7;\nsetp.lt.u32 %p15, %i, 16;\n@%p15 bra COPY;\nvote.sync.ballot.b32 %r2, %p1, -1;\n\
                st.global.u32 [%at], %r2;\nret;\nCOPY:\nvote.sync.ballot.b32 %r3, !%p1, -1;\nst.global.u32 [%at], %r3;";
    let (program, of) = case(body, |_| 0xff80);
    program.gives(of);
}

/// The lanes below 8 shuffle in a function, those from 8 to 15 in a loop, the others in line.
#[test]
fn members_meet_in_calls_and_in_loops() {
    let body = "mov.u32 %r5, 0;\nmov.u32 %r6, 0;\nsetp.lt.u32 %p1, %i, 8;\nsetp.lt.u32 %p2, %i, 16;\n@%p1 bra CALL;\n@%p2 bra LOOP;\n\
        shfl.sync.bfly.b32 %r2, %i, 8, 31, -1;\nshfl.sync.bfly.b32 %r3, %r2, 16, 31, -1;\nbra END;\n\
        CALL:\n{\n.param .b32 value;\n.param .b32 result;\nst.param.b32 [value], %i;\ncall.uni (result), swapped, (value);\n\
        ld.param.b32 %r3, [result];\n}\nbra END;\n\
        LOOP:\nadd.u32 %r6, %r6, 8;\nselp.b32 %r7, %i, %r3, %p2;\nsetp.lt.u32 %p2, %i, 0;\nshfl.sync.bfly.b32 %r3, %r7, %r6, 31, -1;\n\
        setp.lt.u32 %p3, %r6, 16;\n@%p3 bra LOOP;\n\
        END:\nst.global.u32 [%at], %r3;";
    let (program, of) = case(body, |lane| lane ^ 24);
    let before = ".func (.param .b32 result) swapped(.param .b32 value) {\n.reg .b32 %a;\nld.param.b32 %a, [value];\n\
        shfl.sync.bfly.b32 %a, %a, 8, 31, -1;\nshfl.sync.bfly.b32 %a, %a, 16, 31, -1;\nst.param.b32 [result], %a;\nret;\n}";
    Program { before: before.to_owned(), ..program }.gives(of);
}

/// Lanes 0 to 7 and 8 to 15 wait at two places, while lane 31 first spins and then exits.
#[test]
fn members_that_exit_are_not_waited_for() {
    let body = "mov.u32 %r6, 0;\nst.global.u64 [%at], 1;\nsetp.ge.u32 %p1, %i, 16;\n@%p1 bra SPIN;\nsetp.lt.u32 %p2, %i, 8;\n@%p2 bra COPY;\n\
        vote.sync.ballot.b32 %r2, 1, -1;\nst.global.u32 [%at], %r2;\nret;\nCOPY:\nvote.sync.ballot.b32 %r3, 1, -1;\n\
        st.global.u32 [%at], %r3;\nret;\nSPIN:\nadd.u32 %r6, %r6, 1;\nsetp.lt.u32 %p3, %r6, 9000;\n@%p3 bra SPIN;";
    let (program, of) = case(body, |lane| if lane < 16 { 0xffff } else { 1 });
    program.gives(of);
}

/// Lanes that spin until the members have met do not keep these from it.
#[test]
fn members_meet_while_others_run() {
    let body = "setp.ge.u32 %p1, %i, 16;\n@%p1 bra SPIN;\nsetp.lt.u32 %p2, %i, 8;\n@%p2 bra COPY;\n\
        redux.sync.add.u32 %r2, 1, 0xffff;\nbra MET;\nCOPY:\nredux.sync.add.u32 %r2, 2, 0xffff;\n\
        MET:\nst.global.u32 [%at], %r2;\nst.volatile.global.u32 [%in], 1;\nret;\n\
        SPIN:\nld.volatile.global.u32 %r3, [%in];\nsetp.eq.u32 %p3, %r3, 0;\n@%p3 bra SPIN;\nst.global.u32 [%at], %r3;";
    let (program, of) = case(body, |lane| if lane < 16 { 24 } else { 1 });
    program.gives(of);
}

/// Members of several masks are at each of two places.
#[test]
fn each_mask_meets_on_its_own() {
    let body = "and.b32 %r3, %i, 1;\nshl.b32 %r3, 0x55555555, %r3;\nsetp.lt.u32 %p1, %i, 9;\n@%p1 bra COPY;\n\
        shfl.sync.bfly.b32 %r2, %i, 30, 31, %r3;\nbra END;\nCOPY:\nadd.u32 %r4, %i, 100;\nshfl.sync.bfly.b32 %r2, %r4, 30, 31, %r3;\n\
        END:\nst.global.u32 [%at], %r2;";
    let (program, of) = case(body, |lane| if lane ^ 30 < 9 { (lane ^ 30) + 100 } else { lane ^ 30 });
    program.gives(of);
}

#[test]
fn other_qualifiers_and_other_masks_do_not_meet() {
    for copy in [
        "shfl.sync.down.b32 %r2, %i, 1, 31, -1;",
        "vote.sync.any.pred %p2, 1, -1;",
        "bar.warp.sync -1;",
        "shfl.sync.bfly.b32 %r2, %i, 1, 31, 0x0fffffff;",
    ] {
        let body = format!(
            "setp.lt.u32 %p1, %i, 16;\n@%p1 bra COPY;\nshfl.sync.bfly.b32 %r2, %i, 1, 31, -1;\nret;\nCOPY:\n{copy}"
        );
        let (program, _) = case(&body, |_| 0);
        let fault = program.try_run().unwrap_err();
        assert!(matches!(fault.kind, FaultKind::Deadlock { for_lanes: 32, .. }), "{copy}: {fault}");
    }
}

/// A barrier of a warp at two places orders what its lanes write and read.
#[test]
fn accesses_around_a_meeting_do_not_race() {
    let body = |sync: &str| {
        format!(
            "mov.u64 %rd1, area;\nmad.wide.u32 %rd2, %i, 4, %rd1;\nst.shared.u32 [%rd2], %i;\nsetp.lt.u32 %p1, %i, 16;\n\
             @%p1 bra COPY;\n{sync}\nld.shared.u32 %r2, [%rd2+-64];\nst.global.u32 [%at], %r2;\nret;\n\
             COPY:\n{sync}\nld.shared.u32 %r2, [%rd2+64];\nst.global.u32 [%at], %r2;"
        )
    };
    let program = |sync| {
        let (program, of) = case(&body(sync), |lane| lane ^ 16);
        let config = Config { checks: Checks::ALL, ..program.config };
        let before = ".shared .align 4 .b8 area[128];".to_owned();
        (Program { before, config, ..program }, of)
    };
    let (sound, of) = program("bar.warp.sync -1;");
    sound.gives(of);
    let (racy, _) = program("");
    assert!(matches!(racy.try_run().unwrap_err().kind, FaultKind::Race { .. }));
}
