//! CUDA's entry points for virtual memory, and the descriptions that they take.

use crate::api::{Answer, CUdevice, CUdeviceptr, Failed, optional};
use cudarc::driver::sys;
use std::ffi::{c_uint, c_ulonglong};
use std::sync::OnceLock;

pub(super) type Handle = sys::CUmemGenericAllocationHandle;

/// Declares the table of entry points, each as `fn cuName(argument: Type, …);`.
macro_rules! optional_entry_points {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?);)*) => {
        /// CUDA's entry points for virtual memory.
        #[allow(non_snake_case, reason = "they are called so")]
        pub(super) struct Calls {
            $($name: unsafe extern "C" fn($($type),*) -> u32,)*
        }

        impl Calls {
            /// Looks up every entry point. Returns `None` if the library lacks one.
            fn look_up() -> Option<Self> {
                Some(Calls {
                    $(
                        // SAFETY: the library's entry point has the type of the CUDA Driver API's
                        // header, which the table repeats.
                        $name: unsafe { optional(stringify!($name)) }?,
                    )*
                })
            }

            $(
                /// # Safety
                /// The caller keeps the CUDA Driver API's rules for this entry point.
                #[allow(non_snake_case, reason = "as the driver has it")]
                pub(super) unsafe fn $name(&self, $($argument: $type),*) -> Answer {
                    // SAFETY: the caller keeps the rules of this entry point.
                    let code = unsafe { (self.$name)($($argument),*) };
                    if code == 0 { Ok(()) } else { Err(Failed { call: stringify!($name), code }) }
                }
            )*
        }
    };
}

optional_entry_points! {
    fn cuMemGetAllocationGranularity(bytes: *mut usize, of: *const sys::CUmemAllocationProp, option: c_uint);
    fn cuMemAddressReserve(
        address: *mut CUdeviceptr, bytes: usize, align: usize, hint: CUdeviceptr, flags: c_ulonglong,
    );
    fn cuMemAddressFree(address: CUdeviceptr, bytes: usize);
    fn cuMemCreate(
        handle: *mut Handle, bytes: usize, of: *const sys::CUmemAllocationProp, flags: c_ulonglong,
    );
    fn cuMemRelease(handle: Handle);
    fn cuMemMap(address: CUdeviceptr, bytes: usize, offset: usize, handle: Handle, flags: c_ulonglong);
    fn cuMemUnmap(address: CUdeviceptr, bytes: usize);
    fn cuMemSetAccess(address: CUdeviceptr, bytes: usize, access: *const sys::CUmemAccessDesc, count: usize);
}

/// Returns the entry points, or the failure of a library without them.
pub(super) fn calls() -> Answer<&'static Calls> {
    static CALLS: OnceLock<Option<Calls>> = OnceLock::new();
    let calls = CALLS.get_or_init(Calls::look_up).as_ref();
    calls.ok_or(Failed { call: "cuMemAddressReserve", code: Failed::NOT_SUPPORTED })
}

/// Describes page-locked memory of a device. With `direct_rdma` other devices on the bus can reach
/// it.
pub(super) fn memory_of(device: CUdevice, direct_rdma: bool) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: on_device(device),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: direct_rdma.into(),
            usage: 0,
            reserved: [0; 4],
        },
    }
}

fn on_device(id: CUdevice) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id }
}

/// Lets devices use whole mappings.
pub(super) fn let_use(calls: &Calls, (at, len): (CUdeviceptr, usize), devices: &[CUdevice]) -> Answer {
    let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    let access: Vec<_> =
        devices.iter().map(|device| sys::CUmemAccessDesc { location: on_device(*device), flags }).collect();
    // SAFETY: cuMemSetAccess reads as many descriptions as there are. If it takes a range that is
    // no longer mapped, it refuses.
    unsafe { calls.cuMemSetAccess(at, len, access.as_ptr(), access.len()) }
}
