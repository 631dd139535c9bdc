//! Segments that grow: what is mapped, what moves, and what a driver that refuses leaves.

use super::tests::{A, B, MIB, at, finished, get, nothing};
use super::*;
use crate::memory::queue::SharedOrder;
use crate::memory::test_driver::TestDriver;
use std::cell::Cell;

fn memory(limit: Option<usize>) -> (Arc<TestDriver>, DeviceMemory) {
    let driver = TestDriver::mapping(usize::MAX);
    (driver.clone(), DeviceMemory::new(driver, limit.map(MemoryLimit::of_bytes), Zones::None))
}

#[test]
fn a_request_maps_the_granules_that_it_needs_and_no_more() {
    let (driver, memory) = memory(None);
    for (len, reserved) in [(4 * MIB, 4), (3 * MIB, 8), (MIB + 512, 10), (512, 12), (MIB, 12), (MIB, 14)] {
        get(&memory, len, A, &nothing());
        assert_eq!(driver.device_bytes(), reserved * MIB, "after {len}");
    }
}

#[test]
fn free_memory_beside_a_hole_grows_in_place() {
    let (driver, memory) = memory(None);
    let [first, second] = [6, 5].map(|mib| get(&memory, mib * MIB, A, &nothing()));
    memory.free(first.block, &[at(A, 1)]);
    memory.free(second.block, &[at(A, 2)]);
    let longer = get(&memory, 20 * MIB, A, &nothing());
    assert_eq!((longer.ptr, longer.wait, driver.device_bytes()), (first.ptr, None, 20 * MIB));
    assert_eq!(memory.stats().served.grown, 3);
}

#[test]
fn another_streams_unfinished_memory_does_not_grow() {
    let (driver, memory) = memory(None);
    let first = get(&memory, 6 * MIB, A, &nothing());
    memory.free(first.block, &[at(A, 1)]);
    let longer = get(&memory, 8 * MIB, B, &nothing());
    assert_eq!((longer.ptr.0, driver.device_bytes()), (first.ptr.0 + 6 * MIB as u64, 14 * MIB));
}

#[test]
fn memory_that_fits_nothing_moves_once_its_uses_have_finished() {
    let (driver, memory) = memory(None);
    let blocks = [(); 8].map(|()| get(&memory, 64 * MIB, A, &nothing()));
    for block in blocks.iter().step_by(2) {
        memory.free(block.block, &[at(A, 1)]);
    }
    // No hole of 64 MiB serves 96 MiB. The device has 512 MiB, and 352 are live with this request.
    get(&memory, 96 * MIB, B, &nothing());
    assert_eq!(driver.device_bytes(), 608 * MIB, "uses are unfinished");
    get(&memory, 96 * MIB, B, &finished(A));
    assert_eq!(driver.device_bytes(), 640 * MIB, "5/4 of the 512 MiB that were live at once");
    get(&memory, 96 * MIB, B, &finished(A));
    // Now 544 MiB are live, and 5/4 of it is 680.
    assert_eq!((driver.device_bytes(), memory.stats().allocated_bytes), (680 * MIB, 544 * MIB));
}

#[test]
fn little_memory_never_moves() {
    let (driver, memory) = memory(None);
    let mut calls = 0;
    for round in 0..20 {
        for len in [512, 4 * MIB] {
            let block = get(&memory, len, A, &finished(A));
            memory.free(block.block, &[at(A, 1)]);
        }
        if round == 0 {
            calls = driver.calls();
        }
    }
    assert_eq!(driver.calls(), calls, "nothing is mapped again");
}

#[test]
fn the_whole_limit_is_used_whatever_the_lengths_were() {
    let (driver, memory) = memory(Some(64 * MIB));
    for round in 1..=6 {
        let block = get(&memory, round * 10 * MIB, A, &finished(A));
        let small = get(&memory, 512, A, &finished(A));
        assert!(driver.device_bytes() <= 64 * MIB);
        memory.free(block.block, &[at(A, 1)]);
        memory.free(small.block, &[at(A, 1)]);
    }
    assert_eq!(get(&memory, 62 * MIB, B, &finished(A)).len_bytes, 62 * MIB);
    assert_eq!(get(&memory, MIB, B, &finished(A)).len_bytes, MIB);
}

/// An order in which each use finishes before the question with this number.
struct FinishesAt(Cell<usize>);

impl ReuseOrder for FinishesAt {
    fn after(&self, _: Use) -> bool {
        false
    }

    fn finished(&self, _: Use) -> bool {
        self.0.set(self.0.get().saturating_sub(1));
        self.0.get() == 0
    }
}

#[test]
fn a_use_that_ends_while_the_pool_looks_leaves_no_empty_block() {
    for question in 1..12 {
        let (_, memory) = memory(None);
        let freed = get(&memory, 6 * MIB, A, &nothing());
        memory.free(freed.block, &[at(A, 1)]);
        let order = FinishesAt(Cell::new(question));
        let grant = memory.alloc(6 * MIB, B, &order, Site::here(&"test"), || None).unwrap();
        assert_eq!(grant.len_bytes, 6 * MIB);
        let (_, segments, _) = memory.snapshot(|_| true);
        assert!(segments.iter().flat_map(|segment| &segment.blocks).all(|block| block.len_bytes > 0));
    }
}

#[test]
fn a_length_beyond_the_limit_reserves_no_addresses() {
    let (driver, memory) = memory(Some(64 * MIB));
    for len in [65 * MIB, 1 << 40, 1 << 50] {
        memory.alloc(len, A, &nothing(), Site::here(&"test"), || None).unwrap_err();
    }
    driver.reserve_nothing();
    get(&memory, 4 * MIB, A, &nothing());
    assert_eq!(driver.device_bytes(), 20 * MIB, "the first addresses would be reserved now");
}

#[test]
fn less_than_a_granule_of_the_drivers_memory_is_used_too() {
    for total in [MIB / 2, MIB, 3 * MIB, 5 * MIB] {
        let memory = DeviceMemory::new(TestDriver::mapping(total), None, Zones::None);
        assert_eq!(get(&memory, total, A, &nothing()).len_bytes, total);
    }
}

#[test]
fn less_than_a_granule_of_the_limit_is_used_too() {
    let (driver, memory) = memory(Some(3 * MIB));
    get(&memory, 2 * MIB, A, &nothing());
    get(&memory, MIB, A, &nothing());
    assert_eq!(driver.device_bytes(), 3 * MIB);
}

#[test]
fn pieces_that_the_driver_keeps_stay_in_use() {
    let (driver, memory) = memory(Some(32 * MIB));
    let blocks = [(); 4].map(|()| get(&memory, 8 * MIB, A, &nothing()));
    for block in [&blocks[0], &blocks[2]] {
        memory.free(block.block, &[at(A, 1)]);
    }
    driver.unmap_at_most(Some(0));
    let refused = memory.alloc(12 * MIB, B, &finished(A), Site::here(&"test"), || None).unwrap_err();
    assert_eq!(refused.out_of_memory().expect("figures").cached_bytes, 16 * MIB);
    let again = [(); 2].map(|()| get(&memory, 8 * MIB, B, &finished(A)));
    assert_eq!(again.map(|grant| grant.wait), [None, None]);
    assert_eq!((driver.device_bytes(), memory.empty_cache(|_| true)), (32 * MIB, 0));
}

#[test]
fn one_live_block_keeps_the_granules_it_lies_in_and_no_others() {
    let (driver, memory) = memory(None);
    let blocks = [(); 16].map(|()| get(&memory, 3 * MIB, A, &nothing()));
    for (at_block, block) in blocks.iter().enumerate().filter(|(at_block, _)| *at_block != 5) {
        memory.free(block.block, &[at(A, at_block as u64)]);
    }
    // It lies from 15 to 18 MiB: in the granules from 14 to 18.
    assert_eq!(memory.empty_cache(|_| true), 44 * MIB);
    let stats = memory.stats();
    assert_eq!((driver.device_bytes(), stats.reserved_bytes, stats.segments), (4 * MIB, 4 * MIB, 2));
    let (_, segments, _) = memory.snapshot(|_| true);
    let lengths: Vec<_> = segments.iter().map(|segment| (segment.len_bytes, segment.blocks.len())).collect();
    assert_eq!(lengths, [(4 * MIB, 2)]);
}

#[test]
fn a_driver_without_addresses_gets_segments_of_fixed_length() {
    let (driver, memory) = memory(None);
    driver.reserve_nothing();
    get(&memory, 4 * MIB, A, &nothing());
    assert_eq!(driver.device_bytes(), 20 * MIB);
}

/// An order that knows what is before a stream, and which uses end by themselves.
struct Ends {
    ends: StreamId,
}

impl ReuseOrder for Ends {
    fn after(&self, _: Use) -> bool {
        false
    }

    fn finished(&self, _: Use) -> bool {
        false
    }

    fn ends(&self, used: Use) -> bool {
        used.stream == self.ends
    }

    fn can_wait(&self, _: Use) -> bool {
        false
    }
}

fn call(len_bytes: usize, stream: StreamId) -> MemoryCall {
    MemoryCall { len_bytes, pool: PoolId::DEFAULT, budget: None, stream, site: Site::here(&"test") }
}

#[test]
fn memory_in_the_streams_own_order_counts_beside_memory_to_come() {
    let (_, memory) = memory(Some(16 * MIB));
    let (own, other) = (get(&memory, 8 * MIB, B, &nothing()), get(&memory, 6 * MIB, A, &nothing()));
    // The use by B does not end by itself, but B may use the memory again.
    memory.free(own.block, &[at(B, 1)]);
    memory.free(other.block, &[at(A, 1)]);
    let order: SharedOrder = Arc::new(Ends { ends: A });
    let site = Site::here(&"test");
    let refusal = memory.alloc(16 * MIB, B, &order, site, || None).unwrap_err();
    memory.join(call(16 * MIB, B), order, refusal).expect("it waits for A");
    let order: SharedOrder = Arc::new(Ends { ends: B });
    let refusal = memory.alloc(16 * MIB, A, &order, site, || None).unwrap_err();
    memory.leave(1);
    memory.join(call(16 * MIB, A), order, refusal).expect("it waits for B");
}
