//! The memory pool of each device, for stream-ordered allocations. A pool keeps no freed memory, so
//! its settings have no effect.

use crate::abi::CUmemoryPool;
use crate::device;
use crate::errors::{Code, Outcome, refuse};
use crate::memory;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// The kind in a pool's handle, at the place where other handles have theirs.
const KIND: u64 = 9 << 56;
/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`: the last attribute that accepts any value.
const RELEASE_THRESHOLD: i32 = 4;

/// The attributes that callers have set, by pool and attribute.
static SETTINGS: Mutex<BTreeMap<(u64, i32), u64>> = Mutex::new(BTreeMap::new());

/// Returns a device's pool.
pub(crate) fn of_device(device: u32) -> CUmemoryPool {
    CUmemoryPool(KIND | (device as u64 + 1))
}

/// Returns the device of a pool.
pub(crate) fn device_of(pool: CUmemoryPool) -> Outcome<u32> {
    let ordinal = (pool.0 as u32 as i32).wrapping_sub(1);
    match device::checked(ordinal) {
        Ok(device) if of_device(device) == pool => Ok(device),
        _ => refuse!(INVALID_VALUE, "{:#x} is not a pool", pool.0),
    }
}

/// Returns a `CUmemPool_attribute` of a pool.
pub(crate) fn attribute(pool: CUmemoryPool, attribute: i32) -> Outcome<u64> {
    let (free, total) = memory::info(device_of(pool)?)?;
    match attribute {
        1..=3 => Ok(*SETTINGS.lock().get(&(pool.0, attribute)).unwrap_or(&1)),
        RELEASE_THRESHOLD => Ok(*SETTINGS.lock().get(&(pool.0, attribute)).unwrap_or(&0)),
        5..=8 => Ok((total - free) as u64),
        _ => Err(Code::INVALID_VALUE.into()),
    }
}

/// Sets an attribute of a pool, or resets a high-water mark to 0.
pub(crate) fn set_attribute(pool: CUmemoryPool, attribute: i32, value: u64) -> Outcome {
    device_of(pool)?;
    match attribute {
        1..=RELEASE_THRESHOLD => drop(SETTINGS.lock().insert((pool.0, attribute), value)),
        6 | 8 if value == 0 => {}
        _ => refuse!(INVALID_VALUE, "pool attribute {attribute} cannot be {value}"),
    }
    Ok(())
}
