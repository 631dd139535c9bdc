//! The functions that carry out fills on memory.

use warpline_driver::Fill;

/// # Safety
/// All rows are writable, and nothing else touches them during the call.
pub(super) unsafe fn fill_rows(fill: &Fill) {
    let Fill { dst, pitch, width_bytes, height, pattern, pattern_bytes } = *fill;
    let pattern = pattern.to_le_bytes();
    let pattern = &pattern[..usize::from(pattern_bytes)];
    let dst = dst.0 as *mut u8;
    if width_bytes == 0 || height == 0 {
        return;
    }
    let (row_bytes, rows) =
        if pitch == width_bytes { (width_bytes * height, 1) } else { (width_bytes, height) };
    for row in 0..rows {
        let start = dst.wrapping_add(row * pitch);
        // SAFETY: `from_raw_parts_mut` needs the row valid, initialized and exclusively ours. The
        // caller vouches for it, and device memory is zeroed when it is first mapped.
        let row = unsafe { std::slice::from_raw_parts_mut(start, row_bytes) };
        repeat(row, pattern);
    }
}

/// Fills `row` with copies of `pattern`. The last copy is cut off at the end of the row.
fn repeat(row: &mut [u8], pattern: &[u8]) {
    if pattern.iter().all(|byte| *byte == pattern[0]) {
        row.fill(pattern[0]);
        return;
    }
    // Doubling: the bytes written so far are the source of the next copy, so that long rows are
    // filled at the speed of a copy. Blocks stay small enough for the cache.
    const BLOCK: usize = 16 * 1024;
    let mut done = pattern.len().min(row.len());
    row[..done].copy_from_slice(&pattern[..done]);
    while done < row.len() {
        let n = done.min(BLOCK).min(row.len() - done);
        row.copy_within(..n, done);
        done += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warpline_driver::DevicePtr;

    #[test]
    fn fills_with_every_pattern_width_and_leaves_the_gaps() {
        for bytes in [1u8, 2, 4, 8] {
            let mut dst = vec![0xEEu8; 40 * 3];
            let pattern = 0x0807_0605_0403_0201u64;
            let fill = Fill {
                dst: DevicePtr(dst.as_mut_ptr() as u64),
                pitch: 40,
                width_bytes: 32,
                height: 3,
                pattern,
                pattern_bytes: bytes,
            };
            // SAFETY: the vector holds three rows.
            unsafe { fill_rows(&fill) };
            for (i, byte) in dst.iter().enumerate() {
                let column = i % 40;
                let expected = if column < 32 { (column % usize::from(bytes)) as u8 + 1 } else { 0xEE };
                assert_eq!(*byte, expected, "byte {i}, pattern of {bytes}");
            }
        }
    }

    #[test]
    fn a_long_fill_keeps_its_phase() {
        let mut row = vec![0u8; 100_000];
        repeat(&mut row, &[1, 2, 3, 4]);
        assert!(row.iter().enumerate().all(|(i, byte)| usize::from(*byte) == i % 4 + 1));
    }
}
