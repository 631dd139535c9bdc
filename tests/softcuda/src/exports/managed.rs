//! Managed memory.

use crate::abi::{CUdevice, CUdeviceptr, CUstream, MemLocation, Out};
use crate::door::exports;
use crate::errors::refuse;
use crate::managed;

exports! {
    fn cuMemAllocManaged(out: Out<CUdeviceptr>, bytes: usize, flags: u32) {
        out.set(managed::allocate(bytes, flags)?)
    }

    fn cuStreamAttachMemAsync(stream: CUstream, address: CUdeviceptr, bytes: usize, flags: u32) {
        managed::attach(stream, address, bytes, flags)
    }

    fn cuMemPrefetchAsync(address: CUdeviceptr, bytes: usize, to: CUdevice, stream: CUstream) {
        managed::prefetch(address, bytes, managed::location_of(to), stream)
    }

    fn cuMemPrefetchAsync_v2(address: CUdeviceptr, bytes: usize, to: MemLocation, flags: u32, stream: CUstream) {
        if flags != 0 {
            refuse!(INVALID_VALUE, "flags {flags:#x}");
        }
        managed::prefetch(address, bytes, to, stream)
    }

    fn cuMemAdvise(address: CUdeviceptr, bytes: usize, advice: u32, device: CUdevice) {
        managed::advise(address, bytes, advice, managed::location_of(device))
    }

    fn cuMemAdvise_v2(address: CUdeviceptr, bytes: usize, advice: u32, location: MemLocation) {
        managed::advise(address, bytes, advice, location)
    }
}
