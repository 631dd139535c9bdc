//! Device memory.
//!
//! Each device has a range of addresses that the host cannot access. Behind it, at a fixed
//! distance, is memory that the host can access. Device addresses are in the first range, so a host
//! that dereferences one crashes as with a GPU. Copies and launches add the distance. Memory is
//! committed when it is first written.
//!
//! Mapped memory is at addresses that belong to no device (`virtual_memory.rs`). Each mapping is
//! an allocation too.
//!
//! The contents of a new allocation are unspecified, so its first and its last bytes are filled
//! with junk.

use crate::abi::CUdeviceptr;
use crate::arena::{Arena, Book, span};
use crate::context::{self, Context};
use crate::errors::{Code, Outcome, refuse};
use crate::host;
use crate::plan;
use crate::slab::Slab;
use crate::virtual_memory;
use crate::work::HostRange;
use parking_lot::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// An allocation. The fields except `state` change only while the slot is unused.
pub(crate) struct Allocation {
    number: u32,
    device: AtomicU32,
    /// The index of its context, or `MAPPED`.
    context: AtomicU32,
    /// A bit for each device that may use mapped memory.
    users: AtomicU32,
    start: AtomicU64,
    len: AtomicU64,
    /// A number that no other memory has or had.
    serial: AtomicU64,
    state: AtomicU32,
}

/// The context of mapped memory, which belongs to none.
const MAPPED: u32 = u32::MAX;
const LIVE: u32 = 1;
/// Being freed: calls may no longer name it, but work enqueued before may still use it.
const ENDING: u32 = 2;

/// A device's memory.
struct Device {
    arena: Arena,
    book: Mutex<Book>,
}

/// The memory of all devices.
struct Space {
    /// The first device address.
    base: u64,
    /// The size of a device's address range. The memory behind it takes as many addresses again.
    span: u64,
    devices: Vec<Device>,
}

static ALLOCATIONS: Slab<Allocation> = Slab::new(7);
static SPACE: OnceLock<Space> = OnceLock::new();

const JUNK: u8 = 0xcd;
const JUNK_BYTES: usize = 4096;
/// The least size of freed memory that is returned to the system.
const RETURN_BYTES: usize = 256 << 10;

/// Returns a number that no other memory has or had, page-locked memory included.
pub(crate) fn new_serial() -> u64 {
    static SERIALS: AtomicU64 = AtomicU64::new(1);
    SERIALS.fetch_add(1, Ordering::Relaxed)
}

/// Reserves the addresses of all devices.
pub(crate) fn init() -> Outcome {
    if SPACE.get().is_some() {
        return Ok(());
    }
    let plan = plan::get();
    let span = span(plan.memory_bytes);
    let bytes = 2 * span as usize * plan.devices.len();
    // SAFETY: a new private mapping at an address that the system chooses replaces no other.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if base == libc::MAP_FAILED {
        refuse!(OPERATING_SYSTEM, "no {bytes} bytes of addresses to be had");
    }
    let new_device =
        || Device { arena: Arena::new(plan.memory_bytes), book: Mutex::new(Book::new(plan.memory_bytes)) };
    let space =
        Space { base: base as u64, span, devices: plan.devices.iter().map(|_| new_device()).collect() };
    for device in 0..plan.devices.len() as u64 {
        let behind = space.base + (2 * device + 1) * span;
        // SAFETY: the range is the second half of this device's part of the mapping made above,
        // which nothing uses yet.
        let done =
            unsafe { libc::mprotect(behind as *mut _, span as usize, libc::PROT_READ | libc::PROT_WRITE) };
        if done != 0 {
            refuse!(OPERATING_SYSTEM, "no memory to be had");
        }
    }
    let _ = SPACE.set(space);
    Ok(())
}

fn space() -> Outcome<&'static Space> {
    SPACE.get().ok_or(Code::NOT_INITIALIZED.into())
}

impl Space {
    /// Returns the device in whose range an address is, and the offset in that range.
    #[inline]
    fn place(&self, address: u64) -> Option<(&Device, u64)> {
        let offset = address.checked_sub(self.base)?;
        let device = self.devices.get((offset / (2 * self.span)) as usize)?;
        Some((device, offset % (2 * self.span))).filter(|(_, place)| *place < self.span)
    }

    fn find(&self, address: u64) -> Option<&'static Allocation> {
        let number = match self.place(address) {
            Some((device, place)) => device.arena.find(place),
            None => virtual_memory::number_at(address)?,
        };
        let allocation = ALLOCATIONS.at(number.checked_sub(1)?)?;
        let offset = address.wrapping_sub(allocation.start());
        (offset < allocation.len().max(1)).then_some(allocation)
    }

    /// Returns the host address of the memory behind a device address.
    #[inline]
    fn behind(&self, address: u64) -> Option<u64> {
        let in_device = self.place(address).map(|_| address + self.span);
        in_device.or_else(|| virtual_memory::behind(address))
    }

    /// Returns the device address that has a host address behind it.
    fn before(&self, behind: u64) -> Option<u64> {
        let address = behind.checked_sub(self.span).filter(|address| self.place(*address).is_some());
        address.or_else(|| virtual_memory::before(behind))
    }
}

impl Allocation {
    /// Returns the number, from 0.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Returns the index of the device.
    pub(crate) fn device(&self) -> u32 {
        self.device.load(Ordering::Acquire)
    }

    /// Returns the device address.
    pub(crate) fn start(&self) -> u64 {
        self.start.load(Ordering::Acquire)
    }

    /// Returns the number of bytes that the caller requested.
    pub(crate) fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// Returns the context that it was allocated in; none for mapped memory.
    pub(crate) fn context(&self) -> Option<&'static Context> {
        match self.context.load(Ordering::Acquire) {
            MAPPED => None,
            index => Some(context::at(index)),
        }
    }

    /// Returns true for mapped memory.
    pub(crate) fn is_mapped(&self) -> bool {
        self.context.load(Ordering::Acquire) == MAPPED
    }

    /// Lets a device use mapped memory, or no longer.
    pub(crate) fn let_use(&self, device: u32, may: bool) {
        match may {
            true => self.users.fetch_or(1 << device, Ordering::AcqRel),
            false => self.users.fetch_and(!(1 << device), Ordering::AcqRel),
        };
    }

    /// Returns true if a device may use mapped memory.
    pub(crate) fn lets_use(&self, device: u32) -> bool {
        self.users.load(Ordering::Acquire) & 1 << device != 0
    }

    /// Checks that work of a context may use the memory.
    fn check_user(&self, context: &Context) -> Result<(), Bad> {
        match self.context.load(Ordering::Acquire) {
            MAPPED if self.lets_use(context.device) => Ok(()),
            MAPPED => Err(Bad::NotLet),
            owner if context.reaches(owner) => Ok(()),
            _ => Err(Bad::NoAccess),
        }
    }

    /// Checks that the memory belongs to a context or, if it is mapped, to its device.
    fn check_owner(&self, context: &Context) -> Result<(), Bad> {
        match self.context() {
            None if self.device() == context.device => self.check_user(context),
            Some(owner) if owner.index == context.index => Ok(()),
            _ => Err(Bad::OfAnother { owner: self.device(), named: context.device }),
        }
    }

    fn is_live(&self) -> bool {
        self.state.load(Ordering::Acquire) == LIVE
    }
}

/// Allocates memory on a context's device.
pub(crate) fn allocate(context: &Context, len: usize) -> Outcome<CUdeviceptr> {
    if len == 0 {
        refuse!(INVALID_VALUE, "an allocation of 0 bytes");
    }
    let space = space()?;
    let device = &space.devices[context.device as usize];
    let Some(place) = device.book.lock().take(len as u64) else {
        return Err(Code::OUT_OF_MEMORY.into());
    };
    let start = space.base + 2 * context.device as u64 * space.span + place;
    let allocation = new_allocation(context.device, Some(context), start, len as u64);
    device.arena.mark(place, len as u64, allocation.number + 1);
    fill_with_junk(start + space.span, len);
    Ok(start)
}

/// Takes a slot for new memory, which no address leads to yet. Without a context it is mapped.
pub(crate) fn new_allocation(
    device: u32,
    context: Option<&Context>,
    start: u64,
    len: u64,
) -> &'static Allocation {
    let (_, allocation) = ALLOCATIONS.take(|number| Allocation {
        number,
        device: AtomicU32::new(0),
        context: AtomicU32::new(0),
        users: AtomicU32::new(0),
        start: AtomicU64::new(0),
        len: AtomicU64::new(0),
        serial: AtomicU64::new(0),
        state: AtomicU32::new(0),
    });
    allocation.device.store(device, Ordering::Release);
    allocation.context.store(context.map_or(MAPPED, |context| context.index), Ordering::Release);
    allocation.users.store(0, Ordering::Release);
    allocation.start.store(start, Ordering::Release);
    allocation.len.store(len, Ordering::Release);
    allocation.serial.store(new_serial(), Ordering::Release);
    allocation.state.store(LIVE, Ordering::Release);
    allocation
}

/// Writes junk to the first and the last bytes of new memory, at a host address.
pub(crate) fn fill_with_junk(behind: u64, len: usize) {
    if plan::get().immediate {
        return;
    }
    let edge = len.min(JUNK_BYTES);
    for at in [0, len - edge] {
        // SAFETY: the range is inside new memory, whose address no caller has yet.
        unsafe { std::ptr::write_bytes((behind + at as u64) as *mut u8, JUNK, edge) };
    }
}

/// Returns the whole pages of memory that has ended to the system.
pub(crate) fn return_to_system(behind: HostRange) {
    const PAGE: usize = 4096;
    if behind.len < RETURN_BYTES || plan::get().immediate {
        return;
    }
    let (first, end) = (behind.start.next_multiple_of(PAGE), (behind.start + behind.len) / PAGE * PAGE);
    // SAFETY: the range is whole pages inside memory that has ended. It serves new memory only
    // after this.
    unsafe { libc::madvise(first as *mut _, end - first, libc::MADV_DONTNEED) };
}

/// Takes bytes of a device's memory without addresses. Returns false if there are too few.
pub(crate) fn take_bytes(device: u32, len: u64) -> Outcome<bool> {
    Ok(space()?.devices[device as usize].book.lock().take_bytes(len))
}

/// Frees bytes from [`take_bytes`].
pub(crate) fn give_bytes(device: u32, len: u64) {
    if let Some(space) = SPACE.get() {
        space.devices[device as usize].book.lock().give_bytes(len);
    }
}

/// Makes the slot of memory that has ended available for reuse.
pub(crate) fn recycle(allocation: &'static Allocation) {
    allocation.state.store(0, Ordering::Release);
    ALLOCATIONS.recycle(allocation.number);
}

/// Returns the live allocation that begins at an address, so that it can be freed.
pub(crate) fn to_free(address: CUdeviceptr) -> Outcome<&'static Allocation> {
    match space()?.find(address) {
        Some(allocation) if !allocation.is_live() => {
            refuse!(INVALID_VALUE, "{address:#x} is being freed already")
        }
        Some(allocation) if allocation.is_mapped() => {
            refuse!(INVALID_VALUE, "{address:#x} is mapped memory, which cuMemUnmap ends")
        }
        Some(allocation) if allocation.start() == address => Ok(allocation),
        Some(allocation) => {
            refuse!(INVALID_VALUE, "{address:#x} is inside the allocation at {:#x}", allocation.start())
        }
        None => refuse!(INVALID_VALUE, "{address:#x} is not a live allocation"),
    }
}

/// Ends an allocation for later calls. Returns false if another call already did.
pub(crate) fn begin_free(allocation: &Allocation) -> bool {
    allocation.state.compare_exchange(LIVE, ENDING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Releases an allocation's memory and its slot for reuse.
pub(crate) fn release(allocation: &'static Allocation) {
    let Some(space) = SPACE.get() else { return };
    let Some((device, place)) = space.place(allocation.start()) else { return };
    let len = allocation.len();
    device.arena.mark(place, len, 0);
    allocation.state.store(0, Ordering::Release);
    return_to_system(HostRange { start: (allocation.start() + space.span) as usize, len: len as usize });
    device.book.lock().give(place, len);
    ALLOCATIONS.recycle(allocation.number);
}

/// Frees all memory of a context and unregisters the host memory registered in it.
pub(crate) fn free_all(context: &Context) {
    for allocation in ALLOCATIONS.all() {
        if allocation.context.load(Ordering::Acquire) == context.index && begin_free(allocation) {
            release(allocation);
        }
    }
    host::free_all(context);
}

/// Returns the free and the total bytes of a device.
pub(crate) fn info(device: u32) -> Outcome<(usize, usize)> {
    let book = space()?.devices[device as usize].book.lock();
    Ok((book.free_bytes as usize, book.total_bytes as usize))
}

/// Returns true if an address is in the range of a device or can be reserved, even outside live
/// allocations.
#[inline]
pub(crate) fn is_device_address(address: u64) -> bool {
    SPACE.get().is_some_and(|space| space.behind(address).is_some())
}

/// Returns the allocation that contains an address, if calls may name it.
pub(crate) fn find(address: u64) -> Option<&'static Allocation> {
    SPACE.get()?.find(address).filter(|allocation| allocation.is_live())
}

/// Returns the address and the size of the live memory that is nearest to an address, of the memory
/// that device code of a context may use.
pub(crate) fn nearest(context: &Context, address: u64) -> Option<(u64, u64)> {
    let is_reachable =
        |allocation: &&Allocation| allocation.is_live() && allocation.check_user(context).is_ok();
    let allocations = ALLOCATIONS.all().filter(is_reachable);
    let ranges = allocations.map(|allocation| (allocation.start(), allocation.len()));
    let distance = |(start, len): &(u64, u64)| match address < *start {
        true => start - address,
        false => address.saturating_sub(start + len),
    };
    ranges.chain(host::all_mapped(context)).min_by_key(distance)
}

/// Returns the device of a device address or of the memory behind it. `None` for host memory.
pub(crate) fn device_of(address: usize) -> Option<u64> {
    let space = SPACE.get()?;
    let reserved = virtual_memory::behind(address as u64).map(|_| address as u64);
    if let Some(shown) = reserved.or_else(|| virtual_memory::before(address as u64)) {
        return space.find(shown).map(|mapping| mapping.device().into());
    }
    let device = (address as u64).checked_sub(space.base)? / (2 * space.span);
    (device < space.devices.len() as u64).then_some(device)
}

/// Returns an address as a caller knows it. It may be the host address of the memory behind a
/// device address.
pub(crate) fn shown(address: usize) -> u64 {
    let before = SPACE.get().and_then(|space| space.before(address as u64));
    before.unwrap_or(address as u64)
}

/// Identifies the device or page-locked memory that contains an address. Returns the address as a
/// caller knows it, and the memory's serial number.
///
/// The address may also be the host address of the memory behind a device address.
pub(crate) fn identity(address: usize) -> Option<(u64, u64)> {
    let space = SPACE.get()?;
    let address = address as u64;
    let shown = space.behind(address).map(|_| address);
    if let Some(shown) = shown.or_else(|| space.before(address)) {
        return Some((shown, space.find(shown)?.serial.load(Ordering::Acquire)));
    }
    Some((address, host::serial(address as usize)?))
}

/// The reason why a range of device addresses is unusable.
pub(crate) enum Bad {
    /// It starts in no live allocation.
    Nowhere,
    /// It is longer than the rest of its allocation, which has this many bytes.
    TooLong(u64),
    /// It belongs to a context that the user of the range has no peer access to.
    NoAccess,
    /// It is mapped memory that the device of its user may not use.
    NotLet,
    /// It does not belong to the context that the call names. The fields are the devices of both.
    OfAnother { owner: u32, named: u32 },
}

impl std::fmt::Display for Bad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Bad::Nowhere => f.write_str("is in no live allocation"),
            Bad::TooLong(rest) => write!(f, "has {rest} bytes left in its allocation"),
            Bad::NotLet => f.write_str("is mapped memory that cuMemSetAccess lets this device not use"),
            Bad::NoAccess => f.write_str("is of a context that this one has no peer access to"),
            Bad::OfAnother { owner, named } => {
                write!(f, "is of a context on device {owner}, and the call names one on device {named}")
            }
        }
    }
}

/// The user of a range.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    /// A call of the host.
    Call,
    /// Work that runs. It may still use an allocation that is being freed.
    Work,
}

/// Returns the host address of `len` bytes that `context` may use as device memory: its own, a
/// peer's, mapped memory that its device may use, or mapped host memory.
pub(crate) fn device_range(context: &Context, address: u64, len: usize, asker: Asker) -> Result<usize, Bad> {
    let Some(space) = SPACE.get() else { return Err(Bad::Nowhere) };
    let Some(behind) = space.behind(address) else {
        return match host::mapped(context, address as usize, len) {
            true => Ok(address as usize),
            false => Err(Bad::Nowhere),
        };
    };
    check_range(space, address, len, asker, |allocation| allocation.check_user(context))?;
    Ok(behind as usize)
}

/// Returns the host address of `len` bytes of device memory that belong to `context` itself or, if
/// they are mapped, to its device.
pub(crate) fn own_range(context: &Context, address: u64, len: usize) -> Result<usize, Bad> {
    let space = SPACE.get().ok_or(Bad::Nowhere)?;
    let behind = space.behind(address).ok_or(Bad::Nowhere)?;
    check_range(space, address, len, Asker::Call, |allocation| allocation.check_owner(context))?;
    Ok(behind as usize)
}

/// Checks that a range lies in one live allocation, or in mappings without a gap between them.
/// `check` checks each.
fn check_range(
    space: &Space,
    address: u64,
    len: usize,
    asker: Asker,
    check: impl Fn(&Allocation) -> Result<(), Bad>,
) -> Result<(), Bad> {
    let usable =
        |address| space.find(address).filter(|allocation| asker == Asker::Work || allocation.is_live());
    let mut allocation = usable(address).ok_or(Bad::Nowhere)?;
    loop {
        let rest = allocation.start() + allocation.len() - address;
        let fits = len as u64 <= rest;
        let next = if fits || !allocation.is_mapped() { None } else { usable(address + rest) };
        if next.is_none() && !fits {
            return Err(Bad::TooLong(rest));
        }
        check(allocation)?;
        let Some(next) = next else { return Ok(()) };
        allocation = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_must_lie_in_one_live_allocation() {
        init().ok().unwrap();
        context::create(0, 0);
        let context = context::current().ok().unwrap();
        let address = allocate(context, 1000).ok().unwrap();
        let checked = |address, len| device_range(context, address, len, Asker::Call);
        assert!(checked(address, 1000).is_ok());
        assert!(checked(address + 999, 1).is_ok());
        assert!(matches!(checked(address + 1, 1000), Err(Bad::TooLong(999))));
        assert!(
            matches!(checked(address + 1000, 1), Err(Bad::Nowhere)),
            "past the end, but in its last grain"
        );
        let allocation = to_free(address).ok().unwrap();
        assert!(to_free(address + 8).is_err());
        assert!(begin_free(allocation) && !begin_free(allocation));
        assert!(matches!(checked(address, 1), Err(Bad::Nowhere)));
        assert!(device_range(context, address, 1, Asker::Work).is_ok());
        release(allocation);
        assert!(device_range(context, address, 1, Asker::Work).is_err());
    }
}
