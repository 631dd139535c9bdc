//! Each device's one pool for allocations in stream order. Nothing is kept in it, so its settings have no effect.

use crate::abi::CUmemoryPool;
use crate::device;
use crate::errors::{Code, Outcome, refuse};
use crate::memory;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// The first byte of a pool's handle, in the place where other handles have their kind.
const KIND: u64 = 9 << 56;
/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`: the last that can be set to anything.
const RELEASE_THRESHOLD: i32 = 4;

/// What was set, by pool and attribute.
static SETTINGS: Mutex<BTreeMap<(u64, i32), u64>> = Mutex::new(BTreeMap::new());

/// A device's pool.
pub(crate) fn of_device(device: u32) -> CUmemoryPool {
    CUmemoryPool(KIND | (device as u64 + 1))
}

/// The device of a pool.
pub(crate) fn device_of(pool: CUmemoryPool) -> Outcome<u32> {
    let ordinal = (pool.0 as u32 as i32).wrapping_sub(1);
    match device::checked(ordinal) {
        Ok(device) if of_device(device) == pool => Ok(device),
        _ => refuse!(INVALID_VALUE, "{:#x} is not a pool", pool.0),
    }
}

/// A `CUmemPool_attribute`.
pub(crate) fn attribute(pool: CUmemoryPool, attribute: i32) -> Outcome<u64> {
    let (free, total) = memory::info(device_of(pool)?)?;
    match attribute {
        1..=3 => Ok(*SETTINGS.lock().get(&(pool.0, attribute)).unwrap_or(&1)),
        RELEASE_THRESHOLD => Ok(*SETTINGS.lock().get(&(pool.0, attribute)).unwrap_or(&0)),
        5..=8 => Ok((total - free) as u64),
        _ => Err(Code::INVALID_VALUE.into()),
    }
}

/// Sets one of those that can be set.
pub(crate) fn set_attribute(pool: CUmemoryPool, attribute: i32, value: u64) -> Outcome {
    device_of(pool)?;
    match attribute {
        1..=RELEASE_THRESHOLD => drop(SETTINGS.lock().insert((pool.0, attribute), value)),
        6 | 8 if value == 0 => {}
        _ => refuse!(INVALID_VALUE, "pool attribute {attribute} cannot be {value}"),
    }
    Ok(())
}
