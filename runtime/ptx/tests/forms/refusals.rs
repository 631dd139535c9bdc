//! Instructions that are not supported are refused when the kernel is prepared, with their name and
//! line.

use crate::program::Program;
use warpline_ptx::Module;

/// Instructions that later GPUs have, or whose state this executor lacks, and at the end some that
/// ptxas refuses.
const REFUSED: [&str; 55] = [
    "wgmma.fence.sync.aligned",
    "wgmma.commit_group.sync.aligned",
    "wgmma.wait_group.sync.aligned 0",
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0, %f1, %f2, %f3}, %rd0, %rd1, %p0, 1, 1, 0, 0",
    "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%rd0], 32",
    "tcgen05.mma.cta_group::1.kind::f16 [%r0], %rd0, %rd1, %r1, %p0",
    "tcgen05.ld.sync.aligned.16x64b.x1.b32 {%r0}, [%r1]",
    "tcgen05.wait::ld.sync.aligned",
    "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%f0}, {%r0, %r1}, {%r2, %r3}, {%f1}",
    "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%f0}, {%r0}, {%r1}, {%f1}",
    "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0}, {%r0}, {%r1}, {%f1}, %r2, 0",
    "wmma.load.a.sync.aligned.row.m8n8k128.global.b1 {%r0}, [%rd0]",
    "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r0, %r1}, [%rd0]",
    "cp.async.mbarrier.arrive.shared.b64 [%rd0]",
    "movmatrix.sync.aligned.m8n8.trans.b16 %r0, %r1",
    "tex.1d.v4.f32.s32 {%f0, %f1, %f2, %f3}, [%rd0, {%r0}]",
    "tld4.r.2d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [%rd0, {%f4, %f5}]",
    "suld.b.1d.b32.trap %r0, [%rd0, {%r1}]",
    "sust.b.1d.b32.trap [%rd0, {%r1}], %r0",
    "txq.width.b32 %r0, [%rd0]",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%rd0], [%rd1], 16, [%rd2]",
    "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%rd0], [%rd1, {%r0}], [%rd2]",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd0], [%rd1], 16",
    "multimem.ld_reduce.global.add.u32 %r0, [%rd0]",
    "multimem.st.global.u32 [%rd0], %r0",
    "multimem.red.global.add.u32 [%rd0], %r0",
    "mbarrier.init.shared.b64 [%rd0], 1",
    "mbarrier.arrive.shared.b64 %rd0, [%rd1]",
    "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%rd0], %r0, [%rd1]",
    "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%rd0], %r0, [%rd1]",
    "st.bulk.shared::cta [%rd0], 16, 0",
    "barrier.cluster.sync",
    "tensormap.replace.tile.rank.global.b1024.b32 [%rd0], 1",
    "alloca.u64 %rd0, 16",
    "vadd.s32.s32.s32 %r0, %r1, %r2",
    "vadd4.s32.s32.s32 %r0, %r1, %r2, %r3",
    "istypep.texref %p0, %rd0",
    "add.f32x2 %rd0, %rd1, %rd2",
    "add.sat.u16x2 %r0, %r1, %r2",
    "vabsdiff4.s32.s32.s32 %r0, %r1, %r2, %r3",
    "add.rn.f32.f16 %f0, %h1, %f2",
    "fma.rn.f32.bf16 %f0, %h1, %h2, %f2",
    "fma.rn.oob.f16 %h0, %h1, %h2, %h3",
    "cvt.rn.satfinite.e4m3x2.f32 %h0, %f0, %f1",
    "cvt.rs.f16x2.f32 %r0, %f0, %f1, %r1",
    "setp.eq.f16x2 %p0|%p1, %r0, %r1",
    "lop3.or.b32 %r0|%p0, %r1, %r2, %r3, 0x80, %p1",
    "redux.sync.min.f32 %f0, %f1, -1",
    "atom.global.add.v2.f32 {%f0, %f1}, [%rd0], {%f2, %f3}",
    "setp.eq.f16 %p0|%p1, %h0, %h1",
    "cvt.sat.u64.u8 %rd0, %h0",
    "cvt.sat.s32.u16 %r0, %h0",
    "cvt.sat.f32.bf16 %f0, %h0",
    "cvt.rn.bf16.u8 %h0, %h1",
    "mov.u32 %r0, %is_explicit_cluster",
];

#[test]
fn unsupported_instructions_are_refused_by_name_and_line() {
    let mut problems = Vec::new();
    for instruction in REFUSED {
        let text = Program::new(format!("{instruction};\nret;")).text();
        let line = text.lines().position(|line| line.starts_with(instruction)).expect("it is there") + 1;
        let opcode = instruction.split(' ').next().unwrap_or_default();
        match Module::new(text).and_then(|module| module.kernel("main")) {
            Ok(_) => problems.push(format!("{instruction}: it is accepted")),
            Err(error) => {
                let error = error.to_string();
                let has_line = error.contains(&format!("line {line}:"));
                if !has_line || !error.contains(opcode) {
                    problems.push(format!("{instruction}, line {line}: {error}"));
                }
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn numbers_that_no_barrier_has_are_refused() {
    let warps = |n: u32| {
        format!(
            "it names {n} threads at a barrier, which counts whole warps of 32; name a multiple of 32, from 32 on"
        )
    };
    let id = "it names barrier 16, and a block has barriers 0 to 15; name one of these".to_owned();
    for (instruction, problem) in [
        ("bar.sync 0, 48", warps(48)),
        ("bar.sync 0, 0", warps(0)),
        ("bar.cta.arrive 1, 33", warps(33)),
        ("barrier.sync.aligned 0, 1", warps(1)),
        ("barrier.cta.arrive %r0, 16", warps(16)),
        ("bar.red.popc.u32 %r1, 0, 40, %p0", warps(40)),
        ("barrier.red.and.pred %p1, 2, 31, !%p0", warps(31)),
        ("bar.sync 16", id.clone()),
        ("bar.red.or.pred %p1, 16, %p0", id),
    ] {
        let text = Program::new(format!("{instruction};\nret;")).text();
        let line = text.lines().position(|line| line.starts_with(instruction)).expect("it is there") + 1;
        let error = Module::new(text).unwrap().kernel("main").map(drop).unwrap_err().to_string();
        let opcode = instruction.split(' ').next().unwrap_or_default();
        assert_eq!(error, format!("line {line}: {opcode}: {problem}"));
    }
    for instruction in ["bar.sync 15, 32", "bar.red.popc.u32 %r1, 0, 64, %p0", "bar.red.popc.u32 %r1, 0, %p0"]
    {
        Module::new(Program::new(format!("{instruction};\nret;")).text()).unwrap().kernel("main").unwrap();
    }
}

#[test]
fn a_kernel_that_does_not_exist_has_no_line() {
    let error = Module::new(Program::new("ret;").text()).unwrap().kernel("mian").map(drop).unwrap_err();
    assert_eq!(error.to_string(), "there is no kernel mian; the module has main");
}
