//! Registers kernels with the software CUDA driver, which runs their CPU forms.
//!
//! This driver stands in for the real one, and announces itself through an entry point that no real
//! driver has. Kernels are registered with it by name. Arguments reach it through `kernelParams`
//! alone, as they reach a device. For it only, the number of elements of each slice follows a
//! kernel's own parameters, so that a CPU form gets slices of the right length. A real driver gets
//! only the kernel's own parameters.

use crate::api::optional;
use std::ffi::{CString, c_char, c_int, c_void};
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use warpline_driver::DriverError;
use warpline_driver::background::{self, Duty};
use warpline_driver::kernel::{Arg, Args, Kernel, ParamKind};
use warpline_driver::reentry::{self, Caller};

#[repr(C)]
struct SoftParam {
    bytes: usize,
    /// 0 for a value, 1 for a pointer that is read, 2 for a pointer that is written.
    kind: u32,
    element_bytes: u32,
}

#[repr(C)]
struct SoftLaunch {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    reserved: u32,
}

type SoftTwin = unsafe extern "C" fn(*const *const c_void, *const SoftLaunch, *const c_void) -> c_int;

#[repr(C)]
struct SoftKernel {
    name: *const c_char,
    params: *const SoftParam,
    param_count: usize,
    extra_count: usize,
    twin: SoftTwin,
    user: *const c_void,
}

type Register = unsafe extern "C" fn(*const SoftKernel) -> c_int;

fn door() -> Option<Register> {
    static DOOR: OnceLock<Option<Register>> = OnceLock::new();
    // SAFETY: a driver that exports this name declares it with this type.
    *DOOR.get_or_init(|| unsafe { optional("softcudaRegisterKernel") })
}

/// Returns whether the software CUDA driver stands in for CUDA.
#[inline]
pub(crate) fn is_present() -> bool {
    door().is_some()
}

/// Registers `kernel` with the software CUDA driver, if it is present. A kernel without a CPU form
/// is not registered, and its PTX runs.
pub(crate) fn register(kernel: &'static Kernel) -> Result<(), DriverError> {
    let Some(register) = door() else { return Ok(()) };
    if kernel.twin.is_none() {
        return Ok(());
    }
    let name = CString::new(kernel.name).expect("an identifier");
    let params: Vec<SoftParam> = kernel.params.iter().map(|param| soft_param(param.kind)).collect();
    let soft = SoftKernel {
        name: name.as_ptr(),
        params: params.as_ptr(),
        param_count: params.len(),
        extra_count: params.iter().filter(|param| param.kind > 0).count(),
        twin: call,
        user: std::ptr::from_ref(kernel).cast::<c_void>(),
    };
    // SAFETY: the entry point reads the description, whose parts live until it returns; `user` is
    // static.
    let code = unsafe { register(&raw const soft) };
    if code == 0 {
        return Ok(());
    }
    Err(DriverError::Refused(
        format!("{} cannot be registered with the software CUDA driver: error {code}", kernel.name).into(),
    ))
}

fn soft_param(kind: ParamKind) -> SoftParam {
    match kind {
        ParamKind::Scalar { bytes, .. } => SoftParam { bytes, kind: 0, element_bytes: 0 },
        ParamKind::Slice { element_bytes, access, .. } => SoftParam {
            bytes: 8,
            kind: if access.writes() { 2 } else { 1 },
            element_bytes: element_bytes as u32,
        },
    }
}

/// Runs the CPU form of the kernel that `user` points to.
unsafe extern "C" fn call(
    params: *const *const c_void,
    _launch: *const SoftLaunch,
    user: *const c_void,
) -> c_int {
    // SAFETY: `user` is what `register` passed, a static kernel.
    let kernel: &'static Kernel = unsafe { &*user.cast::<Kernel>() };
    // SAFETY: `params` has a pointer to each parameter's bytes, and after them a pointer to each
    // slice's length.
    let param = |i: usize| unsafe { *params.wrapping_add(i) }.cast::<u8>();
    let mut lens = kernel.params.len()..;
    let args: Args = kernel
        .params
        .iter()
        .enumerate()
        .map(|(i, each)| {
            let mut bits = [0u8; 8];
            let bytes = each.kind.bytes_on_device();
            // SAFETY: a parameter has at least `bytes` bytes, which are eight at most.
            unsafe { std::ptr::copy_nonoverlapping(param(i), bits.as_mut_ptr(), bytes) };
            let len = match each.kind {
                ParamKind::Scalar { .. } => 0,
                ParamKind::Slice { .. } => {
                    let at = lens.next().expect("an endless range");
                    // SAFETY: a length is eight bytes.
                    unsafe { param(at).cast::<u64>().read_unaligned() }
                }
            };
            Arg { bits: u64::from_ne_bytes(bits), len }
        })
        .collect();
    let twin = kernel.twin.expect("only kernels with one are registered");
    let calling = reentry::calling(Caller::Twin);
    // Drops in the CPU form must not wait for a launch that waits for room behind this one.
    let duty = background::set_duty(Duty::Callback);
    // SAFETY: the arguments are those of a launch of this kernel. The software driver has checked
    // their memory, and keeps it apart in stream order: the twin's rules are kept as on the CPU
    // device.
    let done = catch_unwind(AssertUnwindSafe(|| unsafe { twin(&args) }));
    background::set_duty(duty);
    drop(calling);
    match done {
        Ok(()) => 0,
        Err(panic) => {
            crate::report::twin_panicked(kernel.name, &warpline_driver::message_of(panic));
            1
        }
    }
}

/// Returns a PTX module with an empty entry that has this kernel's parameters.
///
/// It serves a kernel whose CUDA C++ cannot be compiled here.
pub(crate) fn skeleton(kernel: &Kernel) -> String {
    let mut text =
        format!(".version 8.0\n.target sm_60\n.address_size 64\n\n.visible .entry {}(", kernel.name);
    for (i, param) in kernel.params.iter().enumerate() {
        let comma = if i == 0 { "" } else { "," };
        let bits = param.kind.bytes_on_device() * 8;
        let _ = write!(text, "{comma}\n\t.param .u{bits} {}_param_{i}", kernel.name);
    }
    text += "\n)\n{\n\tret;\n}\n";
    text
}
