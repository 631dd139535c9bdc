//! Initialization, versions, error texts and devices.

use crate::abi::{CUdevice, In, Out, Text, Uuid, put_text};
use crate::device;
use crate::door::{INITIALISED, exports};
use crate::entries::Entry;
use crate::errors::{Code, Outcome, refuse, say};
use crate::symbols::{self, Found};
use crate::{ending, memory, plan};
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::Ordering;

/// Writes the address of an entry point, or null with the reason as a
/// `CUdriverProcAddressQueryResult`.
fn proc_address(
    symbol: Text,
    out: Out<*const c_void>,
    version: c_int,
    flags: u64,
    status: Out<u32>,
) -> Outcome {
    let driver = plan::get().driver_version;
    if version > driver {
        refuse!(INVALID_VALUE, "CUDA {version} is newer than the driver, which has {driver}");
    }
    let (address, reason) = match flags {
        0 | LEGACY_STREAM => match symbols::find(&symbol.get()?, version) {
            Found::Address(address) => (address, 0),
            Found::Missing => (std::ptr::null(), 1),
            Found::Newer => (std::ptr::null(), 2),
        },
        // There is no per-thread default stream.
        PER_THREAD_STREAM => (std::ptr::null(), 1),
        _ => refuse!(INVALID_VALUE, "flags {flags:#x}"),
    };
    status.set_if_asked(reason);
    out.set(address)
}

/// `CU_GET_PROC_ADDRESS_LEGACY_STREAM` and `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`
const LEGACY_STREAM: u64 = 1;
const PER_THREAD_STREAM: u64 = 2;

exports! {
    fn cuInit(flags: u32) {
        if ending::has_ended() {
            return Err(ending::late(Entry::cuInit).into());
        }
        if flags != 0 {
            refuse!(INVALID_VALUE, "flags {flags:#x}");
        }
        if ending::is_forked() {
            refuse!(NOT_INITIALIZED, "the driver was initialized before the process forked; start a new process");
        }
        if !plan::mistakes().is_empty() {
            plan::mistakes().iter().for_each(|mistake| say(mistake));
            return Err(Code::INVALID_VALUE.into());
        }
        if plan::get().devices.is_empty() {
            return Err(Code::NO_DEVICE.into());
        }
        memory::init()?;
        ending::register();
        INITIALISED.store(true, Ordering::Release);
        Ok(())
    }

    fn cuDriverGetVersion(version: Out<c_int>) {
        version.set(plan::get().driver_version)
    }

    fn cuGetProcAddress(symbol: Text, out: Out<*const c_void>, version: c_int, flags: u64) {
        proc_address(symbol, out, version, flags, Out::of(std::ptr::null_mut()))
    }

    fn cuGetProcAddress_v2(
        symbol: Text,
        out: Out<*const c_void>,
        version: c_int,
        flags: u64,
        status: Out<u32>,
    ) {
        proc_address(symbol, out, version, flags, status)
    }

    // NVRTC 13 assumes that the table exists if the library lacks this function.
    fn cuGetExportTable(table: Out<*const c_void>, _id: In<Uuid>) {
        table.set(std::ptr::null())?;
        Err(Code::NOT_FOUND.into())
    }

    fn cuGetErrorName(error: Code, text: Out<*const c_char>) {
        match error.texts() {
            Some((name, _)) => text.set(name.as_ptr()),
            None => {
                text.set_if_asked(std::ptr::null());
                Err(Code::INVALID_VALUE.into())
            }
        }
    }

    fn cuGetErrorString(error: Code, text: Out<*const c_char>) {
        match error.texts() {
            Some((_, sentence)) => text.set(sentence.as_ptr()),
            None => {
                text.set_if_asked(std::ptr::null());
                Err(Code::INVALID_VALUE.into())
            }
        }
    }

    fn cuDeviceGetCount(count: Out<c_int>) {
        count.set(plan::get().devices.len() as c_int)
    }

    fn cuDeviceGet(device: Out<CUdevice>, ordinal: c_int) {
        device.set(device::checked(ordinal)? as CUdevice)
    }

    fn cuDeviceGetName(name: Out<c_char>, len: c_int, device: CUdevice) {
        device::checked(device)?;
        put_text(name, len, device::NAME)
    }

    fn cuDeviceGetUuid(uuid: Out<Uuid>, device: CUdevice) {
        uuid.set(Uuid(device::uuid(device::physical(device::checked(device)?))))
    }

    fn cuDeviceGetUuid_v2(uuid: Out<Uuid>, device: CUdevice) {
        uuid.set(Uuid(device::uuid(device::physical(device::checked(device)?))))
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: CUdevice) {
        bytes.set(memory::info(device::checked(device)?)?.1)
    }

    fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_int, device: CUdevice) {
        value.set(device::attribute(device::checked(device)?, attribute)?)
    }

    fn cuDeviceGetPCIBusId(id: Out<c_char>, len: c_int, device: CUdevice) {
        put_text(id, len, &device::bus_id(device::checked(device)?))
    }

    fn cuDeviceCanAccessPeer(can: Out<c_int>, device: CUdevice, peer: CUdevice) {
        let (device, peer) = (device::checked(device)?, device::checked(peer)?);
        can.set((device != peer && plan::get().peer) as c_int)
    }
}
