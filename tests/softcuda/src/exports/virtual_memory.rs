//! Virtual memory.

use crate::abi::{CUdeviceptr, In, MemAccess, MemHandle, MemLocation, MemProperties, Out};
use crate::arena::CHUNK;
use crate::door::exports;
use crate::errors::refuse;
use crate::virtual_memory::{self, refuse_without};

exports! {
    fn cuMemAddressReserve(out: Out<CUdeviceptr>, bytes: usize, align: usize, _hint: CUdeviceptr, flags: u64) {
        refuse_without()?;
        if flags != 0 {
            refuse!(INVALID_VALUE, "flags {flags:#x}");
        }
        out.set(virtual_memory::reserve(bytes as u64, align as u64)?)
    }

    fn cuMemAddressFree(address: CUdeviceptr, bytes: usize) {
        refuse_without()?;
        virtual_memory::unreserve(address, bytes as u64)
    }

    fn cuMemCreate(out: Out<MemHandle>, bytes: usize, properties: In<MemProperties>, flags: u64) {
        refuse_without()?;
        if flags != 0 {
            refuse!(INVALID_VALUE, "flags {flags:#x}");
        }
        let device = virtual_memory::device_of(&properties.get()?)?;
        out.set(virtual_memory::create(device, bytes as u64)?)
    }

    fn cuMemRelease(handle: MemHandle) {
        refuse_without()?;
        virtual_memory::release(handle)
    }

    fn cuMemMap(address: CUdeviceptr, bytes: usize, offset: usize, handle: MemHandle, flags: u64) {
        refuse_without()?;
        if flags != 0 || offset != 0 {
            refuse!(INVALID_VALUE, "offset {offset:#x}, flags {flags:#x}");
        }
        virtual_memory::map(address, bytes as u64, handle)
    }

    fn cuMemUnmap(address: CUdeviceptr, bytes: usize) {
        refuse_without()?;
        virtual_memory::unmap(address, bytes as u64)
    }

    fn cuMemSetAccess(address: CUdeviceptr, bytes: usize, accesses: In<MemAccess>, count: usize) {
        refuse_without()?;
        let accesses: Result<Vec<MemAccess>, _> = (0..count).map(|index| accesses.at(index)).collect();
        virtual_memory::set_access(address, bytes as u64, &accesses?)
    }

    fn cuMemGetAccess(flags: Out<u64>, location: In<MemLocation>, address: CUdeviceptr) {
        refuse_without()?;
        flags.set(virtual_memory::access(address, location.get()?)?)
    }

    fn cuMemGetAllocationGranularity(bytes: Out<usize>, properties: In<MemProperties>, option: u32) {
        refuse_without()?;
        virtual_memory::device_of(&properties.get()?)?;
        if option > 1 {
            refuse!(INVALID_VALUE, "option {option}");
        }
        bytes.set(CHUNK as usize)
    }
}
