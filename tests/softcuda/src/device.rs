//! The devices and their attributes.

use crate::abi::CUdevice;
use crate::errors::{Code, Outcome};
use crate::plan;

/// The name of every device.
pub(crate) const NAME: &str = "software CUDA driver (not a GPU)";

/// Maximum threads per block.
pub(crate) const MAX_THREADS: u32 = 1024;
/// Maximum threads along each axis of a block.
pub(crate) const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
/// Maximum blocks along each axis of a grid.
pub(crate) const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65535, 65535];
/// Maximum shared memory per block, in bytes, without opt-in by a function attribute.
pub(crate) const SHARED_BYTES: u32 = 48 << 10;
/// Maximum shared memory per block, in bytes, with opt-in.
pub(crate) const SHARED_OPTIN_BYTES: u32 = 99 << 10;
/// The number of multiprocessors that a device reports.
pub(crate) const MULTIPROCESSORS: u32 = 16;
/// Maximum threads per multiprocessor.
pub(crate) const THREADS_PER_MULTIPROCESSOR: u32 = 2048;
/// The least and the greatest priority of a stream.
pub(crate) const PRIORITIES: [i32; 2] = [0, -5];

/// Returns the index of a device, if it exists.
pub(crate) fn checked(device: CUdevice) -> Outcome<u32> {
    match usize::try_from(device) {
        Ok(index) if index < plan::get().devices.len() => Ok(index as u32),
        _ => Err(Code::INVALID_DEVICE.into()),
    }
}

/// Returns a device's physical number, which `CUDA_VISIBLE_DEVICES` does not change.
pub(crate) fn physical(device: u32) -> u32 {
    plan::get().devices.get(device as usize).copied().unwrap_or(device)
}

/// Returns the UUID of the device with that physical number.
pub(crate) fn uuid(physical: u32) -> [u8; 16] {
    let mut uuid = *b"\x50softcuda-gpu-\0\0";
    // The factor makes the UUIDs of two devices differ from the first byte on.
    uuid[0] = uuid[0].wrapping_add((physical as u8).wrapping_mul(0x1d));
    uuid[15] = physical as u8;
    uuid
}

/// Returns a device's UUID in the format of `nvidia-smi`.
pub(crate) fn uuid_text(physical: u32) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let uuid = uuid(physical);
    let (a, b, c, d, e) = (&uuid[..4], &uuid[4..6], &uuid[6..8], &uuid[8..10], &uuid[10..]);
    format!("GPU-{}-{}-{}-{}-{}", hex(a), hex(b), hex(c), hex(d), hex(e))
}

/// Returns a device's invented address on the PCI bus.
pub(crate) fn bus_id(device: u32) -> String {
    format!("0000:{:02X}:00.0", physical(device) + 1)
}

/// Returns true if blocks may be launched in clusters.
pub(crate) fn has_clusters() -> bool {
    plan::get().capability >= (9, 0)
}

/// Returns the value of a `CUdevice_attribute`: 0 for a feature that these devices lack.
pub(crate) fn attribute(device: u32, attribute: i32) -> Outcome<i32> {
    let plan = plan::get();
    let (memops, register) = (plan.memops as i32, plan.register as i32);
    Ok(match attribute {
        1 => MAX_THREADS as i32,
        2..=4 => MAX_BLOCK[attribute as usize - 2] as i32,
        5..=7 => MAX_GRID[attribute as usize - 5] as i32,
        8 => SHARED_BYTES as i32,
        9 => 64 << 10,
        10 => 32,
        11 => i32::MAX,
        12 | 82 => 64 << 10,
        13 | 36 => 1_000_000,
        14 => 512,
        16 => MULTIPROCESSORS as i32,
        // Overlap, mapped host memory, concurrent kernels, unified addressing, stream priorities.
        15 | 19 | 31 | 41 | 78 => 1,
        33 => physical(device) as i32 + 1,
        37 => 256,
        38 => 4 << 20,
        39 => THREADS_PER_MULTIPROCESSOR as i32,
        40 => 2,
        51 => 32,
        75 => plan.capability.0 as i32,
        76 => plan.capability.1 as i32,
        81 => 100 << 10,
        // Managed memory, concurrent access to it by host and device.
        83 | 89 => 1,
        // Use of registered memory by its host pointer, registration of host memory.
        91 | 99 => register,
        102 => plan.virtual_memory as i32,
        // Cooperative launches, memory pools.
        95 | 115 => 1,
        // Version 1 of stream memory operations (the entry points without `_v2`).
        92..=94 => 0,
        122 => memops,
        123 => 0,
        97 => SHARED_OPTIN_BYTES as i32,
        106 => 32,
        111 => 1024,
        120 => has_clusters() as i32,
        _ if (1..=150).contains(&attribute) => 0,
        _ => return Err(Code::INVALID_VALUE.into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_have_the_usual_shape() {
        let text = uuid_text(0);
        assert_eq!(text.len(), 40);
        assert_eq!(text.matches('-').count(), 5);
        assert_ne!(uuid_text(0), uuid_text(1));
    }
}
