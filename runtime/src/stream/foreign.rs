//! Work that others put on a stream, declared by what it reads and writes.
//!
//! The turn is not the desk's lock, since the closure is user code: the desk notes which thread has the turn, others that
//! want to enqueue wait for it to end, and the same thread coming back is an error instead of a deadlock. `poll` and
//! `drop` are not concerned.
//!
//! On the CPU device foreign work is host functions, collected by the closure and run as one op. The accesses are checked, and
//! the op takes its ticket, before the closure is called; a gate (a timeline of its own, waited for just before the op)
//! keeps the op from running until the closure has returned.

use super::core::{Place, StreamCore};
use super::enqueue::{Op, Touch};
use super::handle::Stream;
use crate::driver::{Command, HostFn, Point};
use crate::element::Element;
use crate::error::Result;
use crate::kernel::AccessMode;
use crate::memory::Buffer;
use crate::order::mark_failed;
use crate::pending::{Pending, Refusal};
use crate::site::Site;
use crate::timeline::Timeline;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;

/// Says that a turn has ended.
#[derive(Debug, Default)]
pub(crate) struct ForeignTurns {
    ended: Mutex<u64>,
    changed: Condvar,
}

impl ForeignTurns {
    pub(crate) fn ended(&self) -> u64 {
        *self.ended.lock()
    }

    pub(crate) fn wait_for_more_than(&self, before: u64) {
        let mut ended = self.ended.lock();
        while *ended <= before {
            self.changed.wait(&mut ended);
        }
    }

    fn end(&self) {
        *self.ended.lock() += 1;
        self.changed.notify_all();
    }
}

/// What foreign work touches, by [`reads`] and [`writes`].
pub struct Declared<'a>(Vec<Touch<'a>>);

impl<'a> Declared<'a> {
    fn new<T: Element>(buffers: impl IntoIterator<Item = &'a Buffer<T>>, mode: AccessMode) -> Self {
        let touch =
            |buffer: &'a Buffer<T>| Touch { allocation: buffer.allocation(), range: buffer.range(), mode };
        Declared(buffers.into_iter().map(touch).collect())
    }

    /// These and those, for operands of another element type.
    pub fn and(mut self, others: Declared<'a>) -> Self {
        self.0.extend(others.0);
        self
    }
}

/// What foreign work reads.
pub fn reads<'a, T: Element>(buffers: impl IntoIterator<Item = &'a Buffer<T>>) -> Declared<'a> {
    Declared::new(buffers, AccessMode::Read)
}

/// What foreign work writes, or reads and writes.
pub fn writes<'a, T: Element>(buffers: impl IntoIterator<Item = &'a Buffer<T>>) -> Declared<'a> {
    Declared::new(buffers, AccessMode::ReadWrite)
}

impl Stream {
    /// The refusal of a call before it became an op, where it would have written: what reads that memory fails with the same
    /// error until it is overwritten. `why` may be the refusal of an operand.
    #[cold]
    pub fn refuse_writes(&self, why: impl Into<Refusal>, writes: Declared<'_>) -> Refusal {
        let refusal = why.into().or_on(self);
        mark_failed(&writes.0, refusal.error());
        refusal
    }
}

type HostCall = Box<dyn FnOnce() + Send>;

/// The stream as foreign work sees it.
pub struct RawStream {
    calls: Vec<HostCall>,
}

impl RawStream {
    /// Enqueues a host function: on the CPU device, foreign work is that.
    pub fn call(&mut self, f: impl FnOnce() + Send + 'static) {
        self.calls.push(Box::new(f));
    }
}

impl Stream {
    /// Lets other code enqueue work on this stream, as one op with the declared accesses.
    ///
    /// `f` has the stream's turn while it runs: other threads that enqueue here wait, and this thread enqueuing here is
    /// refused as `Reentrant`. If the accesses are refused, `f` is not called.
    ///
    /// # Safety
    /// The work that `f` enqueues goes onto this stream only, touches no device memory but what is declared, writes only what
    /// is declared as written, and is valid to run after `f` has returned.
    ///
    /// # Errors
    /// In the `Pending`: as for any op.
    #[track_caller]
    pub unsafe fn external(
        &self,
        reads: Declared<'_>,
        writes: Declared<'_>,
        f: impl FnOnce(&mut RawStream),
    ) -> Pending<()> {
        let site = Site::here(&"external");
        let touches = reads.and(writes).0;
        let core = self.core();
        let place = Turn::begin(core, site).and_then(|turn| turn.enqueue(site, &touches, f));
        Pending::value(core, place, ())
    }
}

/// A stream's turn, held by this thread until it is dropped.
struct Turn<'a> {
    core: &'a Arc<StreamCore>,
    gate: Arc<Timeline>,
}

impl<'a> Turn<'a> {
    fn begin(core: &'a Arc<StreamCore>, site: Site) -> Result<Self> {
        core.sit(site, false)?.foreign = Some(std::thread::current().id());
        Ok(Turn { core, gate: Arc::new(Timeline::new()) })
    }

    fn enqueue(self, site: Site, touches: &[Touch<'_>], f: impl FnOnce(&mut RawStream)) -> Result<Place> {
        let gate = Point { timeline: self.gate.clone(), ticket: 1, event: None };
        let in_turn = |kind, touches| Op { turn: true, ..Op::new(kind, site, touches) };
        self.core
            .enqueue(&mut Op { without_permit: true, ..in_turn("wait", &[]) }, || Command::Wait(gate))?;
        let calls = Arc::new(Mutex::new(Vec::new()));
        let run = calls.clone();
        let place = self.core.enqueue(&mut in_turn("call", touches), || {
            Command::Call(HostFn(Box::new(move || {
                let calls: Vec<HostCall> = std::mem::take(&mut *run.lock());
                calls.into_iter().for_each(|call| call());
            })))
        })?;
        let mut raw = RawStream { calls: Vec::new() };
        f(&mut raw);
        *calls.lock() = raw.calls;
        Ok(place)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.core.desk.sit().foreign = None;
        self.core.device.foreign_turns.end();
        self.gate.complete(1);
    }
}
