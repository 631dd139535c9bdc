//! The command-line arguments that select a device, for programs that use `clap`.

use crate::runtime::Runtime;
use crate::shared::Device;
use clap::Args;
use warpline_driver::{DeviceId, Result};

/// The arguments `--device NAME` and `--disable-cuda`, to be flattened into a parser of `clap`.
///
/// | arguments | device |
/// |---|---|
/// | `--device NAME` | the device of that name: `cpu`, `cpu:1`, `cuda`, `cuda:0` |
/// | `--disable-cuda` | `cpu:0`, even if there is a GPU |
/// | neither | the best one: `cuda:0`, or `cpu:0` if `cuda:0` cannot be used |
///
/// The parser refuses both arguments together, and a name that is not a device name. A device that
/// does not exist is an error of [`device`](Self::device).
///
/// Needs the feature `clap`.
///
/// # Examples
/// ```
/// use clap::Parser;
/// use warpline::{DeviceArgs, Tensor};
///
/// #[derive(Parser)]
/// struct Options {
///     #[command(flatten)]
///     device: DeviceArgs,
/// }
///
/// # fn main() -> warpline::Result<()> {
/// let options = Options::parse_from(["program", "--disable-cuda"]);
/// let device = options.device.device()?;
/// let x = Tensor::empty([8, 42], &device).queued()?;
/// assert_eq!(x.device().to_string(), "cpu:0");
/// assert!(Options::try_parse_from(["program", "--device", "cuda0"]).is_err());
/// # Ok(())
/// # }
/// ```
// No line of these docs may become the help text of the program: `help` and `long_help` are set.
#[derive(Args, Clone, Debug, Default)]
#[command(about = None, long_about = None)]
pub struct DeviceArgs {
    #[arg(
        long,
        value_name = "NAME",
        value_parser = name_of_a_device,
        help = "The device, such as cpu, cuda or cuda:0 [default: the best one available]"
    )]
    device: Option<String>,
    #[arg(long, conflicts_with = "device", help = "Uses the CPU device even if there is a GPU")]
    disable_cuda: bool,
}

impl DeviceArgs {
    /// Returns the selected device of the default runtime. It never falls back from a named device
    /// to another one.
    ///
    /// # Errors
    /// The errors of [`Device::open`] if a device is named; otherwise those of [`Device::best`].
    pub fn device(&self) -> Result<Device> {
        self.device_of(Runtime::default_runtime()?)
    }

    /// Returns the selected device of `runtime`.
    ///
    /// # Errors
    /// The errors of [`device`](Self::device), without those of the default runtime.
    pub fn device_of(&self, runtime: &Runtime) -> Result<Device> {
        match &self.device {
            Some(name) => runtime.open(name),
            None if self.disable_cuda => runtime.device(DeviceId::Cpu(0)),
            None => runtime.best_device(),
        }
    }
}

/// Returns `text` if it is the name of a device.
fn name_of_a_device(text: &str) -> Result<String> {
    text.parse::<DeviceId>().map(|_| text.to_owned())
}
