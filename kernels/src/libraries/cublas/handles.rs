//! A handle a stream: cuBLAS gives each a workspace, which two streams must not share.
//!
//! # Rules
//! 1. A handle is made for a stream with the first product there and stays its for the process. Streams of ours are pooled and
//!    never destroyed, so there are as many as streams that ever had products at once. What the library keeps is never given back: at
//!    exit the driver tears down by itself. One for a stream that others lent stays as well, and serves the next of its address.
//! 2. Making one allocates device memory and may wait for the device, which breaks a capture. For streams that a graph is captured
//!    on they are made before ([`make`]). One that others have captured gets the spare, which [`keep_a_spare`] has made before, or none.
//! 3. One caller at a time has a stream, and so its handle; the lock makes it certain.
//! 4. In a graph a product works in memory of the graph. In that of the handle it would meet those of other graphs that were captured on
//!    the same stream, and those that are put on that stream later; and what cuBLAS allocates in a capture is the driver's, a
//!    piece for each graph, which nobody counts.

use super::api::{Api, RawHandle};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::c_void;
use warpline_runtime::kernel::{LibraryCall, Workspace};

pub(super) struct Handle {
    raw: RawHandle,
    /// What its math mode was last set to. It begins with f32.
    tf32: bool,
    /// Where it was last told to work; none: in memory of its own.
    workspace: Option<Workspace>,
}

// SAFETY: a cuBLAS handle may be used from any thread, one at a time.
unsafe impl Send for Handle {}

impl Handle {
    fn create(api: &Api) -> Result<Self, String> {
        Ok(Handle { raw: api.create()?, tf32: false, workspace: None })
    }

    pub(super) fn raw(&self) -> RawHandle {
        self.raw
    }

    pub(super) fn set_tf32(&mut self, api: &Api, tf32: bool) -> Result<(), String> {
        if self.tf32 != tf32 {
            // SAFETY: the handle lives, and the caller has it alone.
            unsafe { api.set_math_mode(self.raw, tf32) }?;
            self.tf32 = tf32;
        }
        Ok(())
    }
}

impl Handle {
    /// Has the handle, whose stream that is, work in `workspace`, or in memory of its own.
    ///
    /// # Safety
    /// The stream lives, and the context of both is current. The workspace is for the library alone for as long as what is enqueued
    /// then may run.
    pub(super) unsafe fn work_in(
        &mut self,
        api: &Api,
        stream: *mut c_void,
        workspace: Option<Workspace>,
    ) -> Result<(), String> {
        if self.workspace == workspace {
            return Ok(());
        }
        match workspace {
            // SAFETY: the handle lives, and the caller has it alone and vouches for the memory.
            Some(workspace) => unsafe { api.set_workspace(self.raw, workspace) }?,
            // Its stream set once more, it works in memory of its own again: so the manual of cublasSetStream has it.
            // SAFETY: as above, and for the stream.
            None => unsafe { api.set_stream(self.raw, stream) }?,
        }
        self.workspace = workspace;
        Ok(())
    }
}

/// By device and stream.
static OF_STREAMS: Mutex<BTreeMap<(u32, usize), &'static Mutex<Handle>>> = Mutex::new(BTreeMap::new());
/// By device: on no stream yet.
static SPARE: Mutex<BTreeMap<u32, Handle>> = Mutex::new(BTreeMap::new());

/// The handle of the call's stream; none if the stream is being captured and there is none to be had.
pub(super) fn of_stream(api: &Api, call: &LibraryCall<'_>) -> Result<Option<&'static Mutex<Handle>>, String> {
    find_or_make(api, (call.device.ordinal, call.stream as usize), call.stream, || {
        !call.driver.is_capturing()
    })
}

/// Makes sure that a stream has a handle. It is not being captured, and its context is current.
pub(super) fn make(api: &Api, ordinal: u32, stream: *mut c_void) -> Result<(), String> {
    find_or_make(api, (ordinal, stream as usize), stream, || true).map(drop)
}

/// The handle of a stream, unless it has none and `may_create` says that no new one can be made.
fn find_or_make(
    api: &Api,
    key: (u32, usize),
    stream: *mut c_void,
    may_create: impl FnOnce() -> bool,
) -> Result<Option<&'static Mutex<Handle>>, String> {
    if let Some(handle) = OF_STREAMS.lock().get(&key) {
        return Ok(Some(handle));
    }
    let spare = SPARE.lock().remove(&key.0);
    let handle = match spare {
        Some(spare) => spare,
        None if !may_create() => return Ok(None),
        None => Handle::create(api)?,
    };
    // SAFETY: the handle is new or was nobody's; it and the stream are of one device's context, which is current.
    if let Err(why) = unsafe { api.set_stream(handle.raw, stream) } {
        // SAFETY: nothing was enqueued with it, and it is gone.
        unsafe { api.destroy(handle.raw) };
        return Err(why);
    }
    let handle = Box::leak(Box::new(Mutex::new(handle)));
    Ok(Some(*OF_STREAMS.lock().entry(key).or_insert(handle)))
}

/// Makes a handle for the next stream that needs one, if there is none. The device's context is current.
pub(super) fn keep_a_spare(api: &Api, ordinal: u32) -> Result<(), String> {
    if SPARE.lock().contains_key(&ordinal) {
        return Ok(());
    }
    // With no lock held: a product on another stream may want one.
    let handle = Handle::create(api)?;
    if let Some(another) = SPARE.lock().insert(ordinal, handle) {
        // SAFETY: it was the spare until now, so nothing was enqueued with it, and it is gone.
        unsafe { api.destroy(another.raw) };
    }
    Ok(())
}
