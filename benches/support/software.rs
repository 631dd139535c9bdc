//! The software CUDA driver for benches: it measures the host alone, because its calls can be set
//! to return immediately.
//!
//! The process loads the driver library on its first call. A bench therefore starts itself again
//! with the right environment. With `--device real` it keeps the driver of the machine.

use cudarc::driver::sys;
use std::ffi::{CStr, c_char};

const CHILD: &str = "WARPLINE_BENCH_CHILD";

/// Returns the argument after `name` on the command line.
pub fn argument(name: &str) -> Option<String> {
    let mut args = std::env::args().skip_while(|arg| arg != name);
    args.next().and_then(|_| args.next())
}

/// Starts this program again with the software CUDA driver and these settings, and exits with its
/// status. Returns in the process that was started so, and with `--device real`, which keeps the
/// driver of the machine.
pub fn find_it(settings: &[(&str, &str)]) {
    if std::env::var_os(CHILD).is_some() || argument("--device").as_deref() == Some("real") {
        return;
    }
    let library = warpline_softcuda::library_dir().expect("the library was built with this bench");
    let mut command = std::process::Command::new(std::env::current_exe().expect("a bench has an executable"));
    command.args(std::env::args().skip(1)).env(CHILD, "1").env("LD_LIBRARY_PATH", library);
    for variable in [
        "CUDA_VISIBLE_DEVICES",
        "CUDA_LAUNCH_BLOCKING",
        "WARPLINE_COMPLETION",
        "WARPLINE_CPU_DEVICES",
        "WARPLINE_CUBLAS",
        "WARPLINE_WAKE_UP",
    ] {
        command.env_remove(variable);
    }
    let status = command.envs(settings.iter().copied()).status().expect("it starts");
    std::process::exit(status.code().unwrap_or(1));
}

/// Returns an entry point of the driver library.
///
/// # Safety
/// If the library has the entry point, its type is `F`.
pub unsafe fn entry_point<F: Copy>(name: &str) -> Option<F> {
    // SAFETY: the caller has opened a device, so the library is loaded, and it is never closed.
    let library = unsafe { sys::culib() };
    // SAFETY: the caller guarantees the type.
    unsafe { library.get::<F>(name.as_bytes()) }.ok().map(|entry| *entry)
}

/// The number of calls of each entry point. Only the software driver counts them.
pub struct Counts(Option<unsafe extern "C" fn(*const c_char) -> u64>);

impl Counts {
    pub fn new() -> Self {
        // SAFETY: only the software driver exports this name, with this type.
        Counts(unsafe { entry_point("softcudaCallCount") })
    }

    /// Returns whether calls are counted, which means that the driver is the software one.
    pub fn are_kept(&self) -> bool {
        self.0.is_some()
    }

    /// Runs `work` and returns how often it called each of these entry points.
    pub fn during<const N: usize>(&self, entries: [&CStr; N], work: impl FnOnce()) -> [u64; N] {
        // SAFETY: the entry point reads a string that ends with a NUL.
        let now = || entries.map(|name| self.0.map_or(0, |count| unsafe { count(name.as_ptr()) }));
        let before = now();
        work();
        let after = now();
        std::array::from_fn(|at| after[at] - before[at])
    }
}
