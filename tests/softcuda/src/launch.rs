//! Launches. The call checks a launch and copies its arguments; the kernel runs in stream order.

use crate::abi::{CUfunction, CUstream, In, LaunchAttribute, StreamCallback};
use crate::context::Context;
use crate::device::{
    MAX_BLOCK, MAX_GRID, MAX_THREADS, MULTIPROCESSORS, SHARED_OPTIN_BYTES, THREADS_PER_MULTIPROCESSOR,
    has_clusters,
};
use crate::errors::{Code, Outcome, refuse};
use crate::executor::PtxLaunch;
use crate::faults;
use crate::kernel::{Kernel, LaunchShape, Param};
use crate::memory::{self, Asker};
use crate::module::{self, Function};
use crate::op::{HostCall, Op};
use crate::plan;
use crate::ptx::Slot;
use crate::stream;
use crate::virtual_memory;
use crate::work::{Fault, HostRange};
use std::ffi::c_void;
use std::sync::atomic::Ordering::Relaxed;

/// A launch in a queue or a graph.
pub(crate) struct LaunchWork {
    pub(crate) function: CUfunction,
    shape: LaunchShape,
    body: Body,
}

/// The code that a launch runs.
enum Body {
    Twin(TwinLaunch),
    Ptx(PtxLaunch),
}

/// A launch of a twin.
struct TwinLaunch {
    kernel: &'static Kernel,
    /// The bytes of the arguments, each of which starts at a new word.
    args: Vec<u128>,
}

/// Returns the number of words that an argument of `bytes` bytes takes.
fn words(bytes: usize) -> usize {
    bytes.div_ceil(size_of::<u128>())
}

/// The arguments as the caller of a launch gives them.
#[derive(Clone, Copy)]
pub(crate) struct Given {
    pub(crate) params: In<In<u8>>,
    pub(crate) extra: In<In<u8>>,
}

/// The kind of a launch, by its attributes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LaunchKind {
    pub(crate) is_cooperative: bool,
    pub(crate) cluster: Option<[u32; 3]>,
}

impl LaunchKind {
    pub(crate) const COOPERATIVE: Self = LaunchKind { is_cooperative: true, cluster: None };
}

/// Enqueues a launch on a stream.
#[inline]
pub(crate) fn launch(
    handle: CUfunction,
    shape: LaunchShape,
    on: CUstream,
    given: Given,
    kind: LaunchKind,
) -> Outcome {
    let stream = stream::named_here(on)?;
    let function = module::function(handle)?;
    if function.context != stream.context().index {
        refuse!(INVALID_HANDLE, "the function and the stream are of different contexts");
    }
    check_shape(function, &shape)?;
    if !given.extra.as_ptr().is_null() && !given.params.as_ptr().is_null() {
        refuse!(INVALID_VALUE, "arguments are in kernelParams or in extra, not in both");
    }
    if plan::get().immediate && !stream.is_capturing() {
        return Ok(());
    }
    let has_ptx = plan::get().kernels_ptx && function.has_device_code();
    let twin = if has_ptx { None } else { function.kernel()? };
    let body = match twin {
        Some(kernel) => Body::Twin(TwinLaunch::new(function, kernel, given)?),
        None => Body::Ptx(of_ptx(function, given, &shape, kind)?),
    };
    stream.submit(Op::Launch(Box::new(LaunchWork { function: handle, shape, body })))?;
    Ok(())
}

/// Copies the arguments of a launch that runs PTX.
fn of_ptx(function: &Function, given: Given, shape: &LaunchShape, kind: LaunchKind) -> Outcome<PtxLaunch> {
    let kernel = function.device_code()?.clone();
    if let Err(why) = kernel.cluster_of(shape.grid, kind.cluster) {
        refuse!(INVALID_CLUSTER_SIZE, "{why}");
    }
    let places = function.params()?;
    let mut params = vec![0u8; kernel.param_bytes().next_multiple_of(8)];
    for (index, place) in places.iter().enumerate() {
        let argument = given.argument(index, *place)?;
        let Some(to) = params.get_mut(place.offset..place.offset + place.bytes) else {
            refuse!(INVALID_IMAGE, "parameter {index} is behind the end of the parameters");
        };
        // SAFETY: the caller of the launch promises that the argument has as many bytes as the
        // kernel's parameter, which is the length of `to`.
        unsafe { std::ptr::copy_nonoverlapping(argument, to.as_mut_ptr(), to.len()) };
    }
    Ok(PtxLaunch::new(kernel, params, places, kind))
}

/// `CU_LAUNCH_PARAM_BUFFER_POINTER` and `CU_LAUNCH_PARAM_BUFFER_SIZE`. `CU_LAUNCH_PARAM_END` is 0.
const BUFFER: [usize; 2] = [1, 2];

impl Given {
    /// Returns the address of an argument.
    fn argument(self, index: usize, place: Slot) -> Outcome<*const u8> {
        if self.extra.as_ptr().is_null() {
            return self.params.get_pointer(index);
        }
        let (mut buffer, mut size) = (std::ptr::null(), 0);
        for pair in 0.. {
            let (key, value) = (self.extra.at(2 * pair)?.as_ptr().addr(), 2 * pair + 1);
            match BUFFER.iter().position(|known| *known == key) {
                Some(0) => buffer = self.extra.at(value)?.as_ptr(),
                Some(_) => size = In::<usize>::get(self.extra.at(value)?.cast())?,
                None if key == 0 => break,
                None => refuse!(INVALID_VALUE, "{key} in extra is no CU_LAUNCH_PARAM"),
            }
        }
        let end = place.offset + place.bytes;
        if buffer.is_null() || size < end {
            refuse!(INVALID_VALUE, "parameter {index} ends at byte {end}, and extra has {size} bytes");
        }
        Ok(buffer.wrapping_add(place.offset))
    }
}

impl TwinLaunch {
    /// Copies the arguments.
    fn new(function: &Function, kernel: &'static Kernel, given: Given) -> Outcome<Self> {
        let places = if given.extra.as_ptr().is_null() { Vec::new() } else { function.params()? };
        let mut args = vec![0u128; kernel.argument_bytes().map(words).sum()];
        let mut at = 0;
        for (index, bytes) in kernel.argument_bytes().enumerate() {
            let argument = match places.get(index) {
                Some(place) => given.argument(index, *place)?,
                None => given.params.get_pointer(index)?,
            };
            // SAFETY: the caller of the launch promises that each argument has as many bytes as the
            // kernel's parameter. `args` has room for them from `at` on.
            unsafe { std::ptr::copy_nonoverlapping(argument, args[at..].as_mut_ptr().cast(), bytes) };
            at += words(bytes);
        }
        Ok(TwinLaunch { kernel, args })
    }
}

impl In<In<u8>> {
    /// Returns the `index`th pointer of an array, which must not be null.
    fn get_pointer(self, index: usize) -> Outcome<*const u8> {
        let pointer = self.at(index)?.as_ptr();
        if pointer.is_null() {
            refuse!(INVALID_VALUE, "kernelParams[{index}] is null");
        }
        Ok(pointer)
    }
}

#[inline]
fn check_shape(function: &Function, shape: &LaunchShape) -> Outcome {
    let within =
        |asked: &[u32; 3], most: &[u32; 3]| (0..3).all(|axis| (1..=most[axis]).contains(&asked[axis]));
    let threads: u64 = shape.block.iter().map(|axis| *axis as u64).product();
    if !within(&shape.grid, &MAX_GRID) || !within(&shape.block, &MAX_BLOCK) || threads > MAX_THREADS as u64 {
        refuse!(INVALID_VALUE, "a grid of {:?} blocks of {:?} threads", shape.grid, shape.block);
    }
    if threads > function.max_threads() as u64 {
        refuse!(
            INVALID_VALUE,
            "{threads} threads a block, where the PTX says {} at most",
            function.max_threads()
        );
    }
    if let Some(required) = function.required_threads().filter(|required| *required != shape.block) {
        refuse!(INVALID_VALUE, "blocks of {:?} threads, where the PTX says {required:?}", shape.block);
    }
    let most = function.max_shared.load(Relaxed);
    if shape.shared_bytes > most {
        refuse!(
            INVALID_VALUE,
            "{} bytes of shared memory, where the function may have {most}; cuFuncSetAttribute raises that to {}",
            shape.shared_bytes,
            SHARED_OPTIN_BYTES - function.static_shared()
        );
    }
    Ok(())
}

/// Checks the attributes of a launch.
pub(crate) fn check_attributes(
    handle: CUfunction,
    shape: &LaunchShape,
    attributes: In<LaunchAttribute>,
    count: usize,
) -> Outcome<LaunchKind> {
    let function = module::function(handle)?;
    let mut kind = LaunchKind::default();
    for index in 0..count {
        let LaunchAttribute { id, value, .. } = attributes.at(index)?;
        match id {
            2 if value[0] != 0 => {
                check_cooperative(function, shape)?;
                kind.is_cooperative = true;
            }
            4 if !has_clusters() => {
                let (major, minor) = plan::get().capability;
                refuse!(NOT_SUPPORTED, "clusters on a device of compute capability {major}.{minor}");
            }
            4 => {
                let cluster: u64 = value[..3].iter().map(|axis| *axis as u64).product();
                let divides =
                    (0..3).all(|axis| value[axis] != 0 && shape.grid[axis].is_multiple_of(value[axis]));
                if !divides || cluster > 8 {
                    refuse!(
                        INVALID_CLUSTER_SIZE,
                        "clusters of {:?} in a grid of {:?}",
                        &value[..3],
                        shape.grid
                    );
                }
                kind.cluster = Some([value[0], value[1], value[2]]);
            }
            0..=18 => {}
            _ => refuse!(INVALID_VALUE, "launch attribute {id}"),
        }
    }
    Ok(kind)
}

/// Checks that all blocks of a cooperative launch fit on the device together.
pub(crate) fn check_cooperative(function: &Function, shape: &LaunchShape) -> Outcome {
    let threads: u32 = shape.block.iter().fold(1, |product, axis| product.saturating_mul(*axis));
    let most = occupancy(function, threads, shape.shared_bytes as usize)? as u64 * MULTIPROCESSORS as u64;
    let blocks: u64 = shape.grid.iter().fold(1, |product, axis| product.saturating_mul(*axis as u64));
    if blocks > most {
        refuse!(COOPERATIVE_LAUNCH_TOO_LARGE, "{blocks} blocks, where {most} fit at once");
    }
    Ok(())
}

/// Returns the number of blocks of a function that fit on one multiprocessor.
pub(crate) fn occupancy(function: &Function, threads: u32, shared_bytes: usize) -> Outcome<u32> {
    if threads == 0 || shared_bytes > function.max_shared.load(Relaxed) as usize {
        return Err(Code::INVALID_VALUE.into());
    }
    if threads > function.max_threads() {
        return Ok(0);
    }
    let by_threads = THREADS_PER_MULTIPROCESSOR / threads.next_multiple_of(32);
    let by_shared = SHARED_OPTIN_BYTES / (function.static_shared() + shared_bytes as u32).max(1);
    Ok(by_threads.min(by_shared).min(32))
}

impl TwinLaunch {
    /// Returns each parameter with the index of its first word and, for a pointer registered with a
    /// length, the number of elements that it covers.
    fn params(&self) -> impl Iterator<Item = (Param, usize, Option<u64>)> + '_ {
        let mut lens = self.kernel.params.iter().map(|param| words(param.bytes)).sum::<usize>();
        let mut at = 0;
        self.kernel.params.iter().map(move |param| {
            let place = at;
            at += words(param.bytes);
            let len = (param.is_pointer() && self.kernel.lens).then(|| {
                lens += 1;
                self.args[lens - 1] as u64
            });
            (*param, place, len)
        })
    }

    /// Runs the twin.
    fn execute(&self, context: &'static Context, shape: &LaunchShape) -> Result<(), Fault> {
        let name = &self.kernel.name;
        let mut translated = Vec::new();
        for (index, (param, place, len)) in
            self.params().enumerate().filter(|(_, (param, ..))| param.is_pointer())
        {
            let address = self.args[place] as u64;
            let bytes = match len {
                Some(0) => 0,
                Some(len) => (len as usize).saturating_mul(param.element_bytes as usize),
                None => 1,
            };
            match memory::device_range(context, address, bytes, Asker::Work) {
                Ok(behind) => translated.push((place, behind)),
                Err(_) if len == Some(0) => {}
                Err(bad) => {
                    let what =
                        format!("kernel {name}, parameter {index}: {address:#x}, {bytes} bytes or more,");
                    return Err(Fault { code: Code::ILLEGAL_ADDRESS, why: format!("{what} {bad}") });
                }
            }
        }
        let mut args = self.args.clone();
        for (place, behind) in translated {
            args[place] = behind as u128;
        }
        let mut at = 0;
        let pointers: Vec<*const c_void> = self
            .kernel
            .argument_bytes()
            .map(|bytes| {
                let argument = &raw const args[at];
                at += words(bytes);
                argument.cast()
            })
            .collect();
        let twin = self.kernel.twin;
        // SAFETY: the program registered the twin for these parameters, and `args` and `pointers`
        // outlive the call. Each pointer that covers an element was just found in live memory.
        // Excluding conflicting accesses is the program's duty: it orders its work.
        let trapped = unsafe { twin(pointers.as_ptr(), shape, self.kernel.user as *const c_void) };
        match trapped {
            0 => Ok(()),
            code => Err(Fault { code: Code::LAUNCH_FAILED, why: format!("kernel {name} trapped ({code})") }),
        }
    }

    /// Returns each pointer argument and the minimum number of bytes used there. Leaves out
    /// pointers that cover no bytes.
    fn pointers(&self) -> impl Iterator<Item = (u64, usize)> + '_ {
        let pointers = self.params().filter(|(param, ..)| param.is_pointer());
        let ranges = pointers.map(|(param, place, len)| {
            let bytes = len.map_or(1, |len| (len as usize).saturating_mul(param.element_bytes as usize));
            (self.args[place] as u64, bytes)
        });
        ranges.filter(|(_, bytes)| *bytes > 0)
    }
}

impl LaunchWork {
    /// Runs the kernel.
    pub(crate) fn execute(&self, context: &'static Context) -> Result<(), Fault> {
        if let Some(code) = faults::poisoned_launch() {
            let name = match &self.body {
                Body::Twin(twin) => &twin.kernel.name,
                Body::Ptx(launch) => launch.kernel.name(),
            };
            return Err(Fault { code, why: format!("kernel {name} fails as planned") });
        }
        match &self.body {
            Body::Twin(twin) => twin.execute(context, &self.shape),
            Body::Ptx(launch) => launch.execute(context, &self.shape),
        }
    }

    /// Returns each pointer argument and the minimum number of bytes used there.
    pub(crate) fn pointers(&self) -> Vec<(u64, usize)> {
        match &self.body {
            Body::Twin(twin) => twin.pointers().collect(),
            Body::Ptx(launch) => launch.pointers.iter().map(|address| (*address, 1)).collect(),
        }
    }

    /// Returns the memory that the pointers name and that may end while the launch is queued: host
    /// addresses, of page-locked memory if they are valid, and mapped memory.
    pub(crate) fn host_ranges(&self) -> Vec<HostRange> {
        let may_end = |(address, len): (u64, usize)| match virtual_memory::behind(address) {
            Some(behind) => Some(HostRange { start: behind as usize, len }),
            None if memory::is_device_address(address) => None,
            None => Some(HostRange { start: address as usize, len }),
        };
        self.pointers().into_iter().filter_map(may_end).collect()
    }
}

/// Enqueues a host function on a stream.
pub(crate) fn host_function(
    on: CUstream,
    function: Option<crate::abi::HostFn>,
    data: *mut c_void,
) -> Outcome {
    let stream = stream::named(on)?;
    let Some(function) = function else {
        refuse!(INVALID_VALUE, "the host function is null");
    };
    let call = HostCall { function, data: data as usize };
    if plan::get().immediate && !stream.is_capturing() {
        call.run();
        return Ok(());
    }
    stream.submit(Op::Call(call))?;
    Ok(())
}

/// A callback of `cuStreamAddCallback` with its arguments.
struct Callback {
    function: StreamCallback,
    stream: CUstream,
    data: *mut c_void,
}

/// Runs a boxed [`Callback`] and frees it.
unsafe extern "C" fn run_callback(data: *mut c_void) {
    // SAFETY: `data` is the box that `stream_callback` leaked for this call alone.
    let Callback { function, stream, data } = *unsafe { Box::from_raw(data.cast::<Callback>()) };
    // SAFETY: the caller of cuStreamAddCallback promises that the function may be called with these
    // arguments once.
    unsafe { function(stream, Code::SUCCESS, data) };
}

/// Enqueues a callback on a stream. It does not run, and its box leaks, if the context is poisoned
/// before.
pub(crate) fn stream_callback(on: CUstream, function: Option<StreamCallback>, data: *mut c_void) -> Outcome {
    let Some(function) = function else {
        refuse!(INVALID_VALUE, "the callback is null");
    };
    if stream::named(on)?.is_capturing() {
        refuse!(STREAM_CAPTURE_UNSUPPORTED, "callbacks cannot be captured; use cuLaunchHostFunc");
    }
    let callback = Box::into_raw(Box::new(Callback { function, stream: on, data }));
    let enqueued = host_function(on, Some(run_callback), callback.cast());
    if enqueued.is_err() {
        // SAFETY: the call was refused, so nothing else has the box.
        drop(unsafe { Box::from_raw(callback) });
    }
    enqueued
}
