//! Handles: numbers that are never used again, so that one that was destroyed is known for what it is.

use crate::driver::{current_context, driver};
use crate::gemm;
use crate::status::{Outcome, Status, refused};
use parking_lot::{Mutex, MutexGuard};

/// What each allocates on the device: pika #1234 measured about 60 MB a handle on a Grace-Hopper
/// node.
const HANDLE_BYTES: usize = 60 << 20;

#[derive(Debug)]
pub(crate) struct Handle {
    context: u64,
    /// Its device memory, the default workspace among it.
    own: u64,
    /// Where it was told to work instead, and how much that is.
    pub(crate) lent: Option<(u64, usize)>,
    /// Of its kernel in that context.
    pub(crate) function: u64,
    pub(crate) stream: u64,
    pub(crate) math_mode: i32,
}

type Place = &'static Mutex<Option<Handle>>;

/// The handle with number n is the n-th, from 1.
static HANDLES: Mutex<Vec<Place>> = Mutex::new(Vec::new());

/// Makes one on the current context.
pub(crate) fn create() -> Outcome<u64> {
    let context = current_context()?;
    let function = gemm::load()?;
    let mut own = 0;
    // SAFETY: cuMemAlloc writes an address.
    if unsafe { (driver()?.cuMemAlloc_v2)(&raw mut own, HANDLE_BYTES) } != 0 {
        return refused(Status::ALLOC_FAILED, "there is no device memory for a handle");
    }
    let lent = None;
    let handle = Handle { context, own, lent, function, stream: 0, math_mode: 0 };
    let mut handles = HANDLES.lock();
    handles.push(Box::leak(Box::new(Mutex::new(Some(handle)))));
    Ok(handles.len() as u64)
}

/// The place of a handle, for this call alone.
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

/// Calls `f` with a handle whose context is current.
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

/// Puts a handle on a stream, which has to be of its context.
pub(crate) fn set_stream(number: u64, stream: u64) -> Outcome {
    with(number, |handle| {
        let mut context = 0;
        // SAFETY: cuStreamGetCtx takes a stream, which it checks, and writes a context.
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

/// Ends one.
pub(crate) fn destroy(number: u64) -> Outcome {
    let own = with(number, |handle| Ok(handle.own))?;
    *place(number)? = None;
    // SAFETY: cuMemFree takes an address that cuMemAlloc gave. It waits for all work of the
    // context, as the manual of cublasDestroy says of that call.
    match unsafe { (driver()?.cuMemFree_v2)(own) } {
        0 => Ok(()),
        _ => refused(Status::INTERNAL_ERROR, "the handle's memory was not given back"),
    }
}
