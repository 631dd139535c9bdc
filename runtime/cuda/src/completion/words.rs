//! Completion words: numbers in page-locked host memory that the device writes and the host reads.
//!
//! Each word has a cache line of its own and is eight-byte aligned. Its memory is ours, registered
//! with CUDA as portable and mapped. It is never unmapped or unregistered: the reactor may
//! still read a word while the process ends.
//!
//! Registering memory may wait for the whole context, and the thread that takes a word may be about
//! to hold a stream. So enough words for most programs are registered at the start. When few are
//! left, another thread registers more.
// Decision: docs/decisions/0032-completion-words-are-never-reset.md

use crate::api::{Answer, CUdeviceptr, opened};
use crate::context::Context;
use crate::work::capturing::Relaxed;
use crate::work::gate::ahead_unless_held;
use parking_lot::Mutex;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use warpline_driver::{DeviceId, background};

/// The distance between two words, so that neither the device's writes nor the reactor's reads
/// share a cache line. It is two lines, because processors fetch neighbouring lines in pairs.
const STRIDE_BYTES: usize = 128;
/// The size of one registration: 512 words.
const BLOCK_BYTES: usize = 64 << 10;
/// The number of unused words below which more are registered.
const FEW: usize = 64;
/// The flags `CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP`.
const PORTABLE_AND_MAPPED: u32 = 1 | 2;

/// A completion word, as seen by the host and by the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word {
    pub(crate) host: &'static AtomicU64,
    pub(crate) device: CUdeviceptr,
}

/// The unused words of a context. Each is zero when it is taken.
#[derive(Debug, Default)]
pub(crate) struct Words {
    free: Mutex<Vec<Word>>,
    growing: AtomicBool,
}

#[repr(C, align(4096))]
struct Block([u8; BLOCK_BYTES]);

impl Words {
    /// Takes an unused word. The context owns these words and is current.
    pub(crate) fn take(&self, context: &'static Context) -> Answer<Word> {
        loop {
            let mut free = self.free.lock();
            let word = free.pop();
            let few = free.len() < FEW;
            drop(free);
            let Some(word) = word else {
                // This is faster than waiting for the other thread.
                self.grow()?;
                continue;
            };
            if few && !self.growing.swap(true, Ordering::Relaxed) {
                background::pin(DeviceId::Cuda(context.ordinal), move || {
                    // If this fails, the next caller that finds no word left gets the error. If a
                    // closed gate prevents it, the next caller that takes a word tries again.
                    let _ = ahead_unless_held(context, || {
                        context.enter().and_then(|_entered| context.completion.words.grow())
                    });
                    context.completion.words.growing.store(false, Ordering::Relaxed);
                });
            }
            return Ok(word);
        }
    }

    /// Registers more words. The context is current.
    pub(crate) fn grow(&self) -> Answer {
        let _relaxed = Relaxed::new();
        let block: *mut u8 = Box::into_raw(Box::new(Block([0; BLOCK_BYTES]))).cast();
        let api = opened();
        // SAFETY: cuMemHostRegister needs memory that stays valid until it is unregistered; the
        // block is never freed.
        let registered =
            unsafe { api.cuMemHostRegister_v2(block.cast::<c_void>(), BLOCK_BYTES, PORTABLE_AND_MAPPED) };
        // SAFETY: `from_raw` takes back the pointer that `into_raw` returned; CUDA refused
        // it.
        registered.inspect_err(|_| drop(unsafe { Box::from_raw(block.cast::<Block>()) }))?;
        let mut device = 0;
        // SAFETY: cuMemHostGetDevicePointer takes registered, mapped memory and writes one address.
        let address = unsafe { api.cuMemHostGetDevicePointer_v2(&raw mut device, block.cast::<c_void>(), 0) };
        address.inspect_err(|_| {
            // SAFETY: cuMemHostUnregister takes registered memory; nothing has used this block.
            if unsafe { api.cuMemHostUnregister(block.cast::<c_void>()) }.is_ok() {
                // SAFETY: as above.
                drop(unsafe { Box::from_raw(block.cast::<Block>()) });
            }
        })?;
        let word = |offset: usize| Word {
            // SAFETY: the word lies in the block, is aligned and zero, lives for ever, and is
            // accessed only atomically; the device's eight-byte writes are atomic.
            host: unsafe { &*block.wrapping_add(offset).cast::<AtomicU64>() },
            device: device + offset as CUdeviceptr,
        };
        self.free.lock().extend((0..BLOCK_BYTES).step_by(STRIDE_BYTES).map(word));
        Ok(())
    }

    /// Puts back a word that the device will not write any more. Its owner has set it to zero.
    pub(crate) fn give_back(&self, word: Word) {
        self.free.lock().push(word);
    }
}
