//! Faults of kernels that run their PTX on a CPU device.

use crate::support::software::in_child;
use crate::support::{refusal, says, streams};
use warpline::prelude::*;

warpline::kernel! {
    /// Doubles the element of each thread, whether it exists or not.
    unsafe fn double(x: &mut [f32]) { ptx: PTX }

    /// Writes to an operand that it promises to read alone.
    unsafe fn overwrites(x: &[f32]) { ptx: PTX }

    /// Prints "hi".
    unsafe fn greets() { ptx: PTX }

    /// Prints "hi" and traps.
    unsafe fn greets_and_traps() { ptx: PTX }

    /// Never ends.
    unsafe fn spins() { ptx: PTX }

    unsafe fn in_an_image(x: &mut [f32]) { image: b"\x7fELF" }
}

const PTX: &str = include_str!("device_code.ptx");

/// Returns the fault of a launch, and the line that launched it.
fn fault(stream: &Stream, call: warpline::kernel::KernelCall<'_>, config: LaunchConfig) -> (Error, u32) {
    let line = line!() + 1;
    let error = refusal(stream.launch(call, config));
    assert_eq!(error.kind(), ErrorKind::Fault);
    (error, line)
}

#[test]
fn an_access_beyond_an_operand_names_the_element_the_thread_and_both_lines() {
    let (_runtime, device, [stream]) = streams(["work"]);
    let x = stream.alloc::<f32>(40).unwrap();
    drop(stream.fill(&x, 1.0));
    let (error, line) = fault(&stream, double(&x), LaunchConfig::linear(2, 32));
    let expected = format!(
        "double failed on stream \"work\" at ticket 2 (tests/errors/device_code.rs:{line}): double failed in thread \
         [8, 0, 0] of block [1, 0, 0] (PTX line 15): it reads 4 bytes at ADDRESS, which is element 40 of x, and it has 40 \
         elements; mend the index; cpu:0 accepts no more work"
    );
    let text = error.to_string();
    let (before, after) = expected.split_once("ADDRESS").unwrap();
    assert!(text.starts_with(before) && text.ends_with(after), "{text}");
    assert_eq!(device.fault().unwrap().to_string(), text);
}

#[test]
fn a_write_to_an_operand_that_is_read_alone_is_a_fault() {
    let (_runtime, _, [stream]) = streams(["work"]);
    let x = stream.alloc::<f32>(4).unwrap();
    drop(stream.fill(&x, 1.0));
    let (error, _) = fault(&stream, overwrites(&x), LaunchConfig::linear(1, 1));
    let text = "it writes 4 bytes at element 0 of x, which is declared as read only; declare x as written";
    says(&error, ErrorKind::Fault, &[text]);
}

#[test]
fn a_launch_in_a_graph_that_faults_is_named_with_its_own_line() {
    let (_runtime, _, [stream]) = streams(["work"]);
    let x = stream.alloc::<f32>(4).unwrap();
    drop(stream.fill(&x, 1.0));
    let line = line!() + 1;
    let (graph, ()) = stream.capture(|s| drop(s.launch(double(&x), LaunchConfig::linear(1, 5)))).unwrap();
    let error = refusal(graph.launch(&stream));
    let step = format!("double (tests/errors/device_code.rs:{line})");
    says(
        &error,
        ErrorKind::Fault,
        &["graph", &step, "in it failed: double failed in thread [4, 0, 0]", "element 4 of x"],
    );
}

#[test]
fn printed_text_goes_to_standard_output_before_a_trap_too() {
    let said = in_child(&[], || {
        let (_runtime, _, [stream]) = streams(["work"]);
        stream.launch(greets(), LaunchConfig::linear(1, 2)).blocking_wait().unwrap();
        let (error, _) = fault(&stream, greets_and_traps(), LaunchConfig::linear(1, 1));
        says(&error, ErrorKind::Fault, &["(PTX line", "): it executed trap; cpu:0"]);
    });
    assert_eq!(said.matches("hi\n").count(), 3, "{said}");
}

#[test]
fn a_device_that_fails_stops_a_kernel_that_never_ends() {
    let (_runtime, device, [stream, other]) = streams(["work", "other"]);
    let spinning = stream.launch(spins(), LaunchConfig::linear(1, 32));
    let x = other.alloc::<f32>(1).unwrap();
    drop(other.fill(&x, 1.0));
    let (error, _) = fault(&other, double(&x), LaunchConfig::linear(1, 2));
    says(&error, ErrorKind::Fault, &["element 1 of x"]);
    assert_eq!(refusal(spinning).to_string(), error.to_string());
    assert_eq!(device.fault().unwrap().to_string(), error.to_string());
}

#[test]
fn an_image_without_a_cpu_form_is_refused_on_a_cpu_device() {
    let (_runtime, device, [stream]) = streams(["work"]);
    let x = stream.alloc::<f32>(4).unwrap();
    let error = refusal(stream.launch(in_an_image(&x), LaunchConfig::linear(1, 1)));
    let text = "in_an_image cannot be loaded: its device code is an image, which only a GPU runs, and it has no CPU form; \
                give the kernel cpu or ptx";
    says(&error, ErrorKind::Driver, &["in_an_image on stream \"work\"", text]);
    assert!(device.fault().is_none());
    x.accept_contents();
}
