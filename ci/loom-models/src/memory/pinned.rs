//! Stands in for page-locked memory: its bytes, around the production files of the pool and of the
//! requests that wait.

#[path = "../../../../runtime/src/memory/pinned/in_flight.rs"]
mod in_flight;
#[path = "../../../../runtime/src/memory/pinned/pool.rs"]
mod pool;
#[path = "../../../../runtime/src/memory/pinned/promise.rs"]
mod promise;
#[path = "../../../../runtime/src/memory/pinned/waits.rs"]
mod waits;

use crate::driver::Element;
use crate::sync::Arc;
pub(crate) use in_flight::{Claim, EndOfRead, InFlight, Preparing, Purpose, Return};
use pool::HostBlock;
pub(crate) use pool::PinnedPool;
pub(crate) use promise::{Promise, Promises};
use std::any::{Any, TypeId};
use std::marker::PhantomData;
use std::ptr::NonNull;
pub(crate) use waits::{Asker, Want};

const NOWHERE: NonNull<u8> = NonNull::dangling();

#[derive(Debug)]
pub(crate) struct PinnedBytes {
    ptr: NonNull<u8>,
    block_len: usize,
    len_bytes: usize,
    elements: Option<(TypeId, &'static str, usize)>,
    owner: Option<Owner>,
    returns: Option<Arc<Return>>,
    pool: Arc<PinnedPool>,
}

// SAFETY: it owns its block, which is plain memory.
unsafe impl Send for PinnedBytes {}
// SAFETY: as above.
unsafe impl Sync for PinnedBytes {}

/// Takes the last steps of the runtime's.
impl Drop for PinnedBytes {
    fn drop(&mut self) {
        if self.block_len > 0 && !crate::process::is_forked() {
            self.pool.take_back(HostBlock(self.ptr), self.block_len, self.returns.as_deref());
        }
    }
}

#[derive(Debug)]
pub(super) enum Owner {
    Registered(Box<dyn Any + Send>),
    Ordinary { _memory: Vec<u128> },
}

pub(crate) struct Pinned<T: Element>(PinnedBytes, PhantomData<T>);

impl<T: Element> Pinned<T> {
    pub(crate) fn new(bytes: PinnedBytes, _len: usize) -> Self {
        Pinned(bytes, PhantomData)
    }
}
