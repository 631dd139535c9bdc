//! The parts of a program that a launch uses: threads, a flag that stops it, and standard output.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use warpline_ptx::{Config, FaultKind, Host, Kernel, Memory, Module};

fn kernel(body: &str) -> Kernel {
    let text = format!(
        ".version 8.0 .target sm_70 .address_size 64
        .extern .func (.param .b32 r) vprintf(.param .b64 format, .param .b64 arguments);
        .global .align 1 .b8 format[4] = {{104, 105, 10, 0}};
        .visible .entry main() {{
            .reg .b64 %rd<2>; .reg .b32 %r<2>; .reg .pred %p;
            {body}
        }}"
    );
    let module = Module::new(text).unwrap();
    module.kernel("main").unwrap()
}

/// Prints "hi" and a line break.
const PRINT: &str = "cvta.global.u64 %rd0, format; mov.b64 %rd1, 0;
    { .param .b64 f; .param .b64 a; .param .b32 r;
      st.param.b64 [f], %rd0; st.param.b64 [a], %rd1; call (r), vprintf, (f, a); }";

#[test]
fn a_fault_has_what_the_kernel_printed_before() {
    let kernel = kernel(&format!("{PRINT} trap;"));
    // SAFETY: the kernel touches its own variable alone.
    let fault = unsafe { kernel.launch(&Config::linear(1, 1), &[], Memory::Regions(vec![])) }.unwrap_err();
    assert_eq!((&fault.kind, fault.printed.as_str()), (&FaultKind::Trap, "hi\n"));
}

#[test]
fn a_launch_runs_on_the_threads_of_its_host() {
    let kernel = kernel(PRINT);
    let asked = AtomicUsize::new(0);
    let run = |threads, work: &(dyn Fn() + Sync)| {
        asked.store(threads, Ordering::Relaxed);
        // One thread does the work of all.
        work();
    };
    let (host, config) = (Host { run: &run, stop: &AtomicBool::new(false) }, Config::linear(5, 1));
    // SAFETY: the kernel touches its own variable alone.
    let launch = |config| unsafe { kernel.launch_on(host, &config, &[], Memory::Regions(vec![])) };
    assert_eq!(launch(Config { threads: 3, ..config }).unwrap(), "hi\n".repeat(5));
    assert_eq!(asked.swap(0, Ordering::Relaxed), 3);
    launch(config).unwrap();
    assert_eq!(asked.into_inner(), 0, "one thread needs no host");
}

#[test]
fn a_flag_stops_a_kernel_that_never_ends() {
    let kernel = kernel("forever: bra forever;");
    let stop = AtomicBool::new(false);
    let run = |_, work: &(dyn Fn() + Sync)| {
        std::thread::scope(|scope| {
            scope.spawn(work);
            stop.store(true, Ordering::Relaxed);
        });
    };
    let config = Config { threads: 2, ..Config::linear(1, 32) };
    let host = Host { run: &run, stop: &stop };
    // SAFETY: the kernel touches no memory.
    let fault = unsafe { kernel.launch_on(host, &config, &[], Memory::Regions(vec![])) }.unwrap_err();
    assert_eq!(fault.kind, FaultKind::Stopped);
}

#[test]
fn blocks_that_wait_for_many_later_ones_end_without_a_cooperative_launch() {
    let module = Module::new(
        ".version 8.0 .target sm_70 .address_size 64
        .global .u32 arrived;
        .visible .entry main() {
            .reg .b32 %r<3>; .reg .pred %p;
            red.global.add.u32 [arrived], 1;
            mov.u32 %r0, %nctaid.x;
            wait: ld.volatile.global.u32 %r1, [arrived];
            setp.lt.u32 %p, %r1, %r0;
            @%p bra wait;
        }",
    );
    let kernel = module.unwrap().kernel("main").unwrap();
    // SAFETY: the kernel touches its own variable alone.
    unsafe { kernel.launch(&Config::linear(200, 1), &[], Memory::Regions(vec![])) }.unwrap();
}

#[test]
#[should_panic(expected = "main: block [32, 33, 1] has 1056 threads, and at most 1024 are allowed; use more")]
fn a_block_of_too_many_threads_is_refused() {
    let config = Config { block: [32, 33, 1], ..Config::linear(1, 1) };
    // SAFETY: the kernel touches no memory.
    _ = unsafe { kernel("").launch(&config, &[], Memory::Regions(vec![])) };
}
