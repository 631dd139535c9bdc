//! The software CUDA driver under a bench: what it is for a host that its calls return at once.
//!
//! The driver library is found when the first call is made, so a bench starts itself again with the right environment. Told
//! `--device real` it stays with the driver that the machine has.

use cudarc::driver::sys;
use std::ffi::{CStr, c_char};

const CHILD: &str = "WARPLINE_BENCH_CHILD";

/// The word after `name` on the command line.
pub fn argument(name: &str) -> Option<String> {
    let mut args = std::env::args().skip_while(|arg| arg != name);
    args.next().and_then(|_| args.next())
}

/// Returns in a process that finds the software CUDA driver with these settings, or the machine's own with `--device real`.
/// In the process that was started first it does not return.
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

/// An entry point of the driver library.
///
/// # Safety
/// If the library has it, it is of type `F`.
pub unsafe fn entry_point<F: Copy>(name: &str) -> Option<F> {
    // SAFETY: the library is there, since a device was opened, and is never closed; the caller vouches for the type.
    unsafe { sys::culib().get::<F>(name.as_bytes()) }.ok().map(|entry| *entry)
}

/// How often each entry point was called; only the software driver counts.
pub struct Counts(Option<unsafe extern "C" fn(*const c_char) -> u64>);

impl Counts {
    pub fn new() -> Self {
        // SAFETY: who exports this name declares it so.
        Counts(unsafe { entry_point("softcudaCallCount") })
    }

    /// Whether there are counts, so that it is the software driver.
    pub fn are_kept(&self) -> bool {
        self.0.is_some()
    }

    /// Calls of these entry points while `work` ran.
    pub fn during<const N: usize>(&self, entries: [&CStr; N], work: impl FnOnce()) -> [u64; N] {
        // SAFETY: the entry point reads a string.
        let now = || entries.map(|name| self.0.map_or(0, |count| unsafe { count(name.as_ptr()) }));
        let before = now();
        work();
        let after = now();
        std::array::from_fn(|at| after[at] - before[at])
    }
}
