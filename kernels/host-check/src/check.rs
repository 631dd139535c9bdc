//! One call of a kernel, run by its twin and by each form of its device code.

use crate::code::{self, Code};
use crate::memory::Memory;
use crate::{HostKernel, Launch};
use bytemuck::{NoUninit, Pod};
use std::ffi::c_void;
use std::fmt;
use warpline_kernels as kernels;
use warpline_ptx as ptx;
use warpline_runtime::Element;
use warpline_runtime::kernel::{AccessMode, Arg, Kernel, ParamKind};

/// The difference that is allowed between the device's results and the twin's. NaN agrees with
/// every NaN.
#[derive(Clone, Copy, Debug)]
pub enum Agree {
    /// Requires equal bits.
    Bits,
    /// Allows the larger of an absolute difference and a fraction of the twin's result. Infinities
    /// have to be equal.
    Within {
        /// The absolute difference.
        absolute: f64,
        /// The fraction of the twin's result.
        relative: f64,
    },
}

impl Agree {
    fn with(self, twin: f64, device: f64) -> bool {
        if twin.is_nan() || device.is_nan() {
            return twin.is_nan() && device.is_nan();
        }
        match self {
            Agree::Bits => twin.to_bits() == device.to_bits(),
            Agree::Within { absolute, relative } => {
                twin == device || (twin - device).abs() <= absolute.max(relative * twin.abs())
            }
        }
    }
}

#[derive(Clone)]
enum Given {
    Scalar(Arg),
    Slice(Memory),
    /// The memory of the parameter with this number.
    Same(usize),
}

/// A kernel and its arguments.
#[derive(Clone)]
pub struct Check {
    kernel: &'static Kernel,
    given: Vec<Given>,
}

impl Check {
    /// Begins a call of the kernel with this name.
    ///
    /// # Panics
    /// If there is no such kernel.
    pub fn of(name: &str) -> Self {
        let kernel = kernels::ALL.iter().find(|kernel| kernel.name == name);
        Check { kernel: kernel.unwrap_or_else(|| panic!("no kernel {name}")), given: Vec::new() }
    }

    /// Sets the next parameter to this value.
    ///
    /// # Panics
    /// If it is of another type.
    pub fn scalar<T: Element>(mut self, value: T) -> Self {
        match self.kernel.params[self.given.len()].kind {
            ParamKind::Scalar { element, .. } if element == T::NAME => {}
            other => panic!("{} is no {other:?} of {}", T::NAME, self.kernel.name),
        }
        self.given.push(Given::Scalar(Arg::scalar(value)));
        self
    }

    /// Sets the next parameter to a copy of these elements, `offset` elements behind a multiple of
    /// 16 bytes.
    ///
    /// # Panics
    /// If they are of another type.
    pub fn slice<T: Element + NoUninit>(mut self, elements: &[T], offset: usize) -> Self {
        match self.kernel.params[self.given.len()].kind {
            ParamKind::Slice { element, .. } if element == T::NAME => {}
            other => panic!("{} is no {other:?} of {}", T::NAME, self.kernel.name),
        }
        self.given.push(Given::Slice(Memory::of(elements, offset)));
        self
    }

    /// Sets the next parameter to the memory of an earlier one.
    ///
    /// # Panics
    /// If the kernel does not allow operands to share memory, or if the earlier parameter has no
    /// memory of its own.
    pub fn same(mut self, parameter: usize) -> Self {
        assert!(self.kernel.in_place, "{}", self.kernel.name);
        assert!(matches!(self.given[parameter], Given::Slice(_)));
        self.given.push(Given::Same(parameter));
        self
    }

    /// Runs the twin once, and each form of the device code with each of `launches`. Compares all
    /// memory.
    ///
    /// # Safety
    /// The arguments satisfy the kernel's `where`.
    ///
    /// # Panics
    /// If the results do not agree, if the device code wrote around its operands, or if the PTX
    /// faulted.
    pub unsafe fn agrees(&self, agree: Agree, launches: &[Launch]) {
        // SAFETY: the caller makes the same promise.
        let twin = unsafe { self.after_twin() };
        for launch in launches {
            for code in code::forms(self.kernel).iter() {
                // SAFETY: the caller promises that the arguments satisfy the kernel's `where`.
                let ran = unsafe { self.after(code, launch) };
                let compared = ran.map_err(Problem::Fault).and_then(|device| twin.compare(&device, agree));
                compared.unwrap_or_else(|problem| panic!("{problem}; {code} with {launch:?}"));
            }
        }
    }

    /// Runs each form of the device code with each of `launches`. Checks that the results of a form
    /// are equal bit for bit.
    ///
    /// # Safety
    /// The arguments satisfy the kernel's `where`.
    ///
    /// # Panics
    /// If they differ, or if the PTX faulted.
    pub unsafe fn gives_the_same_bits(&self, launches: &[Launch]) {
        for code in code::forms(self.kernel).iter() {
            let ran = launches.iter().map(|launch| {
                // SAFETY: the caller promises that the arguments satisfy the kernel's `where`.
                let device = unsafe { self.after(code, launch) };
                (launch, device.unwrap_or_else(|fault| panic!("{fault}; {code} with {launch:?}")))
            });
            ran.reduce(|(one_launch, one), (other_launch, other)| {
                for (i, both) in one.given.iter().zip(&other.given).enumerate() {
                    let (Given::Slice(one), Given::Slice(other)) = both else { continue };
                    let what = self.operand(i);
                    assert!(
                        one.elements() == other.elements(),
                        "{what} of {code} differs between {one_launch:?} and {other_launch:?}"
                    );
                }
                (other_launch, other)
            });
        }
    }

    /// Runs `kernel` in place of the kernel's own PTX, and compares all memory with the twin's.
    ///
    /// # Safety
    /// The arguments satisfy the kernel's `where`. `kernel` takes the same parameters.
    ///
    /// # Errors
    /// The fault, or the first difference.
    pub unsafe fn compares_with(
        &self,
        kernel: &ptx::Kernel,
        agree: Agree,
        launch: &Launch,
    ) -> Result<(), Problem> {
        // SAFETY: the caller makes the same promise.
        let twin = unsafe { self.after_twin() };
        let mut device = self.clone();
        // SAFETY: the caller makes the same promise.
        unsafe { device.run_ptx(kernel, launch, None) }.map_err(Problem::Fault)?;
        twin.compare(&device, agree)
    }

    /// Runs the kernel's PTX as if the last element of a parameter were not there.
    ///
    /// # Safety
    /// The arguments satisfy the kernel's `where`.
    ///
    /// # Errors
    /// The fault.
    pub unsafe fn without_the_last_of(
        &self,
        parameter: usize,
        launch: &Launch,
    ) -> Result<(), Box<ptx::Fault>> {
        let forms = code::forms(self.kernel);
        let kernel = forms.iter().find_map(|code| match code {
            Code::Ptx(kernel) => Some(kernel),
            Code::Host(_) => None,
        });
        // SAFETY: the caller makes the same promise.
        unsafe { self.clone().run_ptx(kernel.expect("each kernel has PTX"), launch, Some(parameter)) }
    }

    /// Returns the arguments after the twin has run.
    ///
    /// # Safety
    /// The arguments satisfy the kernel's `where`.
    unsafe fn after_twin(&self) -> Check {
        assert_eq!(self.given.len(), self.kernel.params.len(), "{}", self.kernel.name);
        let mut twin = self.clone();
        let args = twin.args();
        // SAFETY: a twin needs arguments that fit its parameters, which `scalar`, `slice` and
        // `same` have checked, and slices that are valid for their length, like the memory in
        // `twin`. The caller promises that the lengths fit one another.
        unsafe { (self.kernel.twin.expect("each kernel has one"))(&args) };
        twin
    }

    /// Returns the arguments after a form of the device code has run.
    ///
    /// # Safety
    /// The arguments satisfy the kernel's `where`.
    unsafe fn after(&self, code: &Code, launch: &Launch) -> Result<Check, Box<ptx::Fault>> {
        let mut device = self.clone();
        match code {
            // SAFETY: the caller makes the same promise.
            Code::Host(kernel) => unsafe { device.run_on_host(*kernel, launch) },
            // SAFETY: the caller makes the same promise.
            Code::Ptx(kernel) => unsafe { device.run_ptx(kernel, launch, None) }?,
        }
        Ok(device)
    }

    /// Compares all memory after the twin, `self`, with that after device code.
    fn compare(&self, device: &Check, agree: Agree) -> Result<(), Problem> {
        for (i, (twin, device)) in self.given.iter().zip(&device.given).enumerate() {
            let (Given::Slice(twin), Given::Slice(device)) = (twin, device) else { continue };
            let what = self.operand(i);
            if !(twin.edge_is_whole() && device.edge_is_whole()) {
                return Err(Problem::Value(format!("the bytes around {what} have changed")));
            }
            let difference = match self.kernel.params[i].kind {
                ParamKind::Slice { element: "f32", .. } => difference::<f32>(agree, twin, device, f64::from),
                ParamKind::Slice { element: "f64", .. } => difference::<f64>(agree, twin, device, |x| x),
                _ => difference_in_bytes(twin.elements(), device.elements()),
            };
            if let Some(difference) = difference {
                return Err(Problem::Value(format!("{what}: {difference}")));
            }
        }
        Ok(())
    }

    fn operand(&self, parameter: usize) -> String {
        format!("{} {}", self.kernel.name, self.kernel.params[parameter].name)
    }

    fn args(&mut self) -> Vec<Arg> {
        let mut args: Vec<Arg> = Vec::new();
        for given in &mut self.given {
            args.push(match given {
                Given::Scalar(arg) => *arg,
                Given::Slice(memory) => Arg::slice(memory.address(), memory.len()),
                Given::Same(parameter) => args[*parameter],
            });
        }
        args
    }

    /// # Safety
    /// The arguments satisfy the kernel's `where`.
    unsafe fn run_on_host(&mut self, kernel: HostKernel, launch: &Launch) {
        let args = self.args();
        // A scalar is in the first bytes of `bits`; an address takes all of them.
        let pointers: Vec<*const c_void> = args.iter().map(|arg| (&raw const arg.bits).cast()).collect();
        // SAFETY: behind each pointer a host kernel reads an argument of its parameter's size.
        // `scalar` and `slice` follow the descriptor, and a test of `warpline-kernels` compares its
        // sizes with the PTX of the same source. The kernel accesses the memory of `self`, within
        // the lengths that the caller promises.
        unsafe { kernel(launch, pointers.as_ptr()) };
    }

    /// Runs PTX that may touch exactly the operands. Of the parameter `shortened`, it may not touch
    /// the last element.
    ///
    /// # Safety
    /// The arguments satisfy the kernel's `where`, and are those of `kernel`.
    unsafe fn run_ptx(
        &mut self,
        kernel: &ptx::Kernel,
        launch: &Launch,
        shortened: Option<usize>,
    ) -> Result<(), Box<ptx::Fault>> {
        let mut params: Vec<u8> = Vec::new();
        let mut regions: Vec<ptx::Region> = Vec::new();
        for (i, (arg, param)) in self.args().iter().zip(self.kernel.params).enumerate() {
            let bytes = match param.kind {
                ParamKind::Scalar { bytes, .. } => bytes,
                ParamKind::Slice { element_bytes, access, .. } => {
                    let is_writable = access != AccessMode::Read;
                    let is_undefined = access == AccessMode::Write;
                    let len = arg.len - u64::from(shortened == Some(i));
                    match regions.iter_mut().find(|region| region.start == arg.bits) {
                        // The operand shares the memory of an earlier one.
                        Some(region) => {
                            region.is_writable |= is_writable;
                            region.is_undefined &= is_undefined;
                        }
                        None => regions.push(ptx::Region {
                            name: param.name.into(),
                            start: arg.bits,
                            len_bytes: len * element_bytes as u64,
                            is_writable,
                            is_undefined,
                            element_bytes: element_bytes as u32,
                        }),
                    }
                    size_of::<u64>()
                }
            };
            params.resize(params.len().next_multiple_of(bytes), 0);
            params.extend(&arg.bits.to_ne_bytes()[..bytes]);
        }
        let config = ptx::Config {
            grid: launch.grid,
            block: launch.block,
            seed: (launch.seed != 0).then_some(launch.seed),
            checks: ptx::Checks::ALL,
            ..ptx::Config::linear(1, 1)
        };
        // SAFETY: launch needs regions that are valid until it returns, and that other code does
        // not access meanwhile. They are the memory of `self`, which is borrowed exclusively, or a
        // part of it.
        let printed = unsafe { kernel.launch(&config, &params, ptx::Memory::Regions(regions)) }?;
        assert_eq!(printed, "", "{}", self.kernel.name);
        Ok(())
    }
}

/// The problem of a run of PTX.
#[derive(Debug)]
pub enum Problem {
    /// It failed.
    Fault(Box<ptx::Fault>),
    /// A result is not the twin's.
    Value(String),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Fault(fault) => fault.fmt(f),
            Problem::Value(difference) => difference.fmt(f),
        }
    }
}

/// Describes the first byte that differs.
fn difference_in_bytes(twin: &[u8], device: &[u8]) -> Option<String> {
    let at = twin.iter().zip(device).position(|(twin, device)| twin != device)?;
    Some(format!("byte {at} is {:#04x}, the twin's is {:#04x}", device[at], twin[at]))
}

/// Describes the first element that does not agree.
fn difference<T: Pod + fmt::Debug>(
    agree: Agree,
    twin: &Memory,
    device: &Memory,
    widened: impl Fn(T) -> f64,
) -> Option<String> {
    let (twin, device): (&[T], &[T]) =
        (bytemuck::cast_slice(twin.elements()), bytemuck::cast_slice(device.elements()));
    let mut both = twin.iter().zip(device);
    let at = both.position(|(&twin, &device)| !agree.with(widened(twin), widened(device)))?;
    Some(format!("element {at} is {:?}, the twin's is {:?}, {agree:?}", device[at], twin[at]))
}
