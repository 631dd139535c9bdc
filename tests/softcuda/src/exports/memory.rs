//! Device memory and page-locked host memory.

use crate::abi::{
    CUcontext, CUdevice, CUdeviceptr, CUmemoryPool, CUstream, In, MEMORY_DEVICE, MEMORY_HOST, Out,
};
use crate::door::exports;
use crate::errors::{Code, Outcome, refuse};
use crate::host::Whole;
use crate::work::Work;
use crate::{capture, context, device, host, managed, memory, plan, pool, stream};
use std::ffi::{c_int, c_void};

/// The properties of an address that the driver knows.
struct About {
    context: CUcontext,
    device: u32,
    kind: u32,
    start: u64,
    len: usize,
    host: Option<u64>,
    is_managed: bool,
}

fn about(address: u64) -> Outcome<About> {
    let found = |context: CUcontext, device, kind, start, len, host| About {
        context,
        device,
        kind,
        start,
        len,
        host,
        is_managed: false,
    };
    if let Some(allocation) = memory::find(address) {
        let (start, len) = (allocation.start(), allocation.len() as usize);
        let context = allocation.context().map_or(CUcontext(0), context::Context::handle);
        return Ok(found(context, allocation.device(), MEMORY_DEVICE, start, len, None));
    }
    match host::whole(address as usize) {
        Some(Whole { start, len, context, is_managed }) => {
            let kind = if is_managed { MEMORY_DEVICE } else { MEMORY_HOST };
            let whole = found(context.handle(), context.device, kind, start as u64, len, Some(address));
            Ok(About { is_managed, ..whole })
        }
        None => Err(Code::INVALID_VALUE.into()),
    }
}

fn tell(about: &About, attribute: c_int, address: u64, out: Out<c_void>) -> Outcome {
    match attribute {
        1 => out.cast().set(about.context),
        2 => out.cast().set(about.kind),
        3 => out.cast().set(address),
        4 => match about.host {
            Some(host) => out.cast().set(host),
            None => Err(Code::INVALID_VALUE.into()),
        },
        7 | 11 => out.cast().set(about.start),
        // In confidential computing mode, page-locked memory is managed memory too.
        8 => out.cast().set((about.is_managed || about.host.is_some() && plan::get().confidential) as u8),
        9 => out.cast().set(about.device),
        12 => out.cast().set(about.len),
        13 => out.cast().set(1u8),
        _ => refuse!(NOT_SUPPORTED, "pointer attribute {attribute}"),
    }
}

/// Writes the answer for an address that the driver does not know: null or 0.
fn tell_nothing(attribute: c_int, out: Out<c_void>) -> Outcome {
    match attribute {
        1 | 3 | 4 | 7 | 11 | 12 => out.cast().set(0u64),
        2 | 9 => out.cast().set(0u32),
        _ => out.cast().set(0u8),
    }
}

fn free(address: CUdeviceptr, in_order_of: Option<CUstream>) -> Outcome {
    let current = context::current()?;
    if address == 0 {
        return Ok(());
    }
    if in_order_of.is_none() && managed::free(address)? {
        return Ok(());
    }
    let allocation = memory::to_free(address)?;
    let ended = || match memory::begin_free(allocation) {
        true => Ok(()),
        false => refuse!(INVALID_VALUE, "{address:#x} is being freed already"),
    };
    match in_order_of {
        Some(on) => {
            let stream = stream::named(on)?;
            capture::refuse_uncaptured(stream, "the end of an allocation")?;
            ended()?;
            if plan::get().immediate {
                memory::release(allocation);
                return Ok(());
            }
            stream.enqueue(Work::Free(allocation))?;
        }
        None => {
            capture::refuse_unsafe()?;
            let owner = allocation.context().unwrap_or(current);
            ended()?;
            owner.synchronize()?;
            if !std::ptr::eq(owner, current) {
                current.synchronize()?;
            }
            memory::release(allocation);
        }
    }
    Ok(())
}

exports! {
    fn cuMemAlloc_v2(out: Out<CUdeviceptr>, bytes: usize) {
        let context = context::current()?;
        capture::refuse_unsafe()?;
        context.synchronize_if_asked("cuMemAlloc")?;
        out.set(memory::allocate(context, bytes)?)
    }

    fn cuMemFree_v2(address: CUdeviceptr) {
        free(address, None)
    }

    fn cuMemAllocAsync(out: Out<CUdeviceptr>, bytes: usize, stream: CUstream) {
        let stream = stream::named(stream)?;
        capture::refuse_uncaptured(stream, "an allocation")?;
        out.set(memory::allocate(stream.context(), bytes)?)
    }

    fn cuMemAllocFromPoolAsync(out: Out<CUdeviceptr>, bytes: usize, pool: CUmemoryPool, stream: CUstream) {
        let stream = stream::named(stream)?;
        if pool::device_of(pool)? != stream.context().device {
            refuse!(INVALID_VALUE, "the pool and the stream are of different devices");
        }
        capture::refuse_uncaptured(stream, "an allocation")?;
        out.set(memory::allocate(stream.context(), bytes)?)
    }

    fn cuDeviceGetDefaultMemPool(out: Out<CUmemoryPool>, device: CUdevice) {
        out.set(pool::of_device(device::checked(device)?))
    }

    fn cuDeviceGetMemPool(out: Out<CUmemoryPool>, device: CUdevice) {
        out.set(pool::of_device(device::checked(device)?))
    }

    fn cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: c_int, value: Out<c_void>) {
        capture::refuse_unsafe()?;
        match pool::attribute(pool, attribute)? {
            flag if attribute <= 3 => value.cast().set(flag as c_int),
            bytes => value.cast().set(bytes),
        }
    }

    fn cuMemPoolSetAttribute(pool: CUmemoryPool, attribute: c_int, value: In<c_int>) {
        capture::refuse_unsafe()?;
        match attribute {
            1..=3 => pool::set_attribute(pool, attribute, value.get()? as u64),
            _ => pool::set_attribute(pool, attribute, value.cast().get()?),
        }
    }

    fn cuMemPoolTrimTo(pool: CUmemoryPool, _bytes_to_keep: usize) {
        pool::device_of(pool).map(drop)
    }

    fn cuMemGetAddressRange_v2(start: Out<CUdeviceptr>, bytes: Out<usize>, address: CUdeviceptr) {
        context::current()?;
        // All memory that a device can reach by this address, also page-locked memory.
        match about(address) {
            Ok(about) if about.kind == MEMORY_DEVICE || host::device_pointer(address as usize).is_ok() => {
                start.set_if_asked(about.start);
                bytes.set_if_asked(about.len);
                Ok(())
            }
            _ => Err(Code::NOT_FOUND.into()),
        }
    }

    fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream) {
        if address == 0 {
            return Err(Code::INVALID_VALUE.into());
        }
        free(address, Some(stream))
    }

    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let (free_bytes, total_bytes) = memory::info(context::current()?.device)?;
        free.set(free_bytes)?;
        total.set(total_bytes)
    }

    fn cuMemHostAlloc(out: Out<*mut c_void>, bytes: usize, flags: u32) {
        capture::refuse_unsafe()?;
        out.set(host::allocate(bytes, flags)?)
    }

    fn cuMemAllocHost_v2(out: Out<*mut c_void>, bytes: usize) {
        capture::refuse_unsafe()?;
        out.set(host::allocate(bytes, 0)?)
    }

    fn cuMemFreeHost(address: *mut c_void) {
        capture::refuse_unsafe()?;
        host::free(address as usize)
    }

    fn cuMemHostRegister_v2(address: *mut c_void, bytes: usize, flags: u32) {
        capture::refuse_unsafe()?;
        host::register(address as usize, bytes, flags)
    }

    fn cuMemHostUnregister(address: *mut c_void) {
        capture::refuse_unsafe()?;
        host::unregister(address as usize)
    }

    fn cuMemHostGetDevicePointer_v2(out: Out<CUdeviceptr>, address: *mut c_void, flags: u32) {
        if flags != 0 {
            refuse!(INVALID_VALUE, "flags {flags:#x}");
        }
        out.set(host::device_pointer(address as usize)?)
    }

    fn cuMemHostGetFlags(out: Out<u32>, address: *mut c_void) {
        out.set(host::flags(address as usize)?)
    }

    fn cuPointerGetAttribute(out: Out<c_void>, attribute: c_int, address: CUdeviceptr) {
        context::current()?;
        tell(&about(address)?, attribute, address, out)
    }

    fn cuPointerGetAttributes(count: u32, attributes: In<c_int>, out: In<*mut c_void>, address: CUdeviceptr) {
        context::current()?;
        // For an address that the driver does not know, the call succeeds and answers null or 0.
        let about = about(address).ok();
        for index in 0..count as usize {
            let (attribute, place) = (attributes.at(index)?, Out::of(out.at(index)?));
            match &about {
                Some(About { host: None, .. }) if attribute == 4 => place.cast().set(0u64)?,
                Some(about) => tell(about, attribute, address, place)?,
                None => tell_nothing(attribute, place)?,
            }
        }
        Ok(())
    }
}
