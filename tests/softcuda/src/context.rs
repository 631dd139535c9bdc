//! Contexts, the current context of each thread, and poisoned contexts.
//!
//! # Rules
//! 1. A poisoned context stays poisoned: the first code wins, and every call that needs the context
//!    returns it. With `SOFTCUDA_FAULT_SEEN=stream` that begins once a call has reported the fault.
//!    Such a call names the faulted stream, enqueues work, or waits for work that cannot complete.
//!    Until then other calls return as if nothing had happened.
//! 2. Once the code is set, no queued work starts, and running work runs to its end. Host threads
//!    that wait are woken.
//! 3. A primary context keeps its slot and its poison across release and retain: a fault lasts
//!    until the process ends.
//! 4. Contexts are never recycled: there are few.

use crate::abi::CUcontext;
use crate::connection::Connection;
use crate::entries::Entry;
use crate::errors::{Code, Outcome, refuse, say, thread_name};
use crate::event;
use crate::heap::Heap;
use crate::memory;
use crate::module;
use crate::plan;
use crate::slab::Slab;
use crate::stream::Stream;
use parking_lot::{Mutex, MutexGuard};
use std::cell::{Cell, RefCell};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// A context.
pub(crate) struct Context {
    /// The index of its slot.
    pub(crate) index: u32,
    /// The device that it belongs to.
    pub(crate) device: u32,
    /// True if it is the primary context of its device.
    pub(crate) primary: bool,
    /// Its flags, as `cuCtxGetFlags` returns them.
    pub(crate) flags: AtomicU32,
    handle: AtomicU64,
    active: AtomicBool,
    poison: AtomicU32,
    /// True once every call returns the poison code.
    seen: AtomicBool,
    streams: Mutex<Vec<&'static Stream>>,
    /// The hardware queues that its streams share; empty if each stream has its own.
    connections: Box<[Connection]>,
    /// The number of streams that have been given a connection.
    connected: AtomicUsize,
    null: OnceLock<&'static Stream>,
    peers: Mutex<Vec<u32>>,
    limits: Mutex<[usize; 7]>,
    pub(crate) heap: Heap,
    /// Locked during a call under `SOFTCUDA_ONE_AT_A_TIME`.
    turn: Mutex<()>,
}

static CONTEXTS: Slab<Context> = Slab::new(1);

/// The primary contexts and their retain counts.
static PRIMARIES: Mutex<Vec<(&'static Context, u64)>> = Mutex::new(Vec::new());
/// The number of unfinished streams that calls have waited for while waiting for a whole context.
static WAITS: AtomicU64 = AtomicU64::new(0);

pub(crate) fn waits_for_device() -> u64 {
    WAITS.load(Ordering::Relaxed)
}

thread_local! {
    static TOP: Cell<u64> = const { Cell::new(0) };
    static BELOW: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Returns true if this thread is running a host function.
#[inline]
pub(crate) fn in_host_function() -> bool {
    IN_HOST_FUNCTION.get()
}

/// Marks the beginning or the end of a host function on this thread.
pub(crate) fn set_in_host_function(inside: bool) {
    IN_HOST_FUNCTION.set(inside);
}

/// Returns the handle of the thread's current context; 0 if there is none.
#[inline]
pub(crate) fn current_handle() -> CUcontext {
    CUcontext(TOP.get())
}

/// Returns the current context, if there is one, in any state.
pub(crate) fn current_if_any() -> Option<&'static Context> {
    CONTEXTS.get(TOP.get())
}

/// Returns the current context, if it is usable.
#[inline]
pub(crate) fn current() -> Outcome<&'static Context> {
    let handle = TOP.get();
    match CONTEXTS.get(handle) {
        Some(context) => {
            context.usable()?;
            Ok(context)
        }
        None if handle == 0 => refuse!(INVALID_CONTEXT, "no context is current on this thread"),
        None => refuse!(CONTEXT_IS_DESTROYED, "the current context was destroyed"),
    }
}

/// Locks the current context against other calls until the guard is dropped. Returns none if
/// `entry` takes no turn or no context is current.
#[cold]
pub(crate) fn take_turn(entry: Entry) -> Option<MutexGuard<'static, ()>> {
    let context = current_if_any().filter(|_| entry.takes_its_turn())?;
    Some(context.turn.lock())
}

/// Returns the context that a handle names.
pub(crate) fn named(handle: CUcontext) -> Outcome<&'static Context> {
    match CONTEXTS.get(handle.0) {
        Some(context) => Ok(context),
        None => refuse!(INVALID_CONTEXT, "the context is {}", CONTEXTS.what_is(handle.0)),
    }
}

/// Returns the context in a slot.
#[inline]
pub(crate) fn at(index: u32) -> &'static Context {
    CONTEXTS.at(index).expect("contexts are never recycled")
}

/// Replaces the thread's current context. A null handle pops it.
pub(crate) fn set_current(handle: CUcontext) -> Outcome {
    if handle.0 == 0 {
        TOP.set(next_below());
        return Ok(());
    }
    if TOP.get() != handle.0 {
        named(handle)?;
        TOP.set(handle.0);
    }
    Ok(())
}

/// Pushes a context onto the thread's stack, which makes it current.
pub(crate) fn push(handle: CUcontext) -> Outcome {
    named(handle)?;
    push_known(handle.0);
    Ok(())
}

/// Pops the context below the current one. A thread that is ending has none.
fn next_below() -> u64 {
    BELOW.try_with(|below| below.borrow_mut().pop()).ok().flatten().unwrap_or(0)
}

fn push_known(handle: u64) {
    let top = TOP.replace(handle);
    if top != 0 {
        let _ = BELOW.try_with(|below| below.borrow_mut().push(top));
    }
}

/// Pops the current context.
pub(crate) fn pop() -> Outcome<CUcontext> {
    let top = TOP.get();
    if top == 0 {
        refuse!(INVALID_CONTEXT, "no context is current on this thread");
    }
    TOP.set(next_below());
    Ok(CUcontext(top))
}

/// Creates a context and makes it current.
pub(crate) fn create(device: u32, flags: u32) -> CUcontext {
    let context = Context::new(device, flags, false);
    push_known(context.handle().0);
    context.handle()
}

/// Destroys a context that is not primary, with everything in it.
pub(crate) fn destroy(handle: CUcontext) -> Outcome {
    let context = named(handle)?;
    if context.primary {
        refuse!(INVALID_CONTEXT, "a primary context is released, not destroyed");
    }
    context.empty();
    context.active.store(false, Ordering::Release);
    CONTEXTS.revoke(handle.0);
    if TOP.get() == handle.0 {
        pop()?;
    }
    Ok(())
}

/// Retains a device's primary context.
pub(crate) fn retain_primary(device: u32) -> CUcontext {
    let mut primaries = PRIMARIES.lock();
    let place = primaries.iter().position(|(context, _)| context.device == device);
    let place = place.unwrap_or_else(|| {
        primaries.push((Context::new(device, 0, true), 0));
        primaries.len() - 1
    });
    let (context, count) = &mut primaries[place];
    *count += 1;
    context.active.store(true, Ordering::Release);
    context.handle()
}

/// Releases a device's primary context. The last release destroys everything in it.
pub(crate) fn release_primary(device: u32) -> Outcome {
    let context = {
        let mut primaries = PRIMARIES.lock();
        let Some((context, count)) =
            primaries.iter_mut().find(|(context, count)| context.device == device && *count > 0)
        else {
            refuse!(INVALID_CONTEXT, "device {device}'s primary context is not retained");
        };
        *count -= 1;
        if *count > 0 {
            return Ok(());
        }
        *context
    };
    context.empty();
    context.active.store(false, Ordering::Release);
    Ok(())
}

/// Destroys everything in a device's primary context, which stays retained.
pub(crate) fn reset_primary(device: u32) -> Outcome {
    let found =
        PRIMARIES.lock().iter().find(|(context, count)| context.device == device && *count > 0).copied();
    if let Some((context, _)) = found {
        context.empty();
    }
    Ok(())
}

/// Sets the flags of a device's primary context. Does nothing before its first retain.
pub(crate) fn set_primary_flags(device: u32, flags: u32) -> Outcome {
    if flags & !0xff != 0 {
        refuse!(INVALID_VALUE, "flags {flags:#x}");
    }
    if let Some((context, _)) = PRIMARIES.lock().iter().find(|(context, _)| context.device == device) {
        context.flags.store(flags, Ordering::Relaxed);
    }
    Ok(())
}

/// Returns the flags of a device's primary context, and true if it is active. The flags of an
/// inactive one are 0.
pub(crate) fn primary_state(device: u32) -> (u32, bool) {
    let primaries = PRIMARIES.lock();
    let found = primaries.iter().find(|(context, count)| context.device == device && *count > 0);
    found.map_or((0, false), |(context, _)| (context.flags.load(Ordering::Relaxed), true))
}

impl Context {
    fn new(device: u32, flags: u32, primary: bool) -> &'static Context {
        let (index, context) = CONTEXTS.take(|index| Context {
            index,
            device,
            primary,
            flags: AtomicU32::new(flags),
            handle: AtomicU64::new(0),
            active: AtomicBool::new(true),
            poison: AtomicU32::new(0),
            seen: AtomicBool::new(false),
            streams: Mutex::default(),
            connections: (0..plan::get().connections).map(|_| Connection::default()).collect(),
            connected: AtomicUsize::new(0),
            null: OnceLock::new(),
            peers: Mutex::default(),
            limits: Mutex::new([1024, 1 << 20, 8 << 20, 0, 0, 64, 0]),
            heap: Heap::default(),
            turn: Mutex::default(),
        });
        context.handle.store(CONTEXTS.publish(index), Ordering::Release);
        context
    }

    /// Returns the handle.
    pub(crate) fn handle(&self) -> CUcontext {
        CUcontext(self.handle.load(Ordering::Relaxed))
    }

    /// Returns the code that the context is poisoned with, if it is.
    #[inline]
    pub(crate) fn poisoned(&self) -> Option<Code> {
        match self.poison.load(Ordering::Acquire) {
            0 => None,
            code => Some(Code(code)),
        }
    }

    /// Checks that calls can use the context.
    #[inline]
    pub(crate) fn usable(&self) -> Outcome {
        if let Some(code) = self.poisoned()
            && self.seen.load(Ordering::Acquire)
        {
            return Err(code.into());
        }
        if !self.active.load(Ordering::Acquire) {
            refuse!(CONTEXT_IS_DESTROYED, "the primary context was released");
        }
        Ok(())
    }

    /// Checks that calls can use the context, and reports a fault that no call has reported yet.
    #[inline]
    pub(crate) fn report(&self) -> Outcome {
        if self.poisoned().is_some() {
            self.seen.store(true, Ordering::Release);
        }
        self.usable()
    }

    /// Poisons the context for good. Every call returns the code from now on.
    pub(crate) fn poison(&self, code: Code, why: &str) {
        self.lose(code, why, true);
    }

    /// Poisons the context for good. If `seen` is set, every call returns the code from now on;
    /// otherwise only after a call has reported it.
    pub(crate) fn lose(&self, code: Code, why: &str, seen: bool) {
        static POISONING: Mutex<()> = Mutex::new(());
        let poisoning = POISONING.lock();
        if self.poisoned().is_some() {
            return;
        }
        // Before other threads can observe the poison, and perhaps end the process.
        say(&format!("device {}: {}: {why}; the context is lost", self.device, code.name()));
        self.seen.store(seen, Ordering::Release);
        self.poison.store(code.0, Ordering::Release);
        drop(poisoning);
        for stream in self.streams() {
            stream.wake_all();
        }
    }

    /// Returns its streams, including the null stream and destroyed streams that still have work.
    pub(crate) fn streams(&self) -> Vec<&'static Stream> {
        self.streams.lock().clone()
    }

    /// Returns the number of the connection for one more stream, in rotation.
    pub(crate) fn next_connection(&self) -> usize {
        match self.connections.len() {
            0 => 0,
            len => self.connected.fetch_add(1, Ordering::Relaxed) % len,
        }
    }

    /// Returns the connection with that number; none if each stream has its own.
    #[inline]
    pub(crate) fn connection(&self, number: usize) -> Option<&Connection> {
        self.connections.get(number)
    }

    pub(crate) fn add_stream(&self, stream: &'static Stream) {
        self.streams.lock().push(stream);
    }

    pub(crate) fn remove_stream(&self, stream: &'static Stream) {
        self.streams.lock().retain(|known| !std::ptr::eq(*known, stream));
    }

    /// Returns the null stream, which is created on first use.
    pub(crate) fn null_stream(&'static self) -> &'static Stream {
        self.null.get_or_init(|| Stream::null(self))
    }

    /// Returns the null stream, if it has been used.
    #[inline]
    pub(crate) fn null_stream_if_used(&self) -> Option<&'static Stream> {
        self.null.get().copied()
    }

    /// Waits until all work enqueued before has finished.
    pub(crate) fn synchronize(&self) -> Outcome {
        if !plan::get().immediate {
            for stream in self.streams() {
                if !stream.is_idle() {
                    WAITS.fetch_add(1, Ordering::Relaxed);
                }
                stream.wait_until_done()?;
            }
        }
        self.report()
    }

    /// Waits for the context's work if `SOFTCUDA_ALLOC_WAITS` is set. `call` is named on stderr if
    /// it has to wait.
    pub(crate) fn synchronize_if_asked(&self, call: &str) -> Outcome {
        if !plan::get().alloc_waits {
            return Ok(());
        }
        if !self.streams().iter().all(|stream| stream.is_idle()) {
            say(&format!("{call} waits for the device on thread {}", thread_name()));
        }
        self.synchronize()
    }

    /// Waits for the context's work and destroys everything in it.
    fn empty(&self) {
        let _ = self.synchronize();
        for stream in self.streams() {
            if !self.null.get().is_some_and(|null| std::ptr::eq(*null, stream)) {
                stream.destroy();
            }
        }
        event::destroy_all(self);
        module::unload_all(self);
        self.heap.clear();
        memory::free_all(self);
        self.peers.lock().clear();
    }

    /// Returns true if the context may access the memory of context `other` directly.
    pub(crate) fn reaches(&self, other: u32) -> bool {
        self.index == other || self.peers.lock().contains(&other)
    }

    /// Grants the context direct access to the memory of `other`.
    pub(crate) fn enable_peer(&self, other: &Context) -> Outcome {
        if self.device == other.device {
            refuse!(INVALID_DEVICE, "both contexts are on device {}", self.device);
        }
        if !plan::get().peer {
            refuse!(PEER_ACCESS_UNSUPPORTED, "devices {} and {} are no peers", self.device, other.device);
        }
        let mut peers = self.peers.lock();
        if peers.contains(&other.index) {
            return Err(Code::PEER_ACCESS_ALREADY_ENABLED.into());
        }
        peers.push(other.index);
        Ok(())
    }

    /// Revokes the access that [`enable_peer`](Self::enable_peer) granted.
    pub(crate) fn disable_peer(&self, other: &Context) -> Outcome {
        let mut peers = self.peers.lock();
        match peers.iter().position(|known| *known == other.index) {
            Some(place) => {
                peers.swap_remove(place);
                Ok(())
            }
            None => Err(Code::PEER_ACCESS_NOT_ENABLED.into()),
        }
    }

    /// Returns the value of a `CUlimit`.
    pub(crate) fn limit(&self, limit: u32) -> Outcome<usize> {
        match self.limits.lock().get(limit as usize) {
            Some(value) => Ok(*value),
            None => Err(Code::UNSUPPORTED_LIMIT.into()),
        }
    }

    /// Stores the value of a `CUlimit`. Only the limit of the heap has an effect.
    pub(crate) fn set_limit(&self, limit: u32, value: usize) -> Outcome {
        match self.limits.lock().get_mut(limit as usize) {
            Some(place) => *place = value,
            None => return Err(Code::UNSUPPORTED_LIMIT.into()),
        }
        Ok(())
    }
}
