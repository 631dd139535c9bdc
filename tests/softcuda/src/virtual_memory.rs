//! Virtual memory: addresses that a call reserves, and device memory that other calls map there.
//!
//! # Rules
//! 1. Reserved addresses belong to no device. As in `memory.rs`, the host cannot access them, and
//!    behind them, at a fixed distance, is memory that it can access.
//! 2. A mapping is an allocation of its own, found by any of its addresses.
//! 3. Bytes of a device count as taken from the creation of a handle until the handle is released
//!    and its mapping has ended.
//! 4. The memory of a handle is behind the addresses where it is mapped, so it cannot be mapped
//!    anywhere else, then or later.
//! 5. No call here waits for work, except unmapping, which waits until no running work touches the
//!    memory. If queued or running work does, its context is lost.
//! 6. Each call holds the lock of the records, also while it poisons contexts. No code that has a
//!    stream's lock takes it.

use crate::abi::{CUdeviceptr, MemAccess, MemHandle, MemLocation, MemProperties};
use crate::arena::{CHUNK, Gaps};
use crate::context;
use crate::device;
use crate::errors::{Code, Outcome, refuse};
use crate::host;
use crate::memory::{self, Allocation};
use crate::plan;
use crate::work::HostRange;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// `CU_MEM_ALLOCATION_TYPE_PINNED`
const PINNED: u32 = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`
const ON_DEVICE: u32 = 1;
/// `CU_MEM_LOCATION_TYPE_HOST`, `…_HOST_NUMA` and `…_HOST_NUMA_CURRENT`
const ON_HOST: std::ops::RangeInclusive<u32> = 2..=4;
/// `CU_MEM_ACCESS_FLAGS_PROT_NONE`, `…_READ` and `…_READWRITE`
const NO_ACCESS: u32 = 0;
const READ: u32 = 1;
const READ_AND_WRITE: u32 = 3;
/// The addresses that can be reserved, as a multiple of the memory of all devices.
const ROOM: u64 = 64;
/// The most addresses that can be reserved. Twice as many are a quarter of a process's addresses.
const MOST_ROOM: u64 = 1 << 44;

/// The addresses that can be reserved. The memory behind them takes as many addresses again.
struct Area {
    base: u64,
    len: u64,
    /// The numbers of the mappings in each chunk, from 1; 0 means none.
    chunks: Box<[AtomicU32]>,
}

/// The memory that a handle names.
struct Memory {
    device: u32,
    len: u64,
    was_mapped: bool,
    is_mapped: bool,
    is_released: bool,
}

struct Mapping {
    allocation: &'static Allocation,
    handle: MemHandle,
}

struct Records {
    gaps: Gaps,
    /// The reserved ranges: start and length.
    reserved: BTreeMap<u64, u64>,
    mapped: BTreeMap<u64, Mapping>,
    memory: BTreeMap<MemHandle, Memory>,
}

static AREA: OnceLock<Area> = OnceLock::new();
static RECORDS: Mutex<Records> = Mutex::new(Records {
    gaps: Gaps::none(),
    reserved: BTreeMap::new(),
    mapped: BTreeMap::new(),
    memory: BTreeMap::new(),
});

/// Refuses a call of a driver without virtual memory, and one whose context is lost.
pub(crate) fn refuse_without() -> Outcome {
    if !plan::get().virtual_memory {
        refuse!(NOT_SUPPORTED, "SOFTCUDA_VIRTUAL_MEMORY is 0");
    }
    // Without a current context the calls work too.
    context::current_if_any().map_or(Ok(()), |context| context.usable())
}

impl Area {
    /// Takes the addresses from the system and adds them to the gaps.
    fn open(gaps: &mut Gaps) -> Outcome<Area> {
        let plan = plan::get();
        let wanted = plan.memory_bytes * plan.devices.len() as u64 * ROOM + (1 << 30);
        let len = wanted.next_multiple_of(CHUNK).min(MOST_ROOM);
        // SAFETY: a new private mapping at an address that the system chooses replaces no other.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                (2 * len + CHUNK) as usize,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            refuse!(OUT_OF_MEMORY, "no {len} addresses to be had");
        }
        let base = (start as u64).next_multiple_of(CHUNK);
        let behind = (base + len) as *mut _;
        // SAFETY: the range is the second half of the mapping made above, which nothing uses yet.
        if unsafe { libc::mprotect(behind, len as usize, libc::PROT_READ | libc::PROT_WRITE) } != 0 {
            refuse!(OUT_OF_MEMORY, "no memory to be had");
        }
        gaps.give(0, len);
        Ok(Area { base, len, chunks: (0..len / CHUNK).map(|_| AtomicU32::new(0)).collect() })
    }

    fn chunks(&self, start: u64, len: u64) -> &[AtomicU32] {
        let first = ((start - self.base) / CHUNK) as usize;
        &self.chunks[first..first + (len / CHUNK) as usize]
    }
}

/// Returns the number of the mapping that contains an address, from 1; 0 if nothing is mapped
/// there. `None` for an address that cannot be reserved.
#[inline]
pub(crate) fn number_at(address: u64) -> Option<u32> {
    let area = AREA.get()?;
    let place = address.checked_sub(area.base)?;
    Some(area.chunks.get((place / CHUNK) as usize)?.load(Ordering::Acquire))
}

/// Returns the host address of the memory behind an address that can be reserved.
#[inline]
pub(crate) fn behind(address: u64) -> Option<u64> {
    let area = AREA.get()?;
    (address.checked_sub(area.base)? < area.len).then_some(address + area.len)
}

/// Returns the address that has a host address behind it.
pub(crate) fn before(behind: u64) -> Option<u64> {
    let area = AREA.get()?;
    let address = behind.checked_sub(area.len)?;
    (address.checked_sub(area.base)? < area.len).then_some(address)
}

/// Returns the device of a location.
fn device_at(location: MemLocation) -> Outcome<u32> {
    match location.kind {
        ON_DEVICE => device::checked(location.id),
        kind if ON_HOST.contains(&kind) => refuse!(NOT_SUPPORTED, "a location on the host, of type {kind}"),
        kind => refuse!(INVALID_VALUE, "a location of type {kind}"),
    }
}

/// Returns the device of memory with these properties.
pub(crate) fn device_of(properties: &MemProperties) -> Outcome<u32> {
    if properties.kind != PINNED {
        refuse!(INVALID_VALUE, "memory of type {}", properties.kind);
    }
    if properties.shared_as != 0 || properties.direct_rdma != 0 || properties.usage != 0 {
        refuse!(NOT_SUPPORTED, "memory for other processes, other devices or special uses");
    }
    device_at(properties.location)
}

/// Refuses a number that is 0 or no multiple of the granularity.
fn check_unit(number: u64, what: &str) -> Outcome {
    if number == 0 || !number.is_multiple_of(CHUNK) {
        refuse!(INVALID_VALUE, "the {what}, {number:#x}, is no multiple of the granularity, {CHUNK:#x}");
    }
    Ok(())
}

/// Reserves addresses.
pub(crate) fn reserve(len: u64, align: u64) -> Outcome<CUdeviceptr> {
    check_unit(len, "size")?;
    if align != 0 && !align.is_power_of_two() {
        refuse!(INVALID_VALUE, "the alignment, {align:#x}, is no power of two");
    }
    if align > CHUNK {
        refuse!(NOT_SUPPORTED, "an alignment of {align:#x}");
    }
    let mut records = RECORDS.lock();
    let area = match AREA.get() {
        Some(area) => area,
        None => {
            let area = Area::open(&mut records.gaps)?;
            AREA.get_or_init(|| area)
        }
    };
    let Some(place) = records.gaps.take(len, CHUNK) else {
        refuse!(OUT_OF_MEMORY, "no {len:#x} addresses are free in one piece");
    };
    records.reserved.insert(area.base + place, len);
    Ok(area.base + place)
}

/// Ends a reservation.
pub(crate) fn unreserve(start: CUdeviceptr, len: u64) -> Outcome {
    let mut records = RECORDS.lock();
    if records.reserved.get(&start) != Some(&len) {
        refuse!(INVALID_VALUE, "{len:#x} bytes at {start:#x} are no whole reservation");
    }
    if let Some((mapped, _)) = records.mapped.range(start..start + len).next() {
        refuse!(INVALID_VALUE, "memory is mapped at {mapped:#x}, in the reservation");
    }
    records.reserved.remove(&start);
    let base = AREA.get().map_or(0, |area| area.base);
    records.gaps.give(start - base, len);
    Ok(())
}

/// Creates memory on a device.
pub(crate) fn create(device: u32, len: u64) -> Outcome<MemHandle> {
    check_unit(len, "size")?;
    if !memory::take_bytes(device, len)? {
        return Err(Code::OUT_OF_MEMORY.into());
    }
    let handle = memory::new_serial();
    let memory = Memory { device, len, was_mapped: false, is_mapped: false, is_released: false };
    RECORDS.lock().memory.insert(handle, memory);
    Ok(handle)
}

/// Releases a handle.
pub(crate) fn release(handle: MemHandle) -> Outcome {
    let mut records = RECORDS.lock();
    records.memory(handle)?;
    records.end_use(handle, |memory| memory.is_released = true);
    Ok(())
}

impl Records {
    /// Returns the memory of a handle that is not released.
    fn memory(&mut self, handle: MemHandle) -> Outcome<&mut Memory> {
        match self.memory.get_mut(&handle) {
            Some(memory) if !memory.is_released => Ok(memory),
            _ => refuse!(INVALID_VALUE, "the handle {handle:#x} is not live"),
        }
    }

    /// Changes the memory of a handle, and frees it if nothing needs it any more.
    fn end_use(&mut self, handle: MemHandle, end: impl FnOnce(&mut Memory)) {
        let Some(memory) = self.memory.get_mut(&handle) else { return };
        end(memory);
        if memory.is_released && !memory.is_mapped {
            memory::give_bytes(memory.device, memory.len);
            self.memory.remove(&handle);
        }
    }

    /// Returns the starts of the mappings that together are exactly this range.
    fn whole(&self, start: u64, len: u64) -> Outcome<Vec<u64>> {
        check_unit(start, "address")?;
        check_unit(len, "size")?;
        let (mut starts, mut at) = (Vec::new(), start);
        while let Some(mapping) = self.mapped.get(&at).filter(|_| at - start < len) {
            starts.push(at);
            at += mapping.allocation.len();
        }
        if at - start != len {
            refuse!(INVALID_VALUE, "{len:#x} bytes at {start:#x} are not whole mappings");
        }
        Ok(starts)
    }
}

/// Maps the memory of a handle to reserved addresses.
pub(crate) fn map(start: CUdeviceptr, len: u64, handle: MemHandle) -> Outcome {
    check_unit(start, "address")?;
    check_unit(len, "size")?;
    let mut records = RECORDS.lock();
    let end = start.checked_add(len).ok_or(Code::INVALID_VALUE)?;
    let reservation = records.reserved.range(..=start).next_back();
    let Some(area) = AREA.get().filter(|_| reservation.is_some_and(|(at, len)| end <= at + len)) else {
        refuse!(INVALID_VALUE, "{len:#x} bytes at {start:#x} are not in one reservation");
    };
    if let Some((at, mapping)) = records.mapped.range(..end).next_back()
        && at + mapping.allocation.len() > start
    {
        refuse!(INVALID_VALUE, "memory is mapped at {at:#x} already");
    }
    let memory = records.memory(handle)?;
    if len > memory.len {
        refuse!(INVALID_VALUE, "the handle has {:#x} bytes, not {len:#x}", memory.len);
    }
    if len < memory.len || memory.was_mapped {
        refuse!(NOT_SUPPORTED, "a handle is mapped once only, and whole");
    }
    (memory.was_mapped, memory.is_mapped) = (true, true);
    let allocation = memory::new_allocation(memory.device, None, start, len);
    for chunk in area.chunks(start, len) {
        chunk.store(allocation.number() + 1, Ordering::Release);
    }
    memory::fill_with_junk(start + area.len, len as usize);
    records.mapped.insert(start, Mapping { allocation, handle });
    Ok(())
}

/// Ends whole mappings.
pub(crate) fn unmap(start: CUdeviceptr, len: u64) -> Outcome {
    let mut records = RECORDS.lock();
    let starts = records.whole(start, len)?;
    let Some(area) = AREA.get() else { return Ok(()) };
    for chunk in area.chunks(start, len) {
        chunk.store(0, Ordering::Release);
    }
    let behind = HostRange { start: (start + area.len) as usize, len: len as usize };
    host::punish_users(behind, "mapped device memory");
    memory::return_to_system(behind);
    for mapping in starts.iter().filter_map(|start| records.mapped.remove(start)).collect::<Vec<_>>() {
        memory::recycle(mapping.allocation);
        records.end_use(mapping.handle, |memory| memory.is_mapped = false);
    }
    Ok(())
}

/// Sets the access of devices to whole mappings.
pub(crate) fn set_access(start: CUdeviceptr, len: u64, accesses: &[MemAccess]) -> Outcome {
    let records = RECORDS.lock();
    let starts = records.whole(start, len)?;
    if accesses.is_empty() {
        refuse!(INVALID_VALUE, "no access is given");
    }
    let mappings = || starts.iter().map(|start| records.mapped[start].allocation);
    for access in accesses {
        let device = device_at(access.location)?;
        match access.flags {
            NO_ACCESS | READ_AND_WRITE => {}
            READ => refuse!(NOT_SUPPORTED, "access for reading alone"),
            flags => refuse!(INVALID_VALUE, "access flags {flags:#x}"),
        }
        if !plan::get().peer && mappings().any(|mapping| mapping.device() != device) {
            refuse!(INVALID_DEVICE, "device {device} is no peer of the memory's device");
        }
    }
    for access in accesses {
        mappings().for_each(|mapping| mapping.let_use(access.location.id as u32, access.flags != NO_ACCESS));
    }
    Ok(())
}

/// Returns the access flags of a location for an address.
pub(crate) fn access(address: CUdeviceptr, location: MemLocation) -> Outcome<u64> {
    let device = device_at(location)?;
    match memory::find(address) {
        Some(mapping) if mapping.is_mapped() => {
            Ok(if mapping.lets_use(device) { READ_AND_WRITE } else { NO_ACCESS }.into())
        }
        _ => refuse!(INVALID_VALUE, "nothing is mapped at {address:#x}"),
    }
}
