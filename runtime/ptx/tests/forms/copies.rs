//! Copies that run later: `cp.async`, PTX ISA 9.7.9.25.

use crate::program::Program;

/// Copies 16 bytes of each lane, with `read` behind the size, and loads them after `wait`.
fn text(read: &str, wait: &str) -> String {
    format!(
        "\
.shared .align 16 .b8 buffer[512];
mul.lo.u32 %r1, %i, 16;
mov.u32 %r2, buffer;
add.u32 %r2, %r2, %r1;
mov.u64 %rd1, 0x7777777777777777;
st.shared.v2.u64 [%r2], {{%rd1, %rd1}};
mul.wide.u32 %rd2, %i, 16;
add.u64 %rd3, %rd2, %in;
setp.lt.u32 %p1, %i, 16;
cp.async.cg.shared.global [%r2], [%rd3], 16{read};
{wait}
ld.shared.v2.u64 {{%rd4, %rd5}}, [%r2];
add.u64 %rd3, %rd2, %out;
st.global.v2.u64 [%rd3], {{%rd4, %rd5}};
ret;"
    )
}

/// Copies 16 bytes from behind the first 16 of the input, with `read` behind the size.
fn text_behind(read: &str) -> String {
    format!(
        "\
.shared .align 16 .b8 buffer[16];
mov.u32 %r2, buffer;
cp.async.ca.shared.global [%r2], [%in+16], 16{read};
cp.async.wait_all;
ret;"
    )
}

pub(crate) fn texts() -> Vec<String> {
    vec![text("", "cp.async.commit_group;\ncp.async.wait_group 0;"), text_behind("")]
}

/// Returns the two words that each lane has then.
fn copied(read: &str, wait: &str) -> Vec<u64> {
    let input = (0..64).map(|word| 0x0101_0101_0101_0101 * word).collect();
    Program { input, len: 64, ..Program::new(text(read, wait)) }.run()
}

const OLD: u64 = 0x7777_7777_7777_7777;

#[test]
fn a_copy_runs_when_its_thread_waits_for_it() {
    let new: Vec<u64> = (0..64).map(|word| 0x0101_0101_0101_0101 * word).collect();
    for wait in [
        "cp.async.wait_all;",
        "cp.async.commit_group;\ncp.async.wait_group 0;",
        "cp.async.commit_group;\ncp.async.commit_group;\ncp.async.wait_group 1;",
    ] {
        assert_eq!(copied("", wait), new, "{wait}");
    }
    // Nothing, the copy's own group being kept, and a wait for committed groups alone.
    for wait in ["", "cp.async.commit_group;\ncp.async.wait_group 1;", "cp.async.wait_group 0;"] {
        assert_eq!(copied("", wait), [OLD; 64], "{wait}");
    }
}

#[test]
fn bytes_beyond_those_to_read_become_zero() {
    let word = |at: u64| 0x0101_0101_0101_0101 * at;
    let expect = |of: fn(u64) -> u64| (0..64).map(of).collect::<Vec<_>>();
    let wait = "cp.async.wait_all;";
    assert_eq!(copied(", 8", wait), expect(|at| if at % 2 == 0 { 0x0101_0101_0101_0101 * at } else { 0 }));
    assert_eq!(copied(", 3", wait), expect(|at| if at % 2 == 0 { 0x01_0101 * at } else { 0 }));
    assert_eq!(copied(", 0", wait), [0; 64]);
    // A predicate that is true stands for 0.
    let ignored: Vec<u64> = (0..64).map(|at| if at < 32 { 0 } else { word(at) }).collect();
    assert_eq!(copied(", %p1", wait), ignored);
}

#[test]
fn bytes_that_are_not_read_need_not_be_there() {
    // The memory ends where the copy begins to read.
    let run = |read| {
        let config = warpline_ptx::Config::linear(1, 1);
        Program { input: vec![0; 2], len: 0, config, ..Program::new(text_behind(read)) }.try_run()
    };
    run(", 0").expect("it reads nothing");
    let fault = run("").expect_err("it reads behind the memory").to_string();
    assert!(fault.contains("element 2 of memory, and it has 2 elements"), "{fault}");
}
