//! Copies between a device and pageable host memory, in pieces through page-locked memory.
//!
//! A device copies asynchronously only from and to page-locked memory, and memory of a CPU device
//! is pageable. So a host function moves each piece between that memory and a page-locked block, in
//! stream order. The next piece reuses the block after that. No edge is needed, because all steps
//! are on one stream.
// Decision: docs/decisions/0054-copies-between-backends-go-in-pieces.md

use crate::command::{Copy, CopyKind, StagedCopy};

/// One step of a [`StagedCopy`].
#[derive(Clone, Copy, Debug)]
pub enum StagedStep {
    /// A copy within the memory of the host, for a host function: [`copy_rows`].
    OnHost(Copy),
    /// A copy between the device and page-locked memory.
    OnDevice(Copy),
}

impl StagedCopy {
    /// Returns the steps, in the order in which they have to run. There are none if the copy moves
    /// no bytes.
    pub fn steps(&self) -> impl Iterator<Item = StagedStep> + use<> {
        let (copy, staging) = (self.copy, self.staging);
        pieces(copy.width_bytes, copy.height, self.staging_bytes).flat_map(move |piece| {
            let Piece { row, column, height, width_bytes } = piece;
            let src = copy.src + (row * copy.src_pitch + column) as u64;
            let dst = copy.dst + (row * copy.dst_pitch + column) as u64;
            let rows = Copy { src, dst, width_bytes, height, ..copy };
            let into = Copy { dst: staging, dst_pitch: width_bytes, ..rows };
            let out = Copy { src: staging, src_pitch: width_bytes, ..rows };
            match copy.kind {
                CopyKind::HostToDevice => [StagedStep::OnHost(into), StagedStep::OnDevice(out)],
                _ => [StagedStep::OnDevice(into), StagedStep::OnHost(out)],
            }
        })
    }
}

/// A rectangle of a copy that fits into the page-locked memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    row: usize,
    column: usize,
    height: usize,
    width_bytes: usize,
}

/// Splits `height` rows of `width_bytes` into pieces of at most `most` bytes: of whole rows if a
/// row fits, of parts of one row otherwise.
fn pieces(width_bytes: usize, height: usize, most: usize) -> impl Iterator<Item = Piece> {
    assert!(most > 0, "a piece has at least one byte");
    let wide = width_bytes.min(most).max(1);
    let rows = if width_bytes > most { 1 } else { most / wide };
    (0..height).step_by(rows).flat_map(move |row| {
        (0..width_bytes).step_by(wide).map(move |column| Piece {
            row,
            column,
            height: rows.min(height - row),
            width_bytes: wide.min(width_bytes - column),
        })
    })
}

/// Copies the rows within the memory of the host.
///
/// # Safety
/// All rows of the source are readable, and all rows of the destination are writable. Nothing else
/// writes to either during the call. The two may overlap.
pub unsafe fn copy_rows(copy: &Copy) {
    let Copy { src, src_pitch, dst, dst_pitch, width_bytes, height, .. } = *copy;
    let (src, dst) = (src as *const u8, dst as *mut u8);
    if width_bytes == 0 || height == 0 {
        return;
    }
    if height == 1 || (src_pitch == width_bytes && dst_pitch == width_bytes) {
        // SAFETY: `ptr::copy` needs both sides valid for the length. Rows without gaps are one run,
        // and the caller vouches for the rows.
        unsafe { std::ptr::copy(src, dst, width_bytes * height) };
        return;
    }
    for row in 0..height {
        let from = src.wrapping_add(row * src_pitch);
        let to = dst.wrapping_add(row * dst_pitch);
        // SAFETY: as above, for this row.
        unsafe { std::ptr::copy(from, to, width_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;

    #[test]
    fn rows_go_in_whole_pieces_and_long_rows_in_parts() {
        let all = |width, height, most| pieces(width, height, most).collect::<Vec<_>>();
        let piece = |row, column, height, width_bytes| Piece { row, column, height, width_bytes };
        assert_eq!(all(10, 5, 100), [piece(0, 0, 5, 10)]);
        assert_eq!(all(10, 5, 25), [piece(0, 0, 2, 10), piece(2, 0, 2, 10), piece(4, 0, 1, 10)]);
        assert_eq!(
            all(10, 2, 8),
            [piece(0, 0, 1, 8), piece(0, 8, 1, 2), piece(1, 0, 1, 8), piece(1, 8, 1, 2)]
        );
        assert_eq!((all(0, 5, 8), all(5, 0, 8)), (vec![], vec![]));
    }

    proptest! {
        #[test]
        fn the_steps_move_each_byte_once_and_no_other(
            (width, height) in (0_usize..20, 0_usize..6),
            (src_gap, dst_gap) in (0_usize..4, 0_usize..4),
            most in 1_usize..50,
            to_device: bool,
        ) {
            let (src_pitch, dst_pitch) = (width + src_gap, width + dst_gap);
            let source: Vec<u8> = (0..src_pitch * height).map(|n| n as u8).collect();
            let mut expected = vec![255_u8; dst_pitch * height];
            for row in 0..height {
                expected[row * dst_pitch..][..width].copy_from_slice(&source[row * src_pitch..][..width]);
            }
            let (mut moved, mut staging) = (vec![255_u8; dst_pitch * height], vec![0_u8; most]);
            let kind = if to_device { CopyKind::HostToDevice } else { CopyKind::DeviceToHost };
            let copy = StagedCopy {
                copy: Copy {
                    kind,
                    src: source.as_ptr().expose_provenance() as u64,
                    src_pitch,
                    dst: moved.as_mut_ptr().expose_provenance() as u64,
                    dst_pitch,
                    width_bytes: width,
                    height,
                },
                staging: staging.as_mut_ptr().expose_provenance() as u64,
                staging_bytes: most,
                host: Arc::new(()),
            };
            for step in copy.steps() {
                let (StagedStep::OnHost(rows) | StagedStep::OnDevice(rows)) = step;
                // SAFETY: `copy_rows` needs rows of live memory; both ends are of these vectors.
                unsafe { copy_rows(&rows) };
            }
            prop_assert_eq!(moved, expected);
        }
    }
}
