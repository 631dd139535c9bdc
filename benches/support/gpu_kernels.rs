//! Kernels for benches on a GPU, in PTX written by hand. PTX ISA 7.0 for Volta is text that every
//! driver in use accepts.
//!
//! The `busy` kernels read `%globaltimer`. It counts nanoseconds in steps of up to a microsecond,
//! so short times are imprecise.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// y[0] ← k · x[0]
pub const TOUCH_TWO: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry touch_two(.param .f32 k, .param .u64 x, .param .u64 y)
{
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    .reg .f32 %f<4>;
    .reg .b64 %rd<5>;
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    or.b32 %r3, %r1, %r2;
    setp.ne.s32 %p1, %r3, 0;
    @%p1 bra DONE;
    ld.param.f32 %f1, [k];
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [y];
    cvta.to.global.u64 %rd3, %rd1;
    cvta.to.global.u64 %rd4, %rd2;
    ld.global.f32 %f2, [%rd3];
    mul.f32 %f3, %f1, %f2;
    st.global.f32 [%rd4], %f3;
DONE:
    ret;
}";

pub const NOTHING: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry nothing()
{
    ret;
}";

pub const BUSY: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry busy(.param .u64 ns)
{
    .reg .pred %p<2>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [ns];
    mov.u64 %rd2, %globaltimer;
LOOP:
    mov.u64 %rd3, %globaltimer;
    sub.u64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p1, %rd4, %rd1;
    @%p1 bra LOOP;
    ret;
}";

/// Stores `value` in host memory as its last action.
pub const BUSY_THEN_TELL: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry busy_then_tell(.param .u64 ns, .param .u64 device, .param .u64 host, .param .u64 value)
{
    .reg .pred %p<2>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [ns];
    mov.u64 %rd2, %globaltimer;
LOOP:
    mov.u64 %rd3, %globaltimer;
    sub.u64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p1, %rd4, %rd1;
    @%p1 bra LOOP;
    ld.param.u64 %rd5, [device];
    ld.param.u64 %rd7, [value];
    cvta.to.global.u64 %rd6, %rd5;
    st.relaxed.sys.global.u64 [%rd6], %rd7;
    ret;
}";

pub const STAMP: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry stamp(.param .u64 at, .param .u64 y)
{
    .reg .b64 %rd<7>;
    mov.u64 %rd1, %globaltimer;
    ld.param.u64 %rd2, [at];
    ld.param.u64 %rd3, [y];
    cvta.to.global.u64 %rd4, %rd3;
    shl.b64 %rd5, %rd2, 3;
    add.s64 %rd6, %rd4, %rd5;
    st.global.u64 [%rd6], %rd1;
    ret;
}";

pub const ADD_ONE: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry add_one(.param .u64 n, .param .u64 times, .param .u64 y)
{
    .reg .pred %p<4>;
    .reg .b32 %r<5>;
    .reg .f32 %f<3>;
    .reg .b64 %rd<12>;
    ld.param.u64 %rd1, [n];
    ld.param.u64 %rd2, [times];
    ld.param.u64 %rd3, [y];
    cvta.to.global.u64 %rd4, %rd3;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mul.wide.u32 %rd5, %r1, %r2;
    cvt.u64.u32 %rd6, %r3;
    add.s64 %rd7, %rd5, %rd6;
    setp.ge.u64 %p1, %rd7, %rd1;
    @%p1 bra DONE;
    shl.b64 %rd8, %rd7, 2;
    add.s64 %rd9, %rd4, %rd8;
    ld.global.f32 %f1, [%rd9];
    mov.u64 %rd10, 0;
LOOP:
    setp.ge.u64 %p2, %rd10, %rd2;
    @%p2 bra STORE;
    add.f32 %f1, %f1, 0f3F800000;
    add.s64 %rd10, %rd10, 1;
    bra LOOP;
STORE:
    st.global.f32 [%rd9], %f1;
DONE:
    ret;
}";

pub const TRAP: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry trap_now()
{
    trap;
    ret;
}";

pub const ILLEGAL: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry illegal_address(.param .u64 to)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [to];
    cvta.to.global.u64 %rd2, %rd1;
    mov.b32 %r1, 1;
    st.global.u32 [%rd2], %r1;
    ret;
}";

fn spin(ns: u64) {
    let since = Instant::now();
    while since.elapsed() < Duration::from_nanos(ns) {
        std::hint::spin_loop();
    }
}

warpline::kernel! {
    /// Computes y[0] ← k · x[0]: the least work that touches two buffers.
    pub unsafe fn touch_two(k: f32, x: &[f32], y: &mut [f32])
    where !x.is_empty(), !y.is_empty()
    {
        ptx: TOUCH_TWO,
        cpu: |k, x, y| y[0] = k * x[0],
    }

    /// Does nothing.
    pub unsafe fn nothing() {
        ptx: NOTHING,
        cpu: || (),
    }

    /// Runs for `ns` nanoseconds.
    pub unsafe fn busy(ns: u64) {
        ptx: BUSY,
        cpu: |ns| spin(ns),
    }

    /// Writes the time of the device, in nanoseconds, to `y[at]`.
    pub unsafe fn stamp(at: u64, y: &mut [u64])
    where (at as usize) < y.len()
    {
        ptx: STAMP,
        cpu: |at, y| {
            let since_1970 = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
            y[at as usize] = since_1970.as_nanos() as u64;
        },
    }

    /// Computes y ← y + 1, `times` times, for any ratio of arithmetic to memory traffic.
    pub unsafe fn add_one(n: u64, times: u64, y: &mut [f32])
    where n as usize <= y.len()
    {
        ptx: ADD_ONE,
        cpu: |n, times, y| y[..n as usize].iter_mut().for_each(|y| for _ in 0..times { *y += 1.0 }),
    }

    /// Runs for `ns` nanoseconds and then stores `value` in host memory.
    ///
    /// The declaration cannot vouch for these addresses. The caller that launches the kernel
    /// guarantees that they are live.
    pub unsafe fn busy_then_tell(ns: u64, device: u64, host: u64, value: u64) {
        ptx: BUSY_THEN_TELL,
        cpu: |ns, _device, host, value| {
            spin(ns);
            // SAFETY: the caller that launches the kernel passes the address of a live word.
            unsafe { &*(host as *const AtomicU64) }.store(value, Ordering::Release);
        },
    }

    /// Faults with a trap, which makes the context unusable.
    pub unsafe fn trap_now() {
        descriptor: TRAP_NOW,
        ptx: TRAP,
        cpu: || panic!("a trap"),
    }

    /// Faults by writing to an unmapped address, which makes the context unusable.
    pub unsafe fn illegal_address(to: u64) {
        descriptor: ILLEGAL_ADDRESS,
        ptx: ILLEGAL,
        cpu: |_to| panic!("an illegal address"),
    }
}
