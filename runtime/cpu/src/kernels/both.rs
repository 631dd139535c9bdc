//! Kernels that run in both forms, whose results are compared.
//!
//! Both forms run on the operands themselves, because device code may reach them through pointers
//! in other memory. The device code runs first. Then the memory gets its old contents back, and
//! the twin runs. So both forms start with the same bytes at the same addresses.

use super::run::reached_name;
use super::{Launching, call_twin};
use half::{bf16, f16};
use std::fmt::Display;
use warpline_driver::kernel::{Kernel, ParamKind, Twin};
use warpline_driver::{Element, Launch};
use warpline_ptx as ptx;

/// Memory that a launch writes.
struct Written {
    /// The name that reports use.
    name: String,
    element: &'static str,
    address: u64,
    len_bytes: usize,
}

impl Written {
    /// Returns the written operands of a launch, and the memory that it declares by `writes`. None
    /// is empty.
    fn of(launch: &Launch) -> Vec<Written> {
        let operands = launch.kernel.params.iter().zip(&launch.args).filter_map(|(param, arg)| {
            let ParamKind::Slice { element, element_bytes, access } = param.kind else { return None };
            let (name, len_bytes) = (param.name.to_owned(), arg.len as usize * element_bytes);
            access.writes().then_some(Written { name, element, address: arg.bits, len_bytes })
        });
        let reached = launch.reached().iter().enumerate().filter(|(_, memory)| memory.access.writes());
        let reached = reached.map(|(at, memory)| Written {
            name: reached_name(at, memory),
            element: memory.element,
            address: memory.address.0,
            len_bytes: memory.len_bytes as usize,
        });
        operands.chain(reached).filter(|written| written.len_bytes > 0).collect()
    }

    /// # Safety
    /// The bytes can be read, and nothing writes them meanwhile.
    unsafe fn read(&self) -> Vec<u8> {
        let start = std::ptr::with_exposed_provenance::<u8>(self.address as usize);
        // SAFETY: from_raw_parts needs bytes that can be read and that nothing writes, which the
        // caller promises. Device memory is initialised.
        unsafe { std::slice::from_raw_parts(start, self.len_bytes) }.to_vec()
    }

    /// # Safety
    /// The bytes can be written, and nothing else accesses them meanwhile.
    unsafe fn write(&self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.len_bytes);
        let start = std::ptr::with_exposed_provenance_mut::<u8>(self.address as usize);
        // SAFETY: copy_from needs both sides valid for the length, which the caller promises of
        // this one. The other one is a slice.
        unsafe { start.copy_from(bytes.as_ptr(), bytes.len()) };
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
        let written = Written::of(launch);
        let read = |memory: &Written| {
            // SAFETY: the caller vouches that the memory is valid for its length and that nothing
            // but this launch writes it. Neither form runs during this call.
            unsafe { memory.read() }
        };
        let before: Vec<_> = written.iter().map(read).collect();
        // SAFETY: the caller keeps the twin's rule, which is the same for PTX.
        unsafe { self.run_ptx(code, launch) }?;
        let by_device: Vec<_> = written.iter().map(read).collect();
        for (memory, bytes) in written.iter().zip(&before) {
            // SAFETY: the caller vouches that the memory may be written for its length and that
            // nothing but this launch accesses it. Neither form runs during this call.
            unsafe { memory.write(bytes) };
        }
        // SAFETY: the caller keeps the twin's rule.
        unsafe { call_twin(twin, args) };
        for (memory, by_device) in written.iter().zip(&by_device) {
            let difference = difference(kernel, &memory.name, memory.element, &read(memory), by_device);
            if let Some(difference) = difference {
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
        bytes.chunks_exact(size_of::<T>()).map(|x| T::read_from_bytes(x).expect("of one element")).collect()
    };
    let (twin, device) = (elements(twin), elements(device));
    let largest = twin.iter().filter_map(|x| number(*x)).filter(|x| x.is_finite());
    let largest = largest.fold(0.0, |largest: f64, x| largest.max(x.abs()));
    let agrees = |(a, b): (&T, &T)| {
        a.as_bytes() == b.as_bytes()
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
    use zerocopy::IntoBytes;

    fn differ<T: Element + Display>(
        tolerance: f64,
        twin: &[T],
        device: &[T],
        number: fn(T) -> Option<f64>,
    ) -> bool {
        first(tolerance, "y", twin.as_bytes(), device.as_bytes(), number).is_some()
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
            first(tolerance, "y", twin.as_bytes(), device.as_bytes(), number).unwrap()
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
}
