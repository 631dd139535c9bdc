//! The C ABI of the driver API, as far as this library implements it: handles, callers' pointers
//! and structures.
//!
//! It follows CUDA 12's `cuda.h`. Sizes and offsets are those of 64-bit Linux.

use crate::errors::{Code, Outcome};
use std::ffi::{CStr, c_char, c_int, c_void};

/// Declares opaque handles: numbers of kind, generation and slot ([`crate::slab`]), never
/// addresses.
macro_rules! handles {
    ($($name:ident)*) => {$(
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) struct $name(pub(crate) u64);
    )*};
}
handles! { CUcontext CUstream CUevent CUmodule CUfunction CUgraph CUgraphNode CUgraphExec CUmemoryPool CUlibrary CUkernel CUlinkState }

/// An address that device code can use.
pub(crate) type CUdeviceptr = u64;
/// `CUmemGenericAllocationHandle`, a number that is never reused.
pub(crate) type MemHandle = u64;
/// A device's ordinal.
pub(crate) type CUdevice = c_int;

/// A place where the caller wants a value. The caller of the C function promises that the pointer
/// is null or valid for a write.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes the value. Fails with `INVALID_VALUE` if the pointer is null.
    pub(crate) fn set(self, value: T) -> Outcome {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE.into());
        }
        // SAFETY: not null, so the caller of the C function has promised that it is valid for a
        // write.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes the value unless the pointer is null.
    pub(crate) fn set_if_asked(self, value: T) {
        let _ = self.set(value);
    }

    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Writes element `index` of an array that the caller says is longer than that.
    pub(crate) fn set_at(&self, index: usize, value: T) -> Outcome {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE.into());
        }
        // SAFETY: not null, so the caller of the C function has promised an array of more than
        // `index` elements.
        unsafe { self.0.wrapping_add(index).write_unaligned(value) };
        Ok(())
    }

    /// Wraps a pointer that a caller passed inside a value. It is null or valid for a write.
    pub(crate) fn of(place: *mut T) -> Self {
        Out(place)
    }

    /// Changes the type of the value, for types that the caller selects by a number.
    pub(crate) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }

    /// Returns the same place for reading, for values that the caller fills in first.
    pub(crate) fn given(&self) -> In<T> {
        In(self.0.cast_const())
    }

    /// Returns the raw pointer, for the few results that are arrays.
    pub(crate) fn as_ptr(&self) -> *mut T {
        self.0
    }
}

/// A value that the caller passes by address. The pointer is null or valid for a read.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// Returns the value that is not given.
    pub(crate) fn none() -> Self {
        In(std::ptr::null())
    }

    /// Reads the value. Fails with `INVALID_VALUE` if the pointer is null.
    pub(crate) fn get(self) -> Outcome<T> {
        self.at(0)
    }

    /// Changes the type of the value, for types that the caller selects by a number.
    pub(crate) fn cast<U>(self) -> In<U> {
        In(self.0.cast())
    }

    /// Reads element `index` of an array that the caller says is longer than that.
    pub(crate) fn at(self, index: usize) -> Outcome<T> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE.into());
        }
        // SAFETY: not null, so the caller of the C function has promised an array of more than
        // `index` elements.
        Ok(unsafe { self.0.wrapping_add(index).read_unaligned() })
    }

    /// Returns the raw pointer.
    pub(crate) fn as_ptr(self) -> *const T {
        self.0
    }
}

/// A value that the caller passes by address and gets replaced. The pointer is null or valid for a
/// read and a write.
#[repr(transparent)]
pub(crate) struct InOut<T>(*mut T);

impl<T: Copy> InOut<T> {
    /// Reads the caller's value.
    pub(crate) fn get(&self) -> Outcome<T> {
        In(self.0.cast_const()).get()
    }

    /// Writes the value that replaces it.
    pub(crate) fn set(self, value: T) -> Outcome {
        Out(self.0).set(value)
    }
}

/// A caller's C string. The pointer is null or valid.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Text(*const c_char);

impl Text {
    /// Reads the string. Fails with `INVALID_VALUE` if it is null or not UTF-8.
    pub(crate) fn get(self) -> Outcome<String> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE.into());
        }
        // SAFETY: not null, so the caller of the C function has promised a C string there.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_str().map_err(|_| Code::INVALID_VALUE)?.to_owned())
    }
}

/// Writes `text` and a NUL into a caller's buffer of `len` bytes, truncated to fit.
pub(crate) fn put_text(out: Out<c_char>, len: c_int, text: &str) -> Outcome {
    if out.is_null() || len <= 0 {
        return Err(Code::INVALID_VALUE.into());
    }
    let kept = text.len().min(len as usize - 1);
    // SAFETY: the caller promises `len` bytes, and `kept` is less than that.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), out.as_ptr().cast(), kept);
    }
    // SAFETY: the caller promises `len` bytes, and index `kept` is inside them.
    unsafe { out.as_ptr().wrapping_add(kept).write(0) };
    Ok(())
}

/// `CUhostFn`.
pub(crate) type HostFn = unsafe extern "C" fn(*mut c_void);

/// `CUstreamCallback`.
pub(crate) type StreamCallback = unsafe extern "C" fn(CUstream, Code, *mut c_void);

/// `CUoccupancyB2DSize`.
pub(crate) type BlockToShared = unsafe extern "C" fn(c_int) -> usize;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Uuid(pub(crate) [u8; 16]);

pub(crate) const MEMORY_HOST: u32 = 1;
pub(crate) const MEMORY_DEVICE: u32 = 2;
pub(crate) const MEMORY_UNIFIED: u32 = 4;

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Memcpy2D {
    pub(crate) src_x_bytes: usize,
    pub(crate) src_y: usize,
    pub(crate) src_type: u32,
    pub(crate) src_host: usize,
    pub(crate) src_device: CUdeviceptr,
    pub(crate) src_array: usize,
    pub(crate) src_pitch: usize,
    pub(crate) dst_x_bytes: usize,
    pub(crate) dst_y: usize,
    pub(crate) dst_type: u32,
    pub(crate) dst_host: usize,
    pub(crate) dst_device: CUdeviceptr,
    pub(crate) dst_array: usize,
    pub(crate) dst_pitch: usize,
    pub(crate) width_bytes: usize,
    pub(crate) height: usize,
}

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct MemLocation {
    pub(crate) kind: u32,
    pub(crate) id: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct MemProperties {
    pub(crate) kind: u32,
    /// The types of handles that other processes can import.
    pub(crate) shared_as: u32,
    pub(crate) location: MemLocation,
    pub(crate) win32_data: usize,
    /// Nonzero if the memory is compressible.
    pub(crate) compression: u8,
    /// Nonzero if other devices on the bus may access the memory.
    pub(crate) direct_rdma: u8,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 4],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct MemAccess {
    pub(crate) location: MemLocation,
    pub(crate) flags: u32,
}

/// One end of a `CUDA_MEMCPY3D_PEER`. That structure has the source's fields, then the
/// destination's.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PeerEnd {
    pub(crate) x_bytes: usize,
    pub(crate) y: usize,
    pub(crate) z: usize,
    pub(crate) lod: usize,
    pub(crate) kind: u32,
    pub(crate) host: usize,
    pub(crate) device: CUdeviceptr,
    pub(crate) array: usize,
    pub(crate) context: CUcontext,
    pub(crate) pitch: usize,
    pub(crate) height: usize,
}

/// `CUDA_MEMCPY3D_PEER`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Memcpy3DPeer {
    pub(crate) src: PeerEnd,
    pub(crate) dst: PeerEnd,
    pub(crate) width_bytes: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
}

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct LaunchConfig {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    pub(crate) stream: CUstream,
    pub(crate) attributes: In<LaunchAttribute>,
    pub(crate) attribute_count: u32,
}

/// `CUlaunchAttribute`; the value's union is 64 bytes long.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct LaunchAttribute {
    pub(crate) id: u32,
    pub(crate) pad: u32,
    pub(crate) value: [u32; 16],
}

/// `CUgraphExecUpdateResultInfo`. The nodes are always null: this library does not report them.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct GraphUpdate {
    pub(crate) result: u32,
    pub(crate) error_node: CUgraphNode,
    pub(crate) error_from_node: CUgraphNode,
}

const _: () = {
    assert!(size_of::<GraphUpdate>() == 24);
    assert!(size_of::<MemLocation>() == 8);
    assert!(size_of::<MemProperties>() == 32);
    assert!(size_of::<MemAccess>() == 12);
    assert!(size_of::<Memcpy2D>() == 128);
    assert!(size_of::<PeerEnd>() == 88);
    assert!(size_of::<Memcpy3DPeer>() == 200);
    assert!(size_of::<LaunchConfig>() == 56);
    assert!(size_of::<LaunchAttribute>() == 72);
};
