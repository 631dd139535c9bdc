//! A pair of fences of which one is nearly free and the other expensive.
//!
//! Where one side of a handshake is on every op's way and the other is rare, the frequent side has the [`light_fence`] and the
//! rare one the [`heavy_fence`]. Between the two they order as two sequentially consistent fences do; between two light ones
//! nothing is promised. (P1202, "Asymmetric Fences".)
//!
//! On Linux the heavy one is `membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)`: the kernel has every running thread of the process
//! pass a full barrier, and a thread that does not run passes one when it is scheduled. So the light one has only to keep the compiler from
//! reordering. That is so once the process has registered, by [`make_light`]; before, on other systems, and where the kernel
//! does not have the call or a sandbox forbids it, both are sequentially consistent fences.
//!
//! # Rules
//! 1. `LIGHT` becomes true once, after the registration, and stays so.
//! 2. The heavy fence looks at `REGISTERED`, waiting for a registration that is under way: whatever a light fence relied on, it sees.
//! 3. A light fence that did not see `LIGHT` yet was a full one, which goes with a heavy one of either kind.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};

static LIGHT: AtomicBool = AtomicBool::new(false);
static REGISTERED: OnceLock<bool> = OnceLock::new();

/// Has light fences be light from here on, if the system can. Once a process this may take some milliseconds, where other threads run
/// already.
pub(crate) fn make_light() {
    REGISTERED.get_or_init(|| {
        let registered = system::register();
        LIGHT.store(registered, Ordering::Release);
        registered
    });
}

/// The side of the handshake that every op passes.
#[inline]
pub(crate) fn light_fence() {
    if LIGHT.load(Ordering::Relaxed) {
        compiler_fence(Ordering::SeqCst);
    } else {
        full_fence();
    }
}

#[cold]
#[inline(never)]
fn full_fence() {
    fence(Ordering::SeqCst);
}

/// The rare side: about a microsecond, and an interrupt for each core that runs a thread of this process.
#[cold]
pub(crate) fn heavy_fence() {
    make_light();
    if LIGHT.load(Ordering::Relaxed) {
        system::barrier();
    } else {
        fence(Ordering::SeqCst);
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
mod system {
    use libc::{MEMBARRIER_CMD_PRIVATE_EXPEDITED, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED};

    pub(super) fn register() -> bool {
        membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
    }

    pub(super) fn barrier() {
        // A forked child may have to register once more. (Children of `fork` are refused work, but drop what they inherited.)
        let passed = membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)
            || (register() && membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED));
        // Light fences of other threads rely on it. Without it a wake-up could be lost, and a thread hang.
        assert!(
            passed,
            "membarrier: {}, although this process has registered for it; was it forbidden since, by a seccomp filter? \
             Allow it, or install the filter before the first runtime is built",
            std::io::Error::last_os_error()
        );
    }

    fn membarrier(command: i32) -> bool {
        // SAFETY: the call touches no memory of ours.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
mod system {
    pub(super) fn register() -> bool {
        false
    }

    pub(super) fn barrier() {
        unreachable!("nothing has registered")
    }
}
