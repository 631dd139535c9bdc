//! The devices: what they say of themselves.

use crate::abi::CUdevice;
use crate::errors::{Code, Outcome};
use crate::plan;

/// What every device is called.
pub(crate) const NAME: &str = "software CUDA driver (not a GPU)";

/// Threads a block.
pub(crate) const MAX_THREADS: u32 = 1024;
/// Threads along each axis of a block.
pub(crate) const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
/// Blocks along each axis of a grid.
pub(crate) const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65535, 65535];
/// Shared memory of a block that a function need not ask for.
pub(crate) const SHARED_BYTES: u32 = 48 << 10;
/// Shared memory of a block at most.
pub(crate) const SHARED_OPTIN_BYTES: u32 = 99 << 10;
/// Multiprocessors claimed.
pub(crate) const MULTIPROCESSORS: u32 = 16;
/// Threads a multiprocessor.
pub(crate) const THREADS_PER_MULTIPROCESSOR: u32 = 2048;
/// Streams' priorities, from the least to the greatest.
pub(crate) const PRIORITIES: [i32; 2] = [0, -5];

/// The index of a device that exists.
pub(crate) fn checked(device: CUdevice) -> Outcome<u32> {
    match usize::try_from(device) {
        Ok(index) if index < plan::get().devices.len() => Ok(index as u32),
        _ => Err(Code::INVALID_DEVICE.into()),
    }
}

/// The number of a device before `CUDA_VISIBLE_DEVICES`.
pub(crate) fn physical(device: u32) -> u32 {
    plan::get().devices.get(device as usize).copied().unwrap_or(device)
}

/// A device's UUID, of the physical number.
pub(crate) fn uuid(physical: u32) -> [u8; 16] {
    let mut uuid = *b"\x50softcuda-gpu-\0\0";
    // Scattered, so that the UUIDs of two devices differ from the first byte on.
    uuid[0] = uuid[0].wrapping_add((physical as u8).wrapping_mul(0x1d));
    uuid[15] = physical as u8;
    uuid
}

/// A UUID as `nvidia-smi` writes it.
pub(crate) fn uuid_text(physical: u32) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let uuid = uuid(physical);
    let (a, b, c, d, e) = (&uuid[..4], &uuid[4..6], &uuid[6..8], &uuid[8..10], &uuid[10..]);
    format!("GPU-{}-{}-{}-{}-{}", hex(a), hex(b), hex(c), hex(d), hex(e))
}

/// A device's address on a bus that is not there.
pub(crate) fn bus_id(device: u32) -> String {
    format!("0000:{:02X}:00.0", physical(device) + 1)
}

/// Returns whether blocks may be launched in clusters.
pub(crate) fn has_clusters() -> bool {
    plan::get().capability >= (9, 0)
}

/// The value of a `CUdevice_attribute`. What a device like this would not have is 0.
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
        // Managed memory, which host and device may access at the same time.
        83 | 89 => 1,
        // Host pointers of registered memory as device pointers, host registration.
        91 | 99 => register,
        // Cooperative launches, memory pools.
        95 | 115 => 1,
        // Stream memory operations: version 1 (the bare entry points) is not there.
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
