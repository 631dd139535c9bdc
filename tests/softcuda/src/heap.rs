//! The heap of a context, from which its kernels allocate. Its pieces are device memory, and they
//! live until a kernel frees them or the context ends.

use crate::context::Context;
use crate::memory;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// `CU_LIMIT_MALLOC_HEAP_SIZE`
const LIMIT: u32 = 2;

/// The address and the size of each piece.
#[derive(Default)]
pub(crate) struct Heap(Mutex<BTreeMap<u64, u64>>);

impl Heap {
    /// Allocates a piece. Returns none if the pieces together would exceed the context's limit.
    pub(crate) fn allocate(&self, context: &Context, len_bytes: u64) -> Option<u64> {
        let mut pieces = self.0.lock();
        let used: u64 = pieces.values().sum();
        let limit = context.limit(LIMIT).ok()? as u64;
        if used.checked_add(len_bytes)? > limit {
            return None;
        }
        let address = memory::allocate(context, len_bytes.max(1) as usize).ok()?;
        pieces.insert(address, len_bytes);
        Some(address)
    }

    /// Frees a piece. Returns false if none starts at the address.
    pub(crate) fn free(&self, address: u64) -> bool {
        let is_piece = self.0.lock().remove(&address).is_some();
        if is_piece
            && let Ok(allocation) = memory::to_free(address)
            && memory::begin_free(allocation)
        {
            memory::release(allocation);
        }
        is_piece
    }

    /// Forgets all pieces, for a context that ends. Their memory ends with the context's.
    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }
}
