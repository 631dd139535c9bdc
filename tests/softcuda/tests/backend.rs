//! The virtual memory of the CUDA backend, called through the traits of a driver.

#![cfg(target_os = "linux")]
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a sequence of raw driver calls rests on one promise"
)]

#[path = "support/raw.rs"]
#[allow(dead_code, reason = "each test binary uses a part")]
mod raw;
#[allow(dead_code, reason = "each test binary uses a part")]
mod support;
#[path = "support/twins.rs"]
#[allow(dead_code, reason = "each test binary uses a part")]
mod twins;

use cudarc::driver::sys;
use raw::*;
use std::sync::Arc;
use support::in_child;
use twins::calls;
use warpline_cuda::{CudaDevice, CudaOptions};
use warpline_driver::background::{self, Duty};
use warpline_driver::timeline::Timeline;
use warpline_driver::{
    Command, Copy, CopyKind, DeviceId, DevicePtr, Driver, DriverError, DriverStream, Health, Point, Priority,
    Site, StreamOptions, Submission,
};

const UNIT: usize = 2 << 20;
const MEMORY: (&str, &str) = ("SOFTCUDA_MEMORY", "16777216");

fn open(ordinal: u32) -> CudaDevice {
    let health = Arc::new(Health::default());
    CudaDevice::open(ordinal, health, CudaOptions::default()).unwrap()
}

fn at(start: DevicePtr, units: usize) -> DevicePtr {
    DevicePtr(start.0 + (units * UNIT) as u64)
}

/// Maps whole units at an address of a reservation.
fn map(device: &CudaDevice, start: DevicePtr, units: usize, of_piece: usize) -> Result<(), DriverError> {
    // SAFETY: the tests map to addresses that they reserved and that have no memory.
    unsafe { device.map(start, units * UNIT, of_piece * UNIT) }
}

/// Unmaps pieces of these sizes, from an address on.
fn unmap(device: &CudaDevice, start: DevicePtr, pieces: &[usize]) -> usize {
    let mut units = 0;
    let piece = |len: &usize| {
        units += len;
        (at(start, units - len), len * UNIT)
    };
    let pieces: Vec<_> = pieces.iter().map(piece).collect();
    // SAFETY: the tests name pieces as they mapped them, which no unfinished work uses.
    unsafe { device.unmap(&pieces, false) }
}

/// Returns the units of free memory that the driver sees.
fn free_units(device: &CudaDevice) -> usize {
    device.free_bytes().unwrap() / UNIT
}

fn stream(device: &CudaDevice) -> (Arc<dyn DriverStream>, Arc<Timeline>) {
    let (label, priority) = ("test".into(), Priority::Normal);
    let options = StreamOptions { label, priority, key: 0, runtime: 0, borrowed: None };
    let timeline = Arc::new(Timeline::new());
    (device.new_stream(&options, timeline.clone()).unwrap(), timeline)
}

fn submit(stream: &dyn DriverStream, ticket: u64, command: Command) {
    let work = Submission { ticket, site: Site::here(&"test"), command, claims: None, caller: None };
    // SAFETY: the tests copy live memory, and nothing else uses it meanwhile.
    unsafe { stream.submit(work) }.unwrap();
}

/// Copies eight bytes from one device's memory to another's.
fn copy(on: &dyn DriverStream, ticket: u64, (from, src): (u32, u64), (to, dst): (u32, u64)) {
    let kind = CopyKind::Peer { source: DeviceId::Cuda(from), destination: DeviceId::Cuda(to) };
    submit(
        on,
        ticket,
        Command::Copy(Copy { kind, src, src_pitch: 8, dst, dst_pitch: 8, width_bytes: 8, height: 1 }),
    );
}

/// Returns true if a device may use an address.
fn may_use(ordinal: i32, address: DevicePtr) -> bool {
    let type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    let (location, mut flags) = (sys::CUmemLocation { type_, id: ordinal }, 0);
    ok!(cuMemGetAccess(&mut flags, &location, address.0));
    flags == 3
}

#[test]
fn pieces_are_mapped_used_and_unmapped() {
    in_child(&[MEMORY], || {
        let device = open(0);
        assert_eq!(device.granule_bytes(), Some(UNIT));
        let [x, other] = [(); 2].map(|()| device.reserve(16 * UNIT).unwrap());
        assert!(x != other && x.0.is_multiple_of(UNIT as u64));
        start();
        assert_eq!(free_units(&device), 8, "addresses cost no memory");
        map(&device, at(x, 1), 5, 2).unwrap();
        assert_eq!(free_units(&device), 3);
        assert_eq!(calls("cuMemSetAccess"), 1);
        let mut back = vec![0u8; 5 * UNIT];
        ok!(cuMemsetD8_v2(at(x, 1).0, 7, 5 * UNIT));
        ok!(cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), at(x, 1).0, 5 * UNIT));
        assert!(back.iter().all(|byte| *byte == 7));
        assert_eq!(cu!(cuMemsetD8_v2(x.0, 7, 5 * UNIT)), INVALID_VALUE, "no memory at the first unit");
        assert_eq!(unmap(&device, at(x, 1), &[2, 2, 1]), 3);
        assert_eq!(free_units(&device), 8);
        map(&device, x, 1, 4).unwrap();
        assert_eq!(unmap(&device, x, &[]), 0);
        assert_eq!(unmap(&device, x, &[1]), 1);
    });
}

#[test]
fn a_device_that_is_dropped_ends_its_mappings_and_reservations() {
    in_child(&[MEMORY], || {
        let (device, other) = (open(0), open(0));
        let [x, y] = [(); 2].map(|()| device.reserve(16 * UNIT).unwrap());
        let z = other.reserve(UNIT).unwrap();
        map(&device, x, 3, 1).unwrap();
        map(&device, at(y, 9), 2, 2).unwrap();
        map(&other, z, 1, 1).unwrap();
        drop(device);
        assert_eq!(free_units(&other), 7, "memory of the other runtime stays");
        assert_eq!((calls("cuMemUnmap"), calls("cuMemAddressFree")), (4, 2));
        drop(other);
        assert_eq!((calls("cuMemUnmap"), calls("cuMemAddressFree")), (5, 3));
    });
}

#[test]
fn without_enough_memory_nothing_is_mapped() {
    in_child(&[MEMORY], || {
        let device = open(0);
        let x = device.reserve(16 * UNIT).unwrap();
        map(&device, x, 3, 1).unwrap();
        match map(&device, at(x, 3), 6, 1) {
            Err(DriverError::OutOfMemory(Some(memory))) => assert_eq!(memory.total_bytes, 8 * UNIT),
            other => panic!("{other:?}"),
        }
        assert_eq!(free_units(&device), 5);
        assert_eq!(calls("cuMemUnmap"), 0, "which might wait for the device");
        map(&device, at(x, 3), 5, 1).unwrap();
        match device.reserve(1 << 45) {
            Err(DriverError::Refused(_)) => {}
            other => panic!("too few addresses are no lack of memory: {other:?}"),
        }
    });
}

#[test]
fn a_call_that_fails_leaves_nothing_behind() {
    for plan in ["cuMemCreate:2:999", "cuMemMap:2:999", "cuMemSetAccess:1:999", "cuMemSetAccess:1:2"] {
        in_child(&[MEMORY, ("SOFTCUDA_FAIL", plan)], || {
            let device = open(0);
            let x = device.reserve(16 * UNIT).unwrap();
            let failed = map(&device, x, 4, 2).unwrap_err();
            let plan = std::env::var("SOFTCUDA_FAIL").unwrap();
            assert_eq!(matches!(failed, DriverError::OutOfMemory(_)), plan.ends_with(":2"), "{failed:?}");
            assert_eq!(free_units(&device), 8);
            map(&device, x, 4, 2).unwrap();
            assert_eq!(free_units(&device), 4);
        });
    }
}

#[test]
fn pieces_stay_mapped_from_the_first_that_is_refused() {
    in_child(&[MEMORY, ("SOFTCUDA_FAIL", "cuMemUnmap:2:999")], || {
        let device = open(0);
        let x = device.reserve(16 * UNIT).unwrap();
        map(&device, x, 3, 1).unwrap();
        assert_eq!(unmap(&device, x, &[1, 1, 1]), 1);
        assert_eq!(free_units(&device), 6);
        assert_eq!(unmap(&device, at(x, 1), &[1, 1]), 2);
        assert_eq!(free_units(&device), 8);
    });
}

#[test]
fn a_lost_device_unmaps_nothing_more() {
    in_child(&[MEMORY, ("SOFTCUDA_FAIL", "cuMemUnmap:1:700:sticky")], || {
        let device = open(0);
        let x = device.reserve(UNIT).unwrap();
        map(&device, x, 1, 1).unwrap();
        assert_eq!(unmap(&device, x, &[1]), 0);
        assert!(device.is_lost_to_process());
        drop(device);
        assert_eq!((calls("cuMemUnmap"), calls("cuMemAddressFree")), (1, 0));
    });
}

#[test]
fn a_device_without_virtual_memory_says_so() {
    in_child(&[("SOFTCUDA_VIRTUAL_MEMORY", "0")], || {
        let device = open(0);
        assert_eq!(device.granule_bytes(), None);
        assert!(matches!(device.reserve(UNIT), Err(DriverError::Refused(_))));
    });
}

#[test]
fn peers_may_use_what_is_mapped_before_and_after_they_become_peers() {
    in_child(&[("SOFTCUDA_DEVICES", "2")], || {
        let (first, second) = (open(0), open(1));
        let x = first.reserve(4 * UNIT).unwrap();
        map(&first, x, 2, 1).unwrap();
        let y = second.alloc(8).unwrap();
        assert!(may_use(0, x) && !may_use(1, x));
        let (stream, timeline) = stream(&second);
        copy(&*stream, 1, (1, y.0), (0, x.0));
        assert!(may_use(1, x) && may_use(1, at(x, 1)), "mapped before");
        map(&first, at(x, 2), 1, 1).unwrap();
        assert!(may_use(1, at(x, 2)), "mapped after");
        copy(&*stream, 2, (0, x.0), (0, at(x, 2).0));
        let z = second.reserve(UNIT).unwrap();
        map(&second, z, 1, 1).unwrap();
        assert!(!may_use(0, z), "access has one direction");
        stream.signal(2);
        while !timeline.settle(2) {
            std::thread::yield_now();
        }
    });
}

#[test]
fn devices_that_are_no_peers_copy_mapped_memory_too() {
    in_child(&[("SOFTCUDA_DEVICES", "2"), ("SOFTCUDA_PEER", "0")], || {
        let (first, second) = (open(0), open(1));
        let x = first.reserve(UNIT).unwrap();
        map(&first, x, 1, 1).unwrap();
        let (stream, timeline) = stream(&second);
        copy(&*stream, 1, (1, second.alloc(8).unwrap().0), (0, x.0));
        assert!(!may_use(1, x));
        stream.signal(1);
        while !timeline.settle(1) {
            std::thread::yield_now();
        }
    });
}

#[test]
fn nothing_is_unmapped_while_a_gate_is_closed() {
    in_child(&[MEMORY], || {
        let device = open(0);
        let x = device.reserve(UNIT).unwrap();
        map(&device, x, 1, 1).unwrap();
        let (stream, _) = stream(&device);
        let gate = Arc::new(Timeline::new());
        submit(&*stream, 1, Command::Wait(Point { timeline: gate.clone(), ticket: 1, event: None }));
        assert_eq!(unmap(&device, x, &[1]), 0);
        gate.complete_shared(1);
        assert_eq!(unmap(&device, x, &[1]), 1);
        assert_eq!((calls("cuMemUnmap"), free_units(&device)), (1, 8));
    });
}

#[test]
fn a_thread_that_must_not_call_the_driver_unmaps_nothing() {
    in_child(&[MEMORY], || {
        let device = open(0);
        let x = device.reserve(UNIT).unwrap();
        map(&device, x, 1, 1).unwrap();
        background::set_duty(Duty::Reactor);
        assert_eq!(unmap(&device, x, &[1]), 0);
        drop(device);
        while calls("cuMemAddressFree") == 0 {
            std::thread::yield_now();
        }
    });
}

#[test]
fn a_device_dropped_while_a_gate_is_closed_ends_its_mappings_when_it_opens() {
    in_child(&[MEMORY], || {
        let (device, other) = (open(0), open(0));
        let x = device.reserve(UNIT).unwrap();
        map(&device, x, 1, 1).unwrap();
        let (stream, _) = stream(&other);
        let gate = Arc::new(Timeline::new());
        submit(&*stream, 1, Command::Wait(Point { timeline: gate.clone(), ticket: 1, event: None }));
        drop(device);
        assert_eq!(calls("cuMemUnmap"), 0);
        gate.complete_shared(1);
        while calls("cuMemAddressFree") == 0 {
            std::thread::yield_now();
        }
        assert_eq!(free_units(&other), 8);
    });
}
