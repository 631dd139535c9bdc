//! Calls the library forms of kernels, and reports through `tracing` which code ran.
//!
//! A library is asked at each launch of a kernel that has a library form. That happens inside the
//! CUDA call, under the stream's lock, and a `tracing` subscriber may use that stream. So the
//! thread `warpline-host` emits the event. To emit it after the lock is released, the answer would
//! have to pass through `submit` of every driver.

use super::handles::{self, Handles};
use super::software;
use crate::api::driver_version;
use crate::context::Context;
use crate::report;
use crate::work::capturing::Relaxed;
use std::ffi::c_void;
use std::ops::RangeInclusive;
use tracing::level_filters::LevelFilter;
use warpline_driver::kernel::{
    Library, LibraryAnswer, LibraryCall, LibraryDevice, LibraryDriver, LibraryHandle, LibraryProvider,
    Workspace,
};
use warpline_driver::timeline::Ticket;
use warpline_driver::{DriverError, Launch, Site, background};

/// Describes the device to libraries.
pub(crate) fn device(ordinal: u32) -> LibraryDevice {
    LibraryDevice { ordinal, driver_version: driver_version(), is_software: software::is_present() }
}

/// Returns how many bytes of workspace a call needs, at least and at best; `None` if the library is
/// not used on this device.
pub(crate) fn workspace_bytes(
    context: &Context,
    provider: &LibraryProvider,
) -> Result<Option<RangeInclusive<usize>>, DriverError> {
    let properties = context.properties.get();
    let capability = properties.and_then(|properties| properties.compute_capability).unwrap_or_default();
    let best = (provider.workspace_bytes)(device(context.ordinal), capability);
    let best = best.map_err(|why| DriverError::Refused(why.into()))?;
    Ok((best > 0).then(|| provider.least_workspace_bytes.min(best)..=best))
}

/// Prepares a library for a call outside of graphs. Returns the same as [`workspace_bytes`].
pub(crate) fn ready(
    context: &Context,
    provider: &'static LibraryProvider,
) -> Result<Option<RangeInclusive<usize>>, DriverError> {
    let bytes = workspace_bytes(context, provider)?;
    if bytes.is_some() {
        handles::ready(context, provider)?;
    }
    Ok(bytes)
}

/// The destination of a launch.
pub(crate) struct Target<'a> {
    pub(crate) context: &'static Context,
    pub(crate) stream: *mut c_void,
    pub(crate) label: &'a str,
    pub(crate) ticket: Ticket,
    pub(crate) site: Site,
    pub(crate) workspace: Option<Workspace>,
    /// The pools that supply the call's handle.
    pub(crate) handles: &'a Handles,
    /// True if a handle may be made when none is free: the stream is not being captured.
    pub(crate) may_make: bool,
    pub(crate) driver: &'a dyn LibraryDriver,
}

impl Target<'_> {
    /// Returns a handle for this call alone.
    fn handle(&self, provider: &'static LibraryProvider) -> Result<Option<LibraryHandle>, DriverError> {
        if self.workspace.is_none() {
            return Ok(None);
        }
        if let Some(handle) = self.handles.take(provider) {
            return Ok(Some(handle));
        }
        if !self.may_make {
            return Ok(None);
        }
        match handles::make(self.context, provider) {
            Ok(handle) => Ok(Some(handle)),
            Err(DriverError::OutOfMemory(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Asks `library` to enqueue `launch`, and returns whether it did. The context is current.
pub(crate) fn enqueue(library: &Library, launch: &Launch, to: &Target<'_>) -> Result<bool, DriverError> {
    let (device, provider) = (device(to.context.ordinal), library.provider);
    let handle = to.handle(provider)?;
    let Target { stream, workspace, driver, .. } = *to;
    let call = LibraryCall { args: &launch.args, stream, device, handle, workspace, driver };
    // A library may make calls that are unsafe while another thread captures.
    let _relaxed = to.may_make.then(Relaxed::new);
    // SAFETY: `enqueue` needs arguments that fit and are valid on the stream, and a workspace that
    // belongs to this call alone: `submit`'s caller vouches for both. It also needs the stream's
    // context to be current. The handle was made by this provider for this context, and is in no
    // pool.
    let answer = unsafe { (library.enqueue)(&call) };
    if let Some(handle) = handle {
        to.handles.put(provider, handle);
    }
    let (by, why) = match answer {
        LibraryAnswer::Enqueued(by) => (by, ""),
        LibraryAnswer::Declined { because, is_news } => {
            if is_news && LevelFilter::current() >= LevelFilter::INFO {
                // Subscribers must not run under a stream's lock.
                background::detach(move || report::no_library(because));
            }
            (launch.kernel.name, because)
        }
        LibraryAnswer::Failed { why, halfway: false } => return Err(DriverError::Refused(why.into())),
        LibraryAnswer::Failed { why, halfway: true } => return Err(DriverError::Halfway(why.into())),
    };
    if LevelFilter::current() >= LevelFilter::DEBUG {
        let (label, ticket, site) = (to.label.to_owned(), to.ticket, to.site);
        background::detach(move || report::which_ran(device.ordinal, &label, ticket, &site, by, why));
    }
    Ok(matches!(answer, LibraryAnswer::Enqueued(_)))
}
