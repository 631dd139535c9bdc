//! Handles: numbers that are never reused, so that a destroyed handle is recognized.

use crate::driver::{current_context, driver};
use crate::gemm;
use crate::status::{Outcome, Status, refused};
use parking_lot::{Mutex, MutexGuard};

/// The device memory that each handle allocates: pika #1234 measured about 60 MB on a Grace-Hopper
/// node.
const HANDLE_BYTES: usize = 60 << 20;

#[derive(Debug)]
pub(crate) struct Handle {
    context: u64,
    /// Its device memory, which includes the default workspace.
    own: u64,
    /// The workspace that it was lent: its address and its size.
    pub(crate) lent: Option<(u64, usize)>,
    /// The kernel's function in that context.
    pub(crate) function: u64,
    pub(crate) stream: u64,
    pub(crate) math_mode: i32,
}

type Slot = &'static Mutex<Option<Handle>>;

/// The places of all handles. Handle n is the n-th of them, from 1.
static HANDLES: Mutex<Vec<Slot>> = Mutex::new(Vec::new());

/// Creates a handle in the current context.
pub(crate) fn create() -> Outcome<u64> {
    let context = current_context()?;
    let function = gemm::load()?;
    let mut own = 0;
    // SAFETY: `cuMemAlloc` writes an address, for which `own` has room.
    if unsafe { (driver()?.cuMemAlloc_v2)(&raw mut own, HANDLE_BYTES) } != 0 {
        return refused(Status::ALLOC_FAILED, "there is no device memory for a handle");
    }
    let lent = None;
    let handle = Handle { context, own, lent, function, stream: 0, math_mode: 0 };
    let mut handles = HANDLES.lock();
    handles.push(Box::leak(Box::new(Mutex::new(Some(handle)))));
    Ok(handles.len() as u64)
}

/// Locks the place of a handle for one call. Fails if another thread is using it.
fn place(number: u64) -> Outcome<MutexGuard<'static, Option<Handle>>> {
    let index = number.checked_sub(1).map(|index| index as usize);
    let Some(place) = index.and_then(|index| HANDLES.lock().get(index).copied()) else {
        return refused(Status::NOT_INITIALIZED, &format!("there is no handle {number:#x}"));
    };
    match place.try_lock() {
        Some(place) => Ok(place),
        None => refused(Status::INTERNAL_ERROR, &format!("two threads use handle {number} at once")),
    }
}

/// Calls `f` with a handle, if its context is current.
pub(crate) fn with<T>(number: u64, f: impl FnOnce(&mut Handle) -> Outcome<T>) -> Outcome<T> {
    let mut place = place(number)?;
    let Some(handle) = place.as_mut() else {
        return refused(Status::NOT_INITIALIZED, &format!("handle {number} was destroyed"));
    };
    if current_context()? != handle.context {
        return refused(Status::EXECUTION_FAILED, &format!("the context of handle {number} is not current"));
    }
    f(handle)
}

/// Sets the stream of a handle, if the stream belongs to its context.
pub(crate) fn set_stream(number: u64, stream: u64) -> Outcome {
    with(number, |handle| {
        let mut context = 0;
        // SAFETY: `cuStreamGetCtx` takes a stream, which it checks, and writes a context.
        let code = unsafe { (driver()?.cuStreamGetCtx)(stream, &raw mut context) };
        if code != 0 || context != handle.context {
            return refused(
                Status::INVALID_VALUE,
                &format!("the stream is not of the context of handle {number}"),
            );
        }
        handle.stream = stream;
        handle.lent = None;
        Ok(())
    })
}

/// Destroys a handle and frees its device memory.
pub(crate) fn destroy(number: u64) -> Outcome {
    let own = with(number, |handle| Ok(handle.own))?;
    *place(number)? = None;
    // SAFETY: `cuMemFree` takes an address from `cuMemAlloc`. It waits for all work of the context,
    // as the manual says of `cublasDestroy`.
    match unsafe { (driver()?.cuMemFree_v2)(own) } {
        0 => Ok(()),
        _ => refused(Status::INTERNAL_ERROR, "the handle's memory was not given back"),
    }
}
