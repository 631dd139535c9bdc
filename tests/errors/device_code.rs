//! Faults of kernels that run their PTX on a CPU device.

use crate::support::software::in_child;
use crate::support::{refusal, says, streams};
use warpline::kernel::KernelCall;
use warpline::prelude::*;
use warpline::{KernelChecks, KernelForm, RuntimeBuilder};

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

    /// Doubles each element, and more by its CPU form.
    unsafe fn doubles_nearly(x: &mut [f32]) {
        tolerance: 1e-3,
        ptx: DOUBLES_NEARLY,
        cpu: |x| x.iter_mut().enumerate().for_each(|(i, x)| *x *= 2.0 + i as f32 / 1000.0),
    }

    /// Adds to a number, which is also the sum.
    in_place unsafe fn add_to(x: &[u32], y: &mut [u32]) {
        ptx: ADD_TO,
        cpu: |x, y| y[0].set(x[0].get() + y[0].get()),
    }

    /// Writes half of its operand.
    unsafe fn half(write x: &mut [u32]) { ptx: HALF }

    /// Doubles an element of `x`, whether it exists or not, and leaves `y` as it is.
    unsafe fn touch(element: u32, x: &mut [f32], y: &mut [f32]) { ptx: TOUCH }

    /// Writes to the element of each block the number of the other block of its cluster.
    unsafe fn in_pairs(write x: &mut [u32]) { ptx: IN_PAIRS }

    /// Reads the number behind a pointer.
    unsafe fn follow(from: u64, write to: &mut [u32]) { ptx: FOLLOW }

    /// Adds one to the number behind a pointer, and by its CPU form as much as `n` says.
    unsafe fn adds_behind(to: u64, n: u32) {
        ptx: ADDS_BEHIND,
        cpu: |to, n| {
            let number = std::ptr::with_exposed_provenance_mut::<u32>(to as usize);
            // SAFETY: the caller passes the address of a number and declares it by `writes`.
            unsafe { *number += n };
        },
    }
}

/// Returns a PTX text with one entry, whose parameters and whose body these are.
macro_rules! entry {
    ($name:literal, $params:literal, $body:literal) => {
        concat!(
            ".version 8.0\n.target sm_70\n.address_size 64\n.visible .entry ",
            $name,
            "(",
            $params,
            ")\n{\n",
            ".reg .b32 %r<4>; .reg .f32 %f; .reg .b64 %rd<3>;\n",
            $body,
            "\nret;\n}\n"
        )
    };
}

const DOUBLES_NEARLY: &str = entry!(
    "doubles_nearly",
    ".param .u64 x",
    "ld.param.u64 %rd0, [x]; mov.u32 %r0, %tid.x; mul.wide.u32 %rd1, %r0, 4; add.u64 %rd0, %rd0, %rd1;
    ld.global.f32 %f, [%rd0]; add.f32 %f, %f, %f; st.global.f32 [%rd0], %f;"
);
const ADD_TO: &str = entry!(
    "add_to",
    ".param .u64 x, .param .u64 y",
    "ld.param.u64 %rd0, [x]; ld.param.u64 %rd1, [y]; ld.global.u32 %r0, [%rd0]; ld.global.u32 %r1, [%rd1];
    add.u32 %r1, %r0, %r1; st.global.u32 [%rd1], %r1;"
);
const TOUCH: &str = entry!(
    "touch",
    ".param .u32 element, .param .u64 x, .param .u64 y",
    "ld.param.u64 %rd0, [x]; ld.param.u32 %r0, [element]; mul.wide.u32 %rd1, %r0, 4; add.u64 %rd0, %rd0, %rd1;
    ld.global.f32 %f, [%rd0]; add.f32 %f, %f, %f; st.global.f32 [%rd0], %f;"
);
const HALF: &str = entry!("half", ".param .u64 x", "ld.param.u64 %rd0, [x]; st.global.u32 [%rd0], 7;");
const FOLLOW: &str = entry!(
    "follow",
    ".param .u64 from, .param .u64 to",
    "ld.param.u64 %rd0, [from]; ld.param.u64 %rd1, [to]; ld.global.u32 %r0, [%rd0]; st.global.u32 [%rd1], %r0;"
);
const ADDS_BEHIND: &str = entry!(
    "adds_behind",
    ".param .u64 to, .param .u32 n",
    "ld.param.u64 %rd0, [to]; ld.global.u32 %r0, [%rd0]; add.u32 %r0, %r0, 1; st.global.u32 [%rd0], %r0;"
);

const IN_PAIRS: &str = include_str!("../support/in_pairs.ptx");
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

#[test]
fn clusters_that_do_not_fit_the_kernel_are_refused() {
    let (_runtime, device, [stream]) = streams(["work"]);
    let x = stream.alloc::<u32>(8).unwrap();
    stream.launch(in_pairs(&x), LaunchConfig::linear(8, 1)).blocking_wait().unwrap();
    assert_eq!(stream.read(&x).blocking_wait().unwrap(), [1, 0, 3, 2, 5, 4, 7, 6]);
    let pairs = LaunchConfig::linear(8, 1).with_cluster([2, 1, 1]);
    stream.launch(in_pairs(&x), pairs).blocking_wait().unwrap();
    for (config, text) in [
        (
            LaunchConfig::linear(8, 1).with_cluster([4, 1, 1]),
            "in_pairs is for clusters of [2, 1, 1] blocks, and the launch has clusters of [4, 1, 1]; leave them out, or \
             change the code",
        ),
        (
            LaunchConfig::linear(7, 1),
            "in_pairs: clusters of [2, 1, 1] blocks do not divide a grid of [7, 1, 1]; use a grid that is a multiple of \
             them in each direction",
        ),
    ] {
        let error = refusal(stream.launch(in_pairs(&x), config));
        says(&error, ErrorKind::Driver, &["in_pairs on stream \"work\"", text]);
        x.accept_contents();
    }
    assert!(device.fault().is_none());
}

/// Returns a stream of a CPU device that runs this form of kernels.
fn stream_of(form: KernelForm, checks: KernelChecks) -> (Runtime, Stream) {
    let runtime = Runtime::builder().kernel_form(form).kernel_checks(checks).build().unwrap();
    let stream = runtime.device(DeviceId::Cpu(0)).unwrap().stream().label("work").build().unwrap();
    (runtime, stream)
}

#[test]
fn each_form_runs_the_code_that_it_names() {
    for (form, expected) in
        [(KernelForm::Twin, [2.0, 4.002]), (KernelForm::Ptx, [2.0, 4.0]), (KernelForm::Both, [2.0, 4.002])]
    {
        let (_runtime, stream) = stream_of(form, KernelChecks::default());
        let x = stream.alloc::<f32>(2).unwrap();
        drop(stream.write(&x, &[1.0, 2.0]));
        stream.launch(doubles_nearly(&x), LaunchConfig::linear(1, 2)).blocking_wait().unwrap();
        assert_eq!(stream.read(&x).blocking_wait().unwrap(), expected, "{form:?}");
    }
}

#[test]
fn forms_that_differ_by_more_than_the_tolerance_fail_with_the_first_difference() {
    let (_runtime, stream) = stream_of(KernelForm::Both, KernelChecks::default());
    let x = stream.alloc::<f32>(4).unwrap();
    drop(stream.fill(&x, 1.0));
    let (error, _) = fault(&stream, doubles_nearly(&x), LaunchConfig::linear(1, 4));
    let text = "the CPU form and the device code of doubles_nearly differ: element 3 of x is 2.003 by the CPU form and 2 by \
                the device code, and it may differ by ";
    says(
        &error,
        ErrorKind::Fault,
        &["(tests/errors/device_code.rs:", text, ": 1e-3, the kernel's tolerance, of 2.00"],
    );
}

#[test]
fn both_forms_of_a_kernel_in_place_start_with_the_same_memory() {
    let (_runtime, stream) = stream_of(KernelForm::Both, KernelChecks::default());
    let x = stream.alloc::<u32>(1).unwrap();
    drop(stream.fill(&x, 21));
    stream.launch(add_to(&x, &x), LaunchConfig::linear(1, 1)).blocking_wait().unwrap();
    assert_eq!(stream.read(&x).blocking_wait().unwrap(), [42]);
}

#[test]
fn both_forms_are_compared_by_what_they_write_through_pointers() {
    let (_runtime, stream) = stream_of(KernelForm::Both, KernelChecks::default());
    let x = stream.alloc::<u32>(1).unwrap();
    drop(stream.fill(&x, 5));
    let adds = |n| adds_behind(x.device_ptr().0, n).writes(&x);
    stream.launch(adds(1), LaunchConfig::linear(1, 1)).blocking_wait().unwrap();
    assert_eq!(stream.read(&x).blocking_wait().unwrap(), [6]);
    let (error, _) = fault(&stream, adds(2), LaunchConfig::linear(1, 1));
    let text =
        "adds_behind differ: element 0 of buffer 0 of writes is 8 by the CPU form and 7 by the device code";
    says(&error, ErrorKind::Fault, &[text]);
}

#[test]
fn memory_behind_pointers_is_declared() {
    let (_runtime, _, [stream]) = streams(["work"]);
    let (from, to) = (stream.alloc::<u32>(1).unwrap(), stream.alloc::<u32>(1).unwrap());
    drop(stream.fill(&from, 7));
    let address = from.device_ptr().0;
    let call = follow(address, &to).reads(&from);
    stream.launch(call, LaunchConfig::linear(1, 1)).blocking_wait().unwrap();
    assert_eq!(stream.read(&to).blocking_wait().unwrap(), [7]);
    let beyond = follow(address + 4, &to).reads(&from);
    let (error, _) = fault(&stream, beyond, LaunchConfig::linear(1, 1));
    says(&error, ErrorKind::Fault, &["which is element 1 of buffer 0 of reads, and it has 1 element"]);
}

#[test]
fn the_remedies_for_memory_behind_pointers_are_those_of_a_call() {
    type Declare = for<'a> fn(KernelCall<'a>, &'a Buffer<u32>) -> KernelCall<'a>;
    let remedy = |declare: Declare, from: Option<u64>| {
        let (_runtime, stream) = stream_of(KernelForm::Ptx, KernelChecks::default());
        let (x, y) = (stream.alloc::<u32>(1).unwrap(), stream.alloc::<u32>(1).unwrap());
        drop(stream.fill(&x, 7));
        drop(stream.fill(&y, 7));
        let call = match from {
            Some(from) => follow(x.device_ptr().0.wrapping_add(from), &y),
            None => adds_behind(x.device_ptr().0, 1),
        };
        let (error, _) = fault(&stream, declare(call, &x), LaunchConfig::linear(1, 1));
        let text = error.to_string();
        text.strip_suffix("; cpu:0 accepts no more work").unwrap().rsplit("; ").next().unwrap().to_owned()
    };
    let writes =
        "declare buffer 0 of reads as written: pass it to .writes(..) of the call instead of .reads(..)";
    assert_eq!(remedy(|call, x| call.reads(x), None), writes);
    let none = "declare the memory by .reads(..) or .writes(..) of the call";
    assert_eq!(remedy(|call, _| call, None), none);
    assert_eq!(remedy(|call, _| call, Some(1 << 40)), format!("mend the pointer, or {none}"));
    let perhaps =
        "mend the index, or declare memory behind a pointer by .reads(..) or .writes(..) of the call";
    assert_eq!(remedy(|call, x| call.reads(x), Some(1 << 20)), perhaps);
    assert_eq!(remedy(|call, x| call.reads(x), Some(4)), "mend the index");
}

#[test]
fn the_order_check_sees_memory_behind_pointers() {
    let (_runtime, _, [stream, other]) = streams(["work", "other"]);
    let (from, to) = (stream.alloc::<u32>(1).unwrap(), stream.alloc::<u32>(1).unwrap());
    stream.fill(&from, 7).queued().unwrap();
    stream.fill(&to, 7).queued().unwrap();
    other.wait_stream(&stream).queued().unwrap();
    stream.fill(&from, 8).queued().unwrap();
    let call = follow(from.device_ptr().0, &to).reads(&from);
    let error = refusal(other.launch(call, LaunchConfig::linear(1, 1)));
    says(&error, ErrorKind::Unordered, &["follow", "fill"]);
    to.accept_contents();
}

#[test]
fn a_null_pointer_is_named() {
    let (_runtime, _, [stream]) = streams(["work"]);
    let to = stream.alloc::<u32>(1).unwrap();
    let (error, _) = fault(&stream, follow(8, &to), LaunchConfig::linear(1, 1));
    says(&error, ErrorKind::Fault, &["it reads 4 bytes at 0x8, through a null pointer"]);
}

#[test]
fn checks_from_the_environment_apply_to_launches() {
    in_child(&[("WARPLINE_CHECK_KERNELS", "init")], || {
        let runtime = Runtime::new().unwrap();
        let stream = runtime.device(DeviceId::Cpu(0)).unwrap().new_stream().unwrap();
        let x = stream.alloc::<u32>(2).unwrap();
        let (error, _) = fault(&stream, half(&x), LaunchConfig::linear(1, 1));
        says(&error, ErrorKind::Fault, &["half", "element 1 of x"]);
    });
}

/// Runs [`follow`] without the call's `reads`, and returns the number that it has found.
#[test]
fn checks_from_the_environment_apply_to_each_seed() {
    in_child(&[("WARPLINE_CHECK_KERNELS", "init")], || {
        let outcome = std::panic::catch_unwind(|| {
            warpline::testing::for_each_seed([1], |device| async move {
                let stream = device.new_stream()?;
                let x = stream.alloc::<u32>(64)?;
                stream.launch(half(&x), LaunchConfig::linear(1, 32)).await
            });
        });
        let panic = outcome.unwrap_err();
        let why = panic.downcast_ref::<String>().expect("the panic has a text");
        assert!(why.contains("no thread has written element 1 of x"), "{why}");
    });
}

fn follow_undeclared(stream: &Stream) -> warpline::Result<u32> {
    let (from, to) = (stream.alloc::<u32>(1)?, stream.alloc::<u32>(1)?);
    stream.fill(&from, 7).queued()?;
    stream.launch(follow(from.device_ptr().0, &to), LaunchConfig::linear(1, 1)).queued()?;
    Ok(stream.read(&to).blocking_wait()?[0])
}

#[test]
fn without_bounds_a_kernel_reads_memory_that_the_call_does_not_declare() {
    let stream_of = |builder: RuntimeBuilder| {
        let runtime = builder.build().unwrap();
        let stream = runtime.device(DeviceId::Cpu(0)).unwrap().new_stream().unwrap();
        (runtime, stream)
    };
    let (_checked, stream) = stream_of(Runtime::builder());
    let error = follow_undeclared(&stream).unwrap_err();
    says(&error, ErrorKind::Fault, &["follow", "reads 4 bytes at 0x"]);
    for checks in [KernelChecks::default(), KernelChecks::ALL] {
        // SAFETY: without_kernel_bounds needs kernels that touch the memory of their calls alone.
        // The kernel only reads other memory, which is live until the read at the end.
        let builder = unsafe { Runtime::builder().kernel_checks(checks).without_kernel_bounds() };
        let (_runtime, stream) = stream_of(builder);
        assert_eq!(follow_undeclared(&stream).unwrap(), 7);
    }
}

#[test]
fn a_word_in_the_environment_switches_the_bounds_off_and_leaves_the_checks() {
    in_child(&[("WARPLINE_CHECK_KERNELS", "no-bounds,init")], || {
        let runtime = Runtime::new().unwrap();
        let stream = runtime.device(DeviceId::Cpu(0)).unwrap().new_stream().unwrap();
        assert_eq!(follow_undeclared(&stream).unwrap(), 7);
        let x = stream.alloc::<u32>(2).unwrap();
        let (error, _) = fault(&stream, half(&x), LaunchConfig::linear(1, 1));
        says(&error, ErrorKind::Fault, &["half", "element 1 of x"]);
    });
}

#[test]
fn the_word_that_switches_bounds_off_is_no_check() {
    let error = "races,no-bounds".parse::<KernelChecks>().unwrap_err();
    let text = "\"no-bounds\" is not a check of kernels; to switch the bounds off, call \
                RuntimeBuilder::without_kernel_bounds, or set WARPLINE_CHECK_KERNELS=no-bounds";
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::InvalidArgument, text));
    let error = "races,bounds".parse::<KernelChecks>().unwrap_err();
    says(&error, ErrorKind::InvalidArgument, &["\"bounds\" is not", "; expected races, init or sync"]);
}

/// Checks that a kernel which touches one element of `x` by `beyond` elements too far is refused,
/// with a report about `x`, when `y` is the next operand in memory.
fn overrun_is_refused(stream: &Stream, x: &Buffer<f32>, y: &Buffer<f32>, beyond: u32) {
    assert!(x.device_ptr().0 < y.device_ptr().0);
    stream.fill(x, 1.0).queued().unwrap();
    stream.fill(y, 1.0).queued().unwrap();
    let element = x.len() as u32 + beyond - 1;
    let (error, _) = fault(stream, touch(element, x, y), LaunchConfig::linear(1, 1));
    let text = format!("which is element {element} of x, and it has {} element", x.len());
    says(&error, ErrorKind::Fault, &[&text]);
}

#[test]
fn an_overrun_never_lands_in_another_operand() {
    // One element, lengths that fill their blocks, and large blocks.
    for (len, next) in [(1, 1), (128, 128), (1 << 18, 1 << 18), (3 << 18, 3 << 18)] {
        for beyond in [1, 31] {
            let (_runtime, _, [stream]) = streams(["work"]);
            let [x, y] = [len, next].map(|len| stream.alloc::<f32>(len).unwrap());
            overrun_is_refused(&stream, &x, &y, beyond);
        }
    }
}

#[test]
fn an_overrun_never_lands_in_a_neighbour_that_was_cut_from_the_same_block() {
    for (whole, len) in [(512, 128), (6 << 18, 3 << 18)] {
        for beyond in [1, 31] {
            let (_runtime, _, [stream]) = streams(["work"]);
            let block = stream.alloc::<f32>(whole).unwrap();
            let _neighbour = stream.alloc::<f32>(whole).unwrap();
            let start = block.device_ptr();
            drop(block);
            let [x, y] = [(); 2].map(|()| stream.alloc::<f32>(len).unwrap());
            assert_eq!(x.device_ptr(), start, "the block is cut");
            overrun_is_refused(&stream, &x, &y, beyond);
        }
    }
}
