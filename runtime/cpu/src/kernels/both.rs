//! Kernels that run in both forms, whose results are compared.
//!
//! The device code runs first, on copies of the operands that are written, so that both forms start
//! with the same bytes. Operands that are the same memory share a copy. A copy lies at the same
//! distance from a multiple of 512 bytes as its operand, since kernels take other paths for other
//! alignments.

use super::{Launching, call_twin};
use half::{bf16, f16};
use std::fmt::Display;
use warpline_driver::kernel::{Arg, Args, Kernel, ParamKind, Twin};
use warpline_driver::{Element, Launch};
use warpline_ptx as ptx;

/// The alignment of device memory.
const ALIGN: usize = crate::memory::DEVICE_ALIGN;

/// A copy of an operand.
struct Copied {
    /// The address of the operand.
    of: u64,
    memory: Vec<u8>,
    /// The place of the copy in `memory`.
    start: usize,
    len_bytes: usize,
}

impl Copied {
    /// # Safety
    /// The bytes can be read, and nothing writes them meanwhile.
    unsafe fn new(address: u64, len_bytes: usize) -> Self {
        let mut memory = vec![0; len_bytes + ALIGN];
        let distance = address as usize % ALIGN;
        let start = (distance + ALIGN - memory.as_ptr().addr() % ALIGN) % ALIGN;
        if len_bytes > 0 {
            let operand = std::ptr::with_exposed_provenance::<u8>(address as usize);
            // SAFETY: from_raw_parts needs bytes that can be read and that nothing writes, which
            // the caller promises. Device memory is initialised.
            let operand = unsafe { std::slice::from_raw_parts(operand, len_bytes) };
            memory[start..start + len_bytes].copy_from_slice(operand);
        }
        Copied { of: address, memory, start, len_bytes }
    }

    fn address(&mut self) -> u64 {
        self.memory[self.start..].as_mut_ptr().expose_provenance() as u64
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len_bytes]
    }
}

impl Launching<'_> {
    /// Runs the device code and the twin of a kernel, and compares what they write.
    ///
    /// # Errors
    /// The fault of the device code, or the first difference.
    ///
    /// # Safety
    /// The caller keeps the rules of [`Twin`].
    pub(super) unsafe fn run_both(
        &self,
        code: &ptx::Kernel,
        twin: Twin,
        launch: &Launch,
    ) -> Result<(), String> {
        let Launch { kernel, args, .. } = launch;
        let mut copies: Vec<Copied> = Vec::new();
        for (param, arg) in kernel.params.iter().zip(args) {
            if let ParamKind::Slice { element_bytes, access, .. } = param.kind
                && access.writes()
                && !copies.iter().any(|copy| copy.of == arg.bits)
            {
                // SAFETY: the slice is valid for its length, and no other code writes it meanwhile.
                copies.push(unsafe { Copied::new(arg.bits, arg.len as usize * element_bytes) });
            }
        }
        let with_copies: Args = kernel
            .params
            .iter()
            .zip(args)
            .map(|(param, arg)| {
                let is_slice = matches!(param.kind, ParamKind::Slice { .. });
                let copy = copies.iter_mut().find(|copy| is_slice && copy.of == arg.bits);
                copy.map_or(*arg, |copy| Arg { bits: copy.address(), ..*arg })
            })
            .collect();
        // SAFETY: the copies are valid for the same lengths as their operands, and nothing else
        // touches them. The caller vouches for the others.
        unsafe { self.run_ptx(code, launch, &with_copies) }?;
        // SAFETY: the caller keeps the twin's rule.
        unsafe { call_twin(twin, args) };
        for (param, arg) in kernel.params.iter().zip(args) {
            let ParamKind::Slice { element, access, .. } = param.kind else { continue };
            let Some(copy) = copies.iter().find(|copy| access.writes() && copy.of == arg.bits) else {
                continue;
            };
            if copy.len_bytes == 0 {
                continue;
            }
            let operand = std::ptr::with_exposed_provenance::<u8>(arg.bits as usize);
            // SAFETY: as for the copy. The twin has returned.
            let twins = unsafe { std::slice::from_raw_parts(operand, copy.len_bytes) };
            if let Some(difference) = difference(kernel, param.name, element, twins, copy.bytes()) {
                return Err(format!(
                    "the CPU form and the device code of {} differ: {difference}",
                    kernel.name
                ));
            }
        }
        Ok(())
    }
}

/// Describes the first element that differs by more than the kernel's tolerance.
fn difference(kernel: &Kernel, name: &str, element: &str, twin: &[u8], device: &[u8]) -> Option<String> {
    let tolerance = kernel.tolerance;
    match element {
        "f32" => first(tolerance, name, twin, device, |x: f32| Some(f64::from(x))),
        "f64" => first(tolerance, name, twin, device, |x: f64| Some(x)),
        "f16" => first(tolerance, name, twin, device, |x: f16| Some(x.to_f64())),
        "bf16" => first(tolerance, name, twin, device, |x: bf16| Some(x.to_f64())),
        "i8" => first(tolerance, name, twin, device, |_: i8| None),
        "u16" => first(tolerance, name, twin, device, |_: u16| None),
        "i16" => first(tolerance, name, twin, device, |_: i16| None),
        "u32" => first(tolerance, name, twin, device, |_: u32| None),
        "i32" => first(tolerance, name, twin, device, |_: i32| None),
        "u64" => first(tolerance, name, twin, device, |_: u64| None),
        "i64" => first(tolerance, name, twin, device, |_: i64| None),
        _ => first(tolerance, name, twin, device, |_: u8| None),
    }
}

/// Describes the first element that differs. `number` returns the value of a floating-point number,
/// and nothing for an integer.
fn first<T: Element + Display>(
    tolerance: f64,
    name: &str,
    twin: &[u8],
    device: &[u8],
    number: impl Fn(T) -> Option<f64>,
) -> Option<String> {
    let elements = |bytes: &[u8]| -> Vec<T> {
        bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
    };
    let (twin, device) = (elements(twin), elements(device));
    let largest = twin.iter().filter_map(|x| number(*x)).filter(|x| x.is_finite());
    let largest = largest.fold(0.0, |largest: f64, x| largest.max(x.abs()));
    let agrees = |(a, b): (&T, &T)| {
        bytemuck::bytes_of(a) == bytemuck::bytes_of(b)
            || match (number(*a), number(*b)) {
                (Some(a), Some(b)) => {
                    // An infinity differs from each number by more than any tolerance.
                    let is_close = tolerance > 0.0 && (a == b || (a - b).abs() <= tolerance * largest);
                    is_close || a.is_nan() && b.is_nan()
                }
                _ => false,
            }
    };
    let at = twin.iter().zip(&device).position(|pair| !agrees(pair))?;
    let (a, b) = (twin[at], device[at]);
    let allowed = match (tolerance, number(a)) {
        (0.0, _) | (_, None) => "it has to have the same bits; mend one of the two".to_owned(),
        _ => format!(
            "it may differ by {:e}: {tolerance:e}, the kernel's tolerance, of {largest}, the largest value of {name}; \
             mend one of the two",
            tolerance * largest
        ),
    };
    Some(format!("element {at} of {name} is {a} by the CPU form and {b} by the device code, and {allowed}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn differ<T: Element + Display>(
        tolerance: f64,
        twin: &[T],
        device: &[T],
        number: fn(T) -> Option<f64>,
    ) -> bool {
        first(tolerance, "y", bytemuck::cast_slice(twin), bytemuck::cast_slice(device), number).is_some()
    }

    #[test]
    fn without_a_tolerance_bits_are_compared_but_those_of_nan() {
        let floats = |twin, device| differ(0.0, &[twin], &[device], |x: f32| Some(x.into()));
        assert!(!floats(1.0, 1.0) && !floats(f32::NAN, -f32::NAN) && !floats(f32::INFINITY, f32::INFINITY));
        assert!(floats(1.0, 1.0000001) && floats(0.0, -0.0) && floats(1.0, f32::NAN));
        assert!(differ(0.0, &[1u8, 2], &[1, 3], |_| None));
    }

    #[test]
    fn a_tolerance_is_of_the_largest_value_of_the_operand() {
        let floats = |twin, device| differ(1e-3, &[100.0, twin], &[100.0, device], |x: f32| Some(x.into()));
        assert!(!floats(1.0, 1.09) && !floats(0.0, -0.0) && !floats(f32::NAN, -f32::NAN));
        assert!(floats(1.0, 1.11) && floats(1.0, f32::INFINITY) && floats(f32::INFINITY, f32::MAX));
        assert!(differ(0.5, &[100u32], &[101], |_| None), "integers are compared by their bits");
    }

    #[test]
    fn the_first_difference_is_told_with_both_values_and_the_tolerance() {
        let (twin, device) = ([1.0f32, 2.0, 3.0], [1.0f32, 2.5, 4.0]);
        let told = |tolerance| {
            let number = |x: f32| Some(f64::from(x));
            first(tolerance, "y", bytemuck::cast_slice(&twin), bytemuck::cast_slice(&device), number).unwrap()
        };
        assert_eq!(
            told(0.0),
            "element 1 of y is 2 by the CPU form and 2.5 by the device code, and it has to have the same bits; mend one of \
             the two"
        );
        assert_eq!(
            told(1e-1),
            "element 1 of y is 2 by the CPU form and 2.5 by the device code, and it may differ by 3.0000000000000004e-1: \
             1e-1, the kernel's tolerance, of 3, the largest value of y; mend one of the two"
        );
    }

    #[test]
    fn a_copy_is_aligned_like_its_operand() {
        let operand = [7u8; 2000];
        for start in [0, 1, 16, 500, 511] {
            let address = operand[start..].as_ptr().expose_provenance() as u64;
            // SAFETY: the bytes are in the array.
            let mut copy = unsafe { Copied::new(address, 1000) };
            assert_eq!(copy.address() % 512, address % 512);
            assert_eq!(copy.bytes(), [7; 1000]);
        }
    }
}
