//! Page-locked memory that a copy uses.
//!
//! The stream's timeline holds it until the copy has ended. If the copy has a result, its
//! `Pending` holds it too, and takes the memory out. Memory that returns to its pool by itself has
//! its [`Return`] with it, so that the pool counts it as long as it has the block.
//!
//! # Reads that make way
//! The bytes of a read stay in page-locked memory until its `Pending` is polled. Nothing says when
//! that is, and a request may wait for this memory. So once the read has finished and requests
//! wait, the runtime moves the bytes to ordinary memory. Up to 1 MiB is moved under the lock of
//! the memory, for which a poll waits. More is moved without it, and a poll finds
//! [`Memory::Moving`].

use super::{Owner, PinnedBytes, PinnedPool};
use crate::background;
use crate::order::{StreamId, Use};
use crate::sync::{Arc, AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering, fence};
use std::mem::replace;
use std::ptr::NonNull;
use warpline_driver::timeline::Ticket;

/// Something that returns page-locked memory to its pool: the end of a copy, or a job for a
/// request that was dropped.
#[derive(Debug)]
pub(crate) struct Return {
    /// The stream of the copy.
    stream: Option<StreamId>,
    /// The copy's ticket; 0 as long as it has none.
    ticket: AtomicU64,
    /// The length that it has of the pool. Changed under the pool's lock.
    pub(super) bytes: AtomicUsize,
    /// False as long as a request or a `Pending` wants the memory.
    is_left: AtomicBool,
}

impl Return {
    fn new(stream: Option<StreamId>, ticket: Ticket, is_left: bool) -> Arc<Self> {
        let (ticket, bytes, is_left) =
            (AtomicU64::new(ticket), AtomicUsize::new(0), AtomicBool::new(is_left));
        Arc::new(Return { stream, ticket, bytes, is_left })
    }

    /// Returns true unless a request or a `Pending` wants the memory.
    pub(super) fn is_left(&self) -> bool {
        self.is_left.load(Ordering::Acquire)
    }

    /// Returns the copy's place. The ticket is 0 if it has none.
    pub(super) fn place(&self) -> Option<Use> {
        Some(Use { stream: self.stream?, ticket: self.ticket.load(Ordering::Acquire) })
    }
}

/// A request whose memory another thread prepares. If it is dropped before that, the memory
/// returns to its pool.
pub(crate) struct Preparing(Arc<PinnedPool>, Arc<Return>);

impl Preparing {
    pub(crate) fn new(pool: &Arc<PinnedPool>) -> Self {
        Preparing(pool.clone(), Return::new(None, 0, false))
    }

    /// Returns what returns the memory if this is dropped.
    pub(crate) fn returns(&self) -> Arc<Return> {
        self.1.clone()
    }

    /// Takes the memory over.
    pub(crate) fn over(self, mut bytes: PinnedBytes) -> PinnedBytes {
        let pool = self.0.state.lock();
        self.1.bytes.store(0, Ordering::Relaxed);
        drop(pool);
        bytes.returns = None;
        bytes
    }
}

impl Drop for Preparing {
    fn drop(&mut self) {
        self.1.is_left.store(true, Ordering::Release);
    }
}

/// The page-locked memory of a copy.
#[derive(Debug)]
pub(crate) struct InFlight {
    stream: StreamId,
    /// The copy's ticket, if its memory does not return by itself; 0 as long as it has none.
    ticket: AtomicU64,
    /// True if a graph keeps the memory.
    stays: bool,
    /// The end of the copy, if the runtime took the memory for it.
    returns: Option<Arc<Return>>,
    /// True if it is a read that has finished.
    is_read: AtomicBool,
    memory: Mutex<Memory>,
}

/// The purpose of a copy's page-locked memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The runtime takes it for the copy, after which it returns.
    Passage,
    /// The runtime takes it for the copy, and it becomes a buffer of the program.
    NewBuffer,
    /// It is a buffer of the program.
    Buffer,
    /// A graph keeps it.
    Graph,
}

#[derive(Debug)]
enum Memory {
    /// None yet, or it was taken.
    None,
    There(PinnedBytes),
    /// It is being moved to ordinary memory.
    Moving,
}

/// The most bytes that are moved while a poll may wait for them.
const MOVED_AT_ONCE_BYTES: usize = 1 << 20;

impl InFlight {
    pub(crate) fn new(stream: StreamId, purpose: Purpose) -> Arc<Self> {
        let returns = match purpose {
            Purpose::Passage => Some(Return::new(Some(stream), 0, true)),
            Purpose::NewBuffer => Some(Return::new(Some(stream), 0, false)),
            Purpose::Buffer | Purpose::Graph => None,
        };
        Arc::new(InFlight {
            stream,
            ticket: AtomicU64::new(0),
            stays: matches!(purpose, Purpose::Graph),
            returns,
            is_read: AtomicBool::new(false),
            memory: Mutex::new(Memory::None),
        })
    }

    /// Notes the copy's ticket.
    pub(crate) fn enqueued(&self, ticket: Ticket) {
        let of_copy = self.returns.as_ref().map_or(&self.ticket, |returns| &returns.ticket);
        of_copy.store(ticket, Ordering::Release);
    }

    /// Returns true if the memory returns to the pool when the copy has ended.
    pub(crate) fn is_passage(&self) -> bool {
        self.returns.as_ref().is_some_and(|returns| returns.is_left())
    }

    /// Returns true if it has a block of a pool.
    pub(crate) fn has_block(&self) -> bool {
        matches!(&*self.memory.lock(), Memory::There(bytes) if bytes.block_len > 0)
    }

    /// Returns the end of the copy, if the runtime took the memory for it.
    pub(crate) fn returns(&self) -> Option<&Arc<Return>> {
        self.returns.as_ref()
    }

    /// Gives it memory.
    pub(crate) fn fill(&self, bytes: PinnedBytes) {
        *self.memory.lock() = Memory::There(bytes);
    }

    /// Takes the memory out, if it is there.
    pub(crate) fn take(&self) -> Option<PinnedBytes> {
        let mut memory = self.memory.lock();
        match replace(&mut *memory, Memory::None) {
            Memory::There(mut bytes) => {
                if !self.is_passage() {
                    // It is a buffer of the program from here on.
                    bytes.returns = None;
                }
                Some(bytes)
            }
            other => {
                *memory = other;
                None
            }
        }
    }

    /// Calls `f` with the memory, and takes it out once `f` returns false. Calls nothing while the
    /// memory is being moved.
    pub(crate) fn read(&self, f: impl FnOnce(&PinnedBytes) -> bool) {
        let mut memory = self.memory.lock();
        let is_over = match &*memory {
            Memory::There(bytes) => !f(bytes),
            Memory::Moving => false,
            Memory::None => unreachable!("only the `Pending` of a read takes its memory"),
        };
        let over = if is_over { replace(&mut *memory, Memory::None) } else { Memory::None };
        drop(memory);
        drop(over);
    }

    /// Notes that nobody will take the memory, so that it returns when the copy has ended.
    fn leave(&self) {
        if self.stays {
            return;
        }
        if let Some(returns) = &self.returns {
            return returns.is_left.store(true, Ordering::Release);
        }
        let mut memory = self.memory.lock();
        if let Memory::There(bytes) = &mut *memory
            && bytes.block_len > 0
            && bytes.returns.is_none()
        {
            let ticket = self.ticket.load(Ordering::Acquire);
            bytes.will_return(Return::new(Some(self.stream), ticket, true));
        }
    }

    /// Moves the bytes of a read that has finished to ordinary memory.
    pub(super) fn make_way(&self) {
        if !self.is_read.load(Ordering::Acquire) {
            return;
        }
        let mut memory = self.memory.lock();
        let locked = match replace(&mut *memory, Memory::Moving) {
            Memory::There(locked) if locked.block_len > 0 => locked,
            other => {
                *memory = other;
                return;
            }
        };
        if locked.block_len <= MOVED_AT_ONCE_BYTES {
            *memory = Memory::There(locked.moved());
            drop(memory);
        } else {
            drop(memory);
            let moved = locked.moved();
            *self.memory.lock() = Memory::There(moved);
        }
        drop(locked);
    }
}

/// The end of a read, which the stream's timeline holds until then.
pub(crate) struct EndOfRead(pub(crate) Arc<InFlight>);

impl Drop for EndOfRead {
    fn drop(&mut self) {
        if warpline_driver::process::is_forked() {
            return;
        }
        let copy = &self.0;
        copy.is_read.store(true, Ordering::Release);
        fence(Ordering::SeqCst); // weaken: read-then-look
        let pool = match &*copy.memory.lock() {
            Memory::There(bytes) if bytes.pool.is_awaited() => bytes.pool.clone(),
            _ => return,
        };
        if pool.driver.runs_in_turns() {
            return copy.make_way();
        }
        let copy = copy.clone();
        background::pin(pool.driver.id(), move || copy.make_way());
    }
}

/// The claim of a `Pending` to the memory of its copy.
pub(crate) struct Claim(Option<Arc<InFlight>>);

impl Claim {
    pub(crate) fn to(copy: Arc<InFlight>) -> Self {
        Claim(Some(copy))
    }

    /// Returns the copy, whose memory is to be taken.
    pub(crate) fn redeem(mut self) -> Arc<InFlight> {
        self.0.take().expect("a claim is redeemed once")
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(copy) = self.0.take()
            && !warpline_driver::process::is_forked()
        {
            copy.leave();
        }
    }
}

impl PinnedBytes {
    /// Notes what returns it.
    pub(crate) fn will_return(&mut self, returns: Arc<Return>) {
        self.pool.note_return(&returns, self.block_len);
        self.returns = Some(returns);
    }

    /// Returns a copy in ordinary memory.
    fn moved(&self) -> PinnedBytes {
        // Aligned for every element type.
        let mut memory = vec![0u128; self.len_bytes.div_ceil(size_of::<u128>())];
        let ptr = NonNull::from(memory.as_mut_slice()).cast::<u8>();
        // SAFETY: `copy_from_nonoverlapping` needs `len_bytes` readable and writable bytes that do
        // not overlap. The block has them, and no copy uses it any more; the vector is new and at
        // least as long.
        unsafe { ptr.copy_from_nonoverlapping(self.ptr, self.len_bytes) };
        PinnedBytes {
            ptr,
            block_len: 0,
            len_bytes: self.len_bytes,
            elements: self.elements,
            owner: Some(Owner::Ordinary { _memory: memory }),
            returns: None,
            pool: self.pool.clone(),
        }
    }
}
