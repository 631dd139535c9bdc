//! Offers launches to libraries, and runs the kernels that a library launches on the stream.

use super::CudaStream;
use crate::modules::library;
use warpline_driver::kernel::{Arg, Args, Kernel, LaunchConfig, Library, LibraryDriver};
use warpline_driver::timeline::Ticket;
use warpline_driver::{DriverError, Launch, Site};

impl CudaStream {
    pub(super) fn ask(
        &self,
        library: &Library,
        launch: &Launch,
        ticket: Ticket,
        site: Site,
    ) -> Result<bool, DriverError> {
        let (context, label, workspace) = (self.context(), self.track.label(), launch.workspace());
        let (stream, handles) = (self.raw.stream.cast(), &context.modules.handles);
        library::enqueue(
            library,
            launch,
            &library::Target {
                context,
                stream,
                label,
                ticket,
                site,
                workspace,
                handles,
                // A borrowed stream that captures has refused the op before.
                may_make: true,
                driver: self,
            },
        )
    }
}

impl LibraryDriver for CudaStream {
    unsafe fn launch(
        &self,
        kernel: &'static Kernel,
        config: LaunchConfig,
        args: &[Arg],
    ) -> Result<(), String> {
        let launch = Launch { kernel, config, args: Args::from_slice(args), extras: None };
        self.launch_kernel(&launch).map_err(|refused| refused.to_string())
    }
}
