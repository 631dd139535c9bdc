//! Page-locked host memory: its ranges, the contexts that own them, and the access that they allow.
//!
//! Its device address is its host address, as with unified addressing.
//!
//! # Rules
//! 1. The ranges are a sorted list under a lock, with a version. Each thread keeps a copy of the
//!    list and replaces it when the version has changed, so that a lookup writes nothing that
//!    threads share.
//! 2. Nothing counts the work that uses a range. Ending a range is rare, so it looks through all
//!    queues instead. If queued or running work touches the range, the call reports that on stderr
//!    and poisons the stream's context. It returns once no running work touches the range.
//! 3. Memory that this library allocated returns to the system when it ends. Registered memory
//!    stays with the caller.
//! 4. Managed memory is in the list as well; `managed.rs` has its other rules.

use crate::context::{self, Context};
use crate::errors::{Code, Outcome, refuse, say};
use crate::memory;
use crate::plan;
use crate::stream;
use crate::work::HostRange;
use parking_lot::Mutex;
use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// `CU_MEMHOSTALLOC_PORTABLE` and `CU_MEMHOSTREGISTER_PORTABLE`.
const PORTABLE: u32 = 1;
/// `CU_MEMHOSTALLOC_DEVICEMAP` and `CU_MEMHOSTREGISTER_DEVICEMAP`.
const DEVICE_MAP: u32 = 2;

/// One range of page-locked memory.
#[derive(Clone, Copy)]
pub(crate) struct Locked {
    start: usize,
    len: usize,
    /// The flags that it was created with.
    pub(crate) flags: u32,
    context: u32,
    origin: Origin,
    /// A number that no other memory has or has had.
    serial: u64,
}

/// The origin of a range, which decides how it ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// `cuMemHostAlloc`.
    Made,
    /// `cuMemHostRegister`: the caller's memory.
    Registered,
    /// `cuMemAllocManaged`.
    Managed,
}

static RANGES: Mutex<Vec<Locked>> = Mutex::new(Vec::new());
static VERSION: AtomicU64 = AtomicU64::new(0);

struct Snapshot {
    version: u64,
    ranges: Arc<[Locked]>,
}

thread_local! {
    static SNAPSHOT: RefCell<Option<Snapshot>> = const { RefCell::new(None) };
}

/// The kind of memory in a range.
pub(crate) enum Kind {
    Locked(Locked),
    Pageable,
    /// Part of it is page-locked, but no single range contains all of it.
    Straddles,
}

/// Looks up a range of host memory.
pub(crate) fn find(address: usize, len: usize) -> Kind {
    let version = VERSION.load(Ordering::Acquire);
    if version == 0 {
        return Kind::Pageable;
    }
    let in_snapshot = SNAPSHOT.try_with(|snapshot| {
        let snapshot = &mut *snapshot.borrow_mut();
        if !matches!(snapshot, Some(known) if known.version == version) {
            let ranges = RANGES.lock();
            *snapshot =
                Some(Snapshot { version: VERSION.load(Ordering::Acquire), ranges: ranges[..].into() });
        }
        let ranges = snapshot.as_ref().map_or(&[][..], |known| &known.ranges[..]);
        look_up(ranges, address, len)
    });
    // A thread that is ending has already dropped its copy.
    in_snapshot.unwrap_or_else(|_| look_up(&RANGES.lock(), address, len))
}

fn look_up(ranges: &[Locked], address: usize, len: usize) -> Kind {
    let end = address.saturating_add(len);
    // Only the last range that begins before the end can contain all of it.
    let after = ranges.partition_point(|range| range.start < end.max(address.saturating_add(1)));
    match after.checked_sub(1).map(|place| ranges[place]) {
        Some(range) if range.start <= address && end <= range.start + range.len => {
            if len == 0 && address == range.start + range.len { Kind::Pageable } else { Kind::Locked(range) }
        }
        Some(range) if address < range.start + range.len => Kind::Straddles,
        _ => Kind::Pageable,
    }
}

impl Locked {
    /// Returns true if the range counts as page-locked for a context.
    fn serves(self, context: &Context) -> bool {
        self.origin != Origin::Registered || self.flags & PORTABLE != 0 || self.context == context.index
    }

    fn is_mapped(self) -> bool {
        self.origin != Origin::Registered || self.flags & DEVICE_MAP != 0
    }

    pub(crate) fn is_managed(self) -> bool {
        self.origin == Origin::Managed
    }

    fn range(self) -> HostRange {
        HostRange { start: self.start, len: self.len }
    }
}

/// Returns true if device code of a context may use this host memory by its address.
pub(crate) fn mapped(context: &Context, address: usize, len: usize) -> bool {
    matches!(find(address, len), Kind::Locked(range) if range.serves(context) && range.is_mapped())
}

/// Returns the address and the size of all host memory that device code of a context may use.
pub(crate) fn all_mapped(context: &Context) -> Vec<(u64, u64)> {
    let ranges = RANGES.lock();
    let mapped = ranges.iter().filter(|range| range.serves(context) && range.is_mapped());
    mapped.map(|range| (range.start as u64, range.len as u64)).collect()
}

/// Returns true if copies of a context with this host memory are asynchronous. Fails if only part
/// of the memory is page-locked.
pub(crate) fn is_locked(context: &Context, address: usize, len: usize) -> Outcome<bool> {
    match find(address, len) {
        Kind::Locked(range) => Ok(range.serves(context)),
        Kind::Pageable => Ok(false),
        Kind::Straddles => {
            refuse!(INVALID_VALUE, "{address:#x}, {len} bytes, is page-locked in part only")
        }
    }
}

fn add(range: Locked) -> Outcome {
    let mut ranges = RANGES.lock();
    let place = ranges.partition_point(|known| known.start < range.start);
    let meets = |known: Option<&Locked>| known.is_some_and(|known| known.range().meets(range.range()));
    if meets(ranges.get(place)) || meets(place.checked_sub(1).and_then(|before| ranges.get(before))) {
        refuse!(HOST_MEMORY_ALREADY_REGISTERED, "{:#x} is page-locked already", range.start);
    }
    ranges.insert(place, range);
    VERSION.fetch_add(1, Ordering::Release);
    Ok(())
}

/// Allocates page-locked memory, filled with zeros.
pub(crate) fn allocate(len: usize, flags: u32) -> Outcome<*mut c_void> {
    let context = context::current()?;
    if len == 0 || flags & !7 != 0 {
        refuse!(INVALID_VALUE, "{len} bytes, flags {flags:#x}");
    }
    context.synchronize_if_asked("cuMemHostAlloc")?;
    make(context, len, flags, Origin::Made)
}

/// Maps new memory, filled with zeros, and adds it to the list.
pub(crate) fn make(context: &Context, len: usize, flags: u32, origin: Origin) -> Outcome<*mut c_void> {
    // SAFETY: a new private mapping at an address that the system chooses.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(Code::OUT_OF_MEMORY.into());
    }
    add(Locked {
        start: start as usize,
        len,
        flags,
        context: context.index,
        origin,
        serial: memory::new_serial(),
    })?;
    Ok(start)
}

/// Registers a caller's memory as page-locked. No page is really locked.
pub(crate) fn register(start: usize, len: usize, flags: u32) -> Outcome {
    let context = context::current()?;
    if start == 0 || len == 0 || flags & !15 != 0 || start.checked_add(len).is_none() {
        refuse!(INVALID_VALUE, "{len} bytes at {start:#x}, flags {flags:#x}");
    }
    if !plan::get().register {
        refuse!(NOT_SUPPORTED, "SOFTCUDA_NO_REGISTER or SOFTCUDA_CONFIDENTIAL is set");
    }
    context.synchronize_if_asked("cuMemHostRegister")?;
    let (context, serial) = (context.index, memory::new_serial());
    add(Locked { start, len, flags, context, origin: Origin::Registered, serial })
}

/// Frees memory from [`allocate`].
pub(crate) fn free(start: usize) -> Outcome {
    context::current()?;
    end(start, Origin::Made)
}

/// Frees memory from [`make`].
pub(crate) fn end(start: usize, origin: Origin) -> Outcome {
    unmap(remove(start, origin)?);
    Ok(())
}

/// Unregisters memory from [`register`].
pub(crate) fn unregister(start: usize) -> Outcome {
    context::current()?;
    remove(start, Origin::Registered).map(drop)
}

fn remove(start: usize, origin: Origin) -> Outcome<Locked> {
    let range = {
        let mut ranges = RANGES.lock();
        let found = ranges.binary_search_by_key(&start, |range| range.start);
        match found {
            Ok(place) if ranges[place].origin == origin => {
                VERSION.fetch_add(1, Ordering::Release);
                ranges.remove(place)
            }
            _ => match origin {
                Origin::Made => {
                    refuse!(INVALID_VALUE, "{start:#x} was not made by cuMemHostAlloc or cuMemAllocHost")
                }
                Origin::Managed => refuse!(INVALID_VALUE, "{start:#x} was not made by cuMemAllocManaged"),
                Origin::Registered => refuse!(HOST_MEMORY_NOT_REGISTERED, "{start:#x} is not registered"),
            },
        }
    };
    punish_users(range.range(), "page-locked memory");
    Ok(range)
}

/// Poisons the contexts of streams whose work touches a range that has ended, which `what` names.
/// Returns once no running work touches it.
pub(crate) fn punish_users(range: HostRange, what: &str) {
    for stream in stream::all().filter(|stream| stream.touches(range)) {
        let context = stream.context();
        if context.poisoned().is_none() {
            let why = format!(
                "{what} at {:#x}, {} bytes, ended while queued work still uses it",
                memory::shown(range.start),
                range.len
            );
            stream.fault(Code::ILLEGAL_ADDRESS, &why);
        }
        stream.wait_until_untouched(range);
    }
}

fn unmap(range: Locked) {
    // SAFETY: a mapping that `make` created. It is no longer in the list, and no running work
    // touches it.
    let done = unsafe { libc::munmap(range.start as *mut c_void, range.len) };
    if done != 0 {
        say("page-locked memory could not be given back to the system");
    }
}

/// Frees the page-locked memory of a context, and unregisters the memory that it registered.
pub(crate) fn free_all(context: &Context) {
    let ended: Vec<Locked> = {
        let mut ranges = RANGES.lock();
        VERSION.fetch_add(1, Ordering::Release);
        ranges.extract_if(.., |range| range.context == context.index).collect()
    };
    for range in ended {
        punish_users(range.range(), "page-locked memory");
        if range.origin != Origin::Registered {
            unmap(range);
        }
    }
}

/// Returns the serial number of the page-locked memory at an address.
pub(crate) fn serial(address: usize) -> Option<u64> {
    match find(address, 1) {
        Kind::Locked(range) => Some(range.serial),
        _ => None,
    }
}

/// Returns the device address of mapped memory.
pub(crate) fn device_pointer(address: usize) -> Outcome<u64> {
    let context = context::current()?;
    match find(address, 1) {
        Kind::Locked(range) if range.is_managed() => {
            refuse!(INVALID_VALUE, "{address:#x} is managed memory, whose address is the same on devices")
        }
        Kind::Locked(range) if range.serves(context) && range.is_mapped() => Ok(address as u64),
        Kind::Locked(_) => refuse!(INVALID_VALUE, "{address:#x} is not mapped for this context"),
        _ => refuse!(INVALID_VALUE, "{address:#x} is not page-locked"),
    }
}

/// Returns the flags of page-locked memory.
pub(crate) fn flags(address: usize) -> Outcome<u32> {
    context::current()?;
    match find(address, 1) {
        Kind::Locked(range) if !range.is_managed() => Ok(range.flags),
        _ => refuse!(INVALID_VALUE, "{address:#x} is not page-locked"),
    }
}

/// A whole range of page-locked memory.
pub(crate) struct Whole {
    pub(crate) start: usize,
    pub(crate) len: usize,
    pub(crate) context: &'static Context,
    pub(crate) is_managed: bool,
}

/// Returns the page-locked range that contains an address.
pub(crate) fn whole(address: usize) -> Option<Whole> {
    match find(address, 1) {
        Kind::Locked(range) => Some(Whole {
            start: range.start,
            len: range.len,
            context: context::at(range.context),
            is_managed: range.is_managed(),
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locked(start: usize, len: usize) -> Locked {
        Locked { start, len, flags: 0, context: 0, origin: Origin::Registered, serial: 0 }
    }

    #[test]
    fn ranges_are_inside_outside_or_neither() {
        let ranges = [locked(100, 10), locked(110, 5), locked(200, 8)];
        let kind = |address, len| match look_up(&ranges, address, len) {
            Kind::Locked(range) => range.start,
            Kind::Pageable => 0,
            Kind::Straddles => 1,
        };
        assert_eq!(kind(100, 10), 100);
        assert_eq!(kind(109, 1), 100);
        assert_eq!(kind(110, 1), 110);
        assert_eq!(kind(205, 3), 200);
        assert_eq!(kind(50, 50), 0);
        assert_eq!(kind(115, 85), 0);
        assert_eq!(kind(108, 4), 1, "two registrations are not one");
        assert_eq!(kind(206, 3), 1);
        assert_eq!(kind(90, 11), 1);
        assert_eq!(kind(0, 1000), 1);
        assert_eq!(kind(usize::MAX, 1), 0, "an argument may be any number");
    }
}
