//! Contexts.

use crate::abi::{CUcontext, CUdevice, Out};
use crate::device::{self, PRIORITIES};
use crate::door::exports;
use crate::errors::refuse;
use crate::{capture, context};
use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering::Relaxed;

exports! {
    fn cuDevicePrimaryCtxRetain(out: Out<CUcontext>, device: CUdevice) {
        out.set(context::retain_primary(device::checked(device)?))
    }

    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) {
        context::release_primary(device::checked(device)?)
    }

    fn cuDevicePrimaryCtxReset_v2(device: CUdevice) {
        context::reset_primary(device::checked(device)?)
    }

    fn cuDevicePrimaryCtxGetState(device: CUdevice, flags: Out<u32>, active: Out<c_int>) {
        let (now, is_active) = context::primary_state(device::checked(device)?);
        flags.set(now)?;
        active.set(is_active as c_int)
    }

    fn cuCtxGetCurrent(out: Out<CUcontext>) {
        out.set(context::current_handle())
    }

    fn cuCtxSetCurrent(context: CUcontext) {
        context::set_current(context)
    }

    fn cuCtxPushCurrent_v2(context: CUcontext) {
        context::push(context)
    }

    fn cuCtxPopCurrent_v2(out: Out<CUcontext>) {
        out.set_if_asked(context::pop()?);
        Ok(())
    }

    fn cuCtxCreate_v2(out: Out<CUcontext>, flags: u32, device: CUdevice) {
        let device = device::checked(device)?;
        if out.is_null() || flags & !0xff != 0 {
            refuse!(INVALID_VALUE, "flags {flags:#x}");
        }
        out.set(context::create(device, flags))
    }

    fn cuCtxCreate_v3(out: Out<CUcontext>, affinities: *const c_void, count: c_int, flags: u32, device: CUdevice) {
        let device = device::checked(device)?;
        if out.is_null() || !affinities.is_null() || count != 0 || flags & !0xff != 0 {
            refuse!(INVALID_VALUE, "flags {flags:#x}, {count} affinities; there may be none");
        }
        out.set(context::create(device, flags))
    }

    fn cuCtxCreate_v4(out: Out<CUcontext>, params: *const c_void, flags: u32, device: CUdevice) {
        let device = device::checked(device)?;
        if out.is_null() || !params.is_null() || flags & !0xff != 0 {
            refuse!(INVALID_VALUE, "flags {flags:#x}; parameters have to be null");
        }
        out.set(context::create(device, flags))
    }

    fn cuDevicePrimaryCtxSetFlags_v2(device: CUdevice, flags: u32) {
        context::set_primary_flags(device::checked(device)?, flags)
    }

    fn cuCtxSetFlags(flags: u32) {
        context::current()?.flags.store(flags, Relaxed);
        Ok(())
    }

    fn cuCtxGetId(context: CUcontext, id: Out<u64>) {
        match context.0 {
            0 => id.set(context::current()?.handle().0),
            handle => context::named(context).and_then(|_| id.set(handle)),
        }
    }

    fn cuCtxGetCacheConfig(config: Out<u32>) {
        context::current()?;
        config.set(0)
    }

    fn cuCtxSetCacheConfig(_config: u32) {
        context::current().map(drop)
    }

    // They switch a profiling tool on and off, and no tool is attached.
    fn cuProfilerStart() {
        context::current().map(drop)
    }

    fn cuProfilerStop() {
        context::current().map(drop)
    }

    fn cuCtxDestroy_v2(context: CUcontext) {
        context::destroy(context)
    }

    fn cuCtxGetDevice(out: Out<CUdevice>) {
        out.set(context::current()?.device as CUdevice)
    }

    fn cuCtxSynchronize() {
        let context = context::current()?;
        capture::refuse_on_context(context)?;
        context.synchronize()
    }

    fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) {
        context::current()?;
        least.set_if_asked(PRIORITIES[0]);
        greatest.set_if_asked(PRIORITIES[1]);
        Ok(())
    }

    fn cuCtxGetApiVersion(context: CUcontext, version: Out<u32>) {
        match context.0 {
            0 => context::current()?,
            _ => context::named(context)?,
        };
        version.set(3020)
    }

    fn cuCtxGetLimit(value: Out<usize>, limit: u32) {
        value.set(context::current()?.limit(limit)?)
    }

    fn cuCtxSetLimit(limit: u32, value: usize) {
        context::current()?.set_limit(limit, value)
    }

    fn cuCtxGetFlags(flags: Out<u32>) {
        flags.set(context::current()?.flags.load(Relaxed))
    }

    fn cuCtxEnablePeerAccess(peer: CUcontext, flags: u32) {
        let context = context::current()?;
        if flags != 0 {
            refuse!(INVALID_VALUE, "flags {flags:#x}");
        }
        context.enable_peer(context::named(peer)?)
    }

    fn cuCtxDisablePeerAccess(peer: CUcontext) {
        context::current()?.disable_peer(context::named(peer)?)
    }
}
