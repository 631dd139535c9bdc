//! The library forms of kernels: asked at each launch of a kernel that has one, and told of through `tracing`.

use super::api::{CUstream, optional};
use super::context::Context;
use super::graph::is_captured;
use super::software;
use super::stream::CudaStream;
use crate::driver::{DriverError, Launch};
use crate::kernel::{
    Arg, Args, Kernel, LaunchConfig, Library, LibraryAnswer, LibraryCall, LibraryDevice, LibraryDriver,
    Workspace,
};
use crate::site::Site;
use crate::timeline::Ticket;
use crate::{offload, report};
use std::ffi::c_int;
use std::sync::OnceLock;
use tracing::level_filters::LevelFilter;

/// What the device is for libraries.
pub(super) fn device(ordinal: u32) -> LibraryDevice {
    LibraryDevice { ordinal, driver_version: driver_version(), is_software: software::is_present() }
}

/// Where a launch goes.
pub(super) struct Target<'a> {
    pub(super) context: &'static Context,
    pub(super) stream: CUstream,
    pub(super) label: &'a str,
    pub(super) ticket: Ticket,
    pub(super) site: Site,
    pub(super) workspace: Option<Workspace>,
    pub(super) driver: &'a dyn LibraryDriver,
}

/// Asks `library` to enqueue `launch`; whether it did. The context is current.
pub(super) fn enqueue(library: &Library, launch: &Launch, to: &Target<'_>) -> Result<bool, DriverError> {
    let device = device(to.context.ordinal);
    let Target { workspace, driver, .. } = *to;
    let call = LibraryCall { args: &launch.args, stream: to.stream.cast(), device, workspace, driver };
    // SAFETY: `enqueue` needs arguments that fit and are valid on the stream, which `submit`'s caller vouches for, and the stream's
    // context current.
    let answer = unsafe { (library.enqueue)(&call) };
    let (by, why) = match answer {
        LibraryAnswer::Enqueued(by) => (by, ""),
        LibraryAnswer::Declined { because, is_news } => {
            if is_news && LevelFilter::current() >= LevelFilter::INFO {
                // Subscribers are not to run at the desk.
                offload::detach(move || report::no_library(because));
            }
            (launch.kernel.name, because)
        }
        LibraryAnswer::Failed { why, halfway: false } => return Err(DriverError::Refused(why)),
        LibraryAnswer::Failed { why, halfway: true } => return Err(DriverError::Halfway(why)),
    };
    if LevelFilter::current() >= LevelFilter::DEBUG {
        let (label, ticket, site) = (to.label.to_owned(), to.ticket, to.site);
        offload::detach(move || report::which_ran(device.ordinal, &label, ticket, &site, by, why));
    }
    Ok(matches!(answer, LibraryAnswer::Enqueued(_)))
}

impl LibraryDriver for CudaStream {
    /// Only where others capture a stream that they have lent: our captures are on streams of their own.
    fn is_capturing(&self) -> bool {
        is_captured(self.raw_stream())
    }

    unsafe fn launch(
        &self,
        kernel: &'static Kernel,
        config: LaunchConfig,
        args: &[Arg],
    ) -> Result<(), String> {
        let launch = Launch { kernel, config, args: Args::from_slice(args) };
        self.launch_kernel(&launch).map_err(|refused| refused.to_string())
    }
}

/// The CUDA version that the driver library is for, 13010 for 13.1; 0 if it does not say.
pub(super) fn driver_version() -> i32 {
    type GetVersion = unsafe extern "C" fn(*mut c_int) -> u32;
    static VERSION: OnceLock<i32> = OnceLock::new();
    *VERSION.get_or_init(|| {
        let mut version = 0;
        // SAFETY: cuDriverGetVersion is declared so (cuda.h).
        if let Some(get) = unsafe { optional::<GetVersion>("cuDriverGetVersion") } {
            // SAFETY: cuDriverGetVersion writes an int.
            let _ = unsafe { get(&raw mut version) };
        }
        version
    })
}
