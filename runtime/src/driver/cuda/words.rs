//! Completion words: numbers in page-locked host memory that the device writes and the host reads.
//!
//! Each is a cache line of its own, eight-byte aligned, in pages of ours that are registered with the driver as portable and
//! mapped, and never unmapped or unregistered: the reactor may still read a word while the process ends.

use super::api::{Answer, CUdeviceptr, opened};
use parking_lot::Mutex;
use std::ffi::c_void;
use std::sync::atomic::AtomicU64;

/// Apart far enough that neither the device's writes nor the reactor's reads share a line: two lines, since processors fetch
/// neighbours in pairs.
const STRIDE_BYTES: usize = 128;
const PAGE_BYTES: usize = 4096;
/// `CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP`
const PORTABLE_AND_MAPPED: u32 = 1 | 2;

/// One word, as both sides see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word {
    pub(super) host: &'static AtomicU64,
    pub(super) device: CUdeviceptr,
}

/// A context's unused words. Zero when they come from here.
#[derive(Debug, Default)]
pub(super) struct Words {
    free: Mutex<Vec<Word>>,
}

#[repr(C, align(4096))]
struct Page([u8; PAGE_BYTES]);

impl Words {
    /// Registers a page ahead, so that the first streams and gates need not: it may wait for the whole context. The context is
    /// current.
    pub(super) fn reserve(&self) {
        if let Ok(word) = self.take() {
            self.give_back(word);
        }
    }

    /// An unused word. The context is current.
    pub(super) fn take(&self) -> Answer<Word> {
        if let Some(word) = self.free.lock().pop() {
            return Ok(word);
        }
        let page: *mut u8 = Box::into_raw(Box::new(Page([0; PAGE_BYTES]))).cast();
        let api = opened();
        // SAFETY: cuMemHostRegister needs memory that stays until it is unregistered; the page is never freed.
        let registered =
            unsafe { api.cuMemHostRegister_v2(page.cast::<c_void>(), PAGE_BYTES, PORTABLE_AND_MAPPED) };
        // SAFETY: `from_raw` takes back what `into_raw` gave; the driver did not take it.
        registered.inspect_err(|_| drop(unsafe { Box::from_raw(page.cast::<Page>()) }))?;
        let mut device = 0;
        // SAFETY: cuMemHostGetDevicePointer takes registered, mapped memory and writes one address.
        let address = unsafe { api.cuMemHostGetDevicePointer_v2(&raw mut device, page.cast::<c_void>(), 0) };
        address.inspect_err(|_| {
            // SAFETY: cuMemHostUnregister takes registered memory; nothing of it was used.
            if unsafe { api.cuMemHostUnregister(page.cast::<c_void>()) }.is_ok() {
                // SAFETY: as above.
                drop(unsafe { Box::from_raw(page.cast::<Page>()) });
            }
        })?;
        let word = |offset: usize| Word {
            // SAFETY: the word lies in the page, is aligned and zero, lives for ever, and is touched atomically alone; the
            // device's writes are atomic at eight bytes.
            host: unsafe { &*page.add(offset).cast::<AtomicU64>() },
            device: device + offset as CUdeviceptr,
        };
        let mut free = self.free.lock();
        free.extend((STRIDE_BYTES..PAGE_BYTES).step_by(STRIDE_BYTES).map(word));
        Ok(word(0))
    }

    /// Gives a word back that the device will not write any more. Its owner has set it to zero.
    pub(super) fn give_back(&self, word: Word) {
        self.free.lock().push(word);
    }
}
