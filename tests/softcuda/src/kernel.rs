//! Twins: the CPU forms of kernels, as programs register them.
//!
//! A registration is never freed: a queued launch may still run it after a newer one has replaced
//! it.

use crate::errors::{Code, Outcome, refuse};
use crate::slab::Slab;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

/// `SoftcudaParam`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Param {
    pub(crate) bytes: usize,
    /// 0 for a value, 1 for a pointer that is read, 2 for a pointer that is written.
    pub(crate) kind: u32,
    pub(crate) element_bytes: u32,
}

/// `SoftcudaLaunch`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct LaunchShape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    pub(crate) reserved: u32,
}

/// The C type of a twin.
pub(crate) type TwinFn = unsafe extern "C" fn(
    params: *const *const c_void,
    launch: *const LaunchShape,
    user: *const c_void,
) -> c_int;

/// `SoftcudaKernel`: the registration of a kernel.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Registration {
    name: *const c_char,
    params: *const Param,
    param_count: usize,
    extra_count: usize,
    twin: Option<TwinFn>,
    user: *const c_void,
}

/// A copy of a registration.
pub(crate) struct Kernel {
    pub(crate) name: String,
    pub(crate) params: Vec<Param>,
    /// True if the arguments are followed by the number of elements that each pointer covers.
    pub(crate) lens: bool,
    pub(crate) twin: TwinFn,
    pub(crate) user: usize,
}

/// A kernel name and the newest registration under it.
pub(crate) struct Name {
    newest: AtomicU32,
}

static KERNELS: Slab<Kernel> = Slab::new(8);
static NAMES: Mutex<BTreeMap<String, &'static Name>> = Mutex::new(BTreeMap::new());

/// Returns the entry of a name, creating it if nothing is registered under the name yet.
pub(crate) fn named(name: &str) -> &'static Name {
    let mut names = NAMES.lock();
    if let Some(known) = names.get(name) {
        return known;
    }
    let new: &'static Name = Box::leak(Box::new(Name { newest: AtomicU32::new(0) }));
    names.insert(name.to_owned(), new);
    new
}

impl Name {
    /// Returns the number of the newest registration, counted from 1, and the registration.
    #[inline]
    pub(crate) fn newest(&self) -> Option<(u32, &'static Kernel)> {
        let number = self.newest.load(Ordering::Acquire);
        Some((number, KERNELS.at(number.checked_sub(1)?)?))
    }
}

impl Param {
    pub(crate) fn is_pointer(self) -> bool {
        self.kind != 0
    }
}

impl Kernel {
    /// Returns the sizes of the parameters in bytes.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = usize> + '_ {
        self.params.iter().map(|param| param.bytes)
    }

    /// Returns the sizes of all arguments in bytes, including the lengths after the parameters.
    pub(crate) fn argument_bytes(&self) -> impl Iterator<Item = usize> + '_ {
        let lens = if self.lens { self.pointers() } else { 0 };
        self.sizes().chain(std::iter::repeat_n(size_of::<u64>(), lens))
    }

    fn pointers(&self) -> usize {
        self.params.iter().filter(|param| param.is_pointer()).count()
    }
}

/// Copies a registration, which replaces any earlier one of the same name.
pub(crate) fn register(registration: Registration) -> Outcome {
    let Registration { name, params, param_count, extra_count, twin, user } = registration;
    let Some(twin) = twin.filter(|_| !name.is_null() && (param_count == 0 || !params.is_null())) else {
        refuse!(INVALID_VALUE, "a kernel needs a name, its parameters and a twin");
    };
    // SAFETY: `name` is not null, so the caller promises that it points to a C string.
    let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| Code::INVALID_VALUE)?.to_owned();
    let params = match param_count {
        0 => Vec::new(),
        // SAFETY: `params` is not null, so the caller promises `param_count` parameters there.
        _ => unsafe { std::slice::from_raw_parts(params, param_count) }.to_vec(),
    };
    let pointers = params.iter().filter(|param| param.is_pointer()).count();
    let sound = |param: &Param| match param.kind {
        0 => param.bytes > 0,
        1 | 2 => param.bytes == 8 && param.element_bytes > 0,
        _ => false,
    };
    if !params.iter().all(sound) || extra_count != 0 && extra_count != pointers {
        refuse!(INVALID_VALUE, "kernel {name} has parameters {params:?} and {extra_count} lengths");
    }
    let lens = extra_count > 0;
    let cell = named(&name);
    let kernel = Kernel { name, params, lens, twin, user: user as usize };
    let (index, _) = KERNELS.take(|_| kernel);
    cell.newest.store(index + 1, Ordering::Release);
    Ok(())
}
