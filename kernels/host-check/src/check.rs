//! One call of a kernel, run by its twin and by its device code.

use crate::memory::Memory;
use crate::{Launch, host_kernel};
use bytemuck::{NoUninit, Pod};
use std::ffi::c_void;
use warpline_kernels as kernels;
use warpline_runtime::Element;
use warpline_runtime::kernel::{Arg, Kernel, ParamKind};

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

    /// Runs the twin once, and the device code with each of `launches`. Compares all memory.
    ///
    /// # Safety
    /// The arguments satisfy the kernel's `where`.
    ///
    /// # Panics
    /// If the results do not agree, or if the device code wrote around its operands.
    pub unsafe fn agrees(&self, agree: Agree, launches: &[Launch]) {
        assert_eq!(self.given.len(), self.kernel.params.len(), "{}", self.kernel.name);
        let mut twin = self.clone();
        let args = twin.args();
        // SAFETY: a twin needs arguments that fit its parameters, which `scalar`, `slice` and
        // `same` have checked, and slices that are valid for their length, like the memory in
        // `twin`. The caller promises that the lengths fit one another.
        unsafe { (self.kernel.twin)(&args) };
        for launch in launches {
            let mut device = self.clone();
            // SAFETY: the caller promises that the arguments satisfy the kernel's `where`.
            unsafe { device.launch(launch) };
            for (i, (twin, device)) in twin.given.iter().zip(&device.given).enumerate() {
                let (Given::Slice(twin), Given::Slice(device)) = (twin, device) else { continue };
                let what = || format!("{} {} with {launch:?}", self.kernel.name, self.kernel.params[i].name);
                assert!(twin.edge_is_whole() && device.edge_is_whole(), "{} wrote around it", what());
                match self.kernel.params[i].kind {
                    ParamKind::Slice { element: "f32", .. } => {
                        same::<f32>(agree, twin, device, f64::from, what)
                    }
                    ParamKind::Slice { element: "f64", .. } => same::<f64>(agree, twin, device, |x| x, what),
                    _ => assert_eq!(twin.elements(), device.elements(), "{}", what()),
                }
            }
        }
    }

    /// Runs the device code with each of `launches`, and checks that the results are equal bit for
    /// bit.
    ///
    /// # Safety
    /// The arguments satisfy the kernel's `where`.
    ///
    /// # Panics
    /// If they differ.
    pub unsafe fn gives_the_same_bits(&self, launches: &[Launch]) {
        let ran = launches.iter().map(|launch| {
            let mut device = self.clone();
            // SAFETY: the caller promises that the arguments satisfy the kernel's `where`.
            unsafe { device.launch(launch) };
            (launch, device)
        });
        ran.reduce(|(one_launch, one), (other_launch, other)| {
            for (i, both) in one.given.iter().zip(&other.given).enumerate() {
                let (Given::Slice(one), Given::Slice(other)) = both else { continue };
                let what = (self.kernel.name, self.kernel.params[i].name);
                assert!(
                    one.elements() == other.elements(),
                    "{what:?} with {one_launch:?} and {other_launch:?}"
                );
            }
            (other_launch, other)
        });
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
    unsafe fn launch(&mut self, launch: &Launch) {
        let kernel = host_kernel(self.kernel.name).expect("every kernel is compiled");
        let args = self.args();
        // A scalar is in the first bytes of `bits`; an address takes all of them.
        let pointers: Vec<*const c_void> = args.iter().map(|arg| (&raw const arg.bits).cast()).collect();
        // SAFETY: behind each pointer a host kernel reads an argument of its parameter's size.
        // `scalar` and `slice` follow the descriptor, and a test of `warpline-kernels` compares its
        // sizes with the PTX of the same source. The kernel accesses the memory of `self`, within
        // the lengths that the caller promises.
        unsafe { kernel(launch, pointers.as_ptr()) };
    }
}

fn same<T: Pod + std::fmt::Debug>(
    agree: Agree,
    twin: &Memory,
    device: &Memory,
    widened: impl Fn(T) -> f64,
    what: impl Fn() -> String,
) {
    let (twin, device): (&[T], &[T]) =
        (bytemuck::cast_slice(twin.elements()), bytemuck::cast_slice(device.elements()));
    for (i, (&twin, &device)) in twin.iter().zip(device).enumerate() {
        assert!(
            agree.with(widened(twin), widened(device)),
            "{}: element {i} is {device:?}, the twin's is {twin:?}, {agree:?}",
            what()
        );
    }
}
