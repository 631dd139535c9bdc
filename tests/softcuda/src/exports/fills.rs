//! Fills.

use crate::abi::{CUdeviceptr, CUstream};
use crate::copy::{fill, fill_now};
use crate::door::exports;

exports! {
    fn cuMemsetD8_v2(dst: CUdeviceptr, value: u8, count: usize) {
        fill_now(dst, (value as u32, 1), count)
    }

    fn cuMemsetD16_v2(dst: CUdeviceptr, value: u16, count: usize) {
        fill_now(dst, (value as u32, 2), count)
    }

    fn cuMemsetD32_v2(dst: CUdeviceptr, value: u32, count: usize) {
        fill_now(dst, (value, 4), count)
    }

    fn cuMemsetD8Async(dst: CUdeviceptr, value: u8, count: usize, stream: CUstream) {
        fill(dst, (value as u32, 1), count, (1, None), stream)
    }

    fn cuMemsetD16Async(dst: CUdeviceptr, value: u16, count: usize, stream: CUstream) {
        fill(dst, (value as u32, 2), count, (1, None), stream)
    }

    fn cuMemsetD32Async(dst: CUdeviceptr, value: u32, count: usize, stream: CUstream) {
        fill(dst, (value, 4), count, (1, None), stream)
    }

    fn cuMemsetD2D8Async(
        dst: CUdeviceptr,
        pitch: usize,
        value: u8,
        width: usize,
        height: usize,
        stream: CUstream,
    ) {
        fill(dst, (value as u32, 1), width, (height, Some(pitch)), stream)
    }

    fn cuMemsetD2D16Async(
        dst: CUdeviceptr,
        pitch: usize,
        value: u16,
        width: usize,
        height: usize,
        stream: CUstream,
    ) {
        fill(dst, (value as u32, 2), width, (height, Some(pitch)), stream)
    }

    fn cuMemsetD2D32Async(
        dst: CUdeviceptr,
        pitch: usize,
        value: u32,
        width: usize,
        height: usize,
        stream: CUstream,
    ) {
        fill(dst, (value, 4), width, (height, Some(pitch)), stream)
    }
}
