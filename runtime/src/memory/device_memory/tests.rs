//! Tests of each rung of the ladder, the statistics and the error texts.

use super::super::test_driver::TestDriver;
use super::*;
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use warpline_driver::ErrorKind;

const KIB: usize = 1 << 10;
pub(super) const MIB: usize = 1 << 20;

/// The order that a stream knows of: edges to it, and finished uses.
#[derive(Default)]
pub(super) struct Known {
    after: HashMap<StreamId, u64>,
    finished: HashSet<StreamId>,
    questions: Cell<usize>,
}

impl ReuseOrder for Known {
    fn after(&self, used: Use) -> bool {
        self.questions.set(self.questions.get() + 1);
        self.after.get(&used.stream).is_some_and(|&ticket| ticket >= used.ticket)
    }

    fn finished(&self, used: Use) -> bool {
        self.finished.contains(&used.stream)
    }
}

pub(super) fn nothing() -> Known {
    Known::default()
}

fn after(used: Use) -> Known {
    Known { after: HashMap::from([(used.stream, used.ticket)]), ..Known::default() }
}

pub(super) fn finished(stream: StreamId) -> Known {
    Known { finished: HashSet::from([stream]), ..Known::default() }
}

pub(super) const A: StreamId = StreamId::from_number(1);
pub(super) const B: StreamId = StreamId::from_number(2);
const C: StreamId = StreamId::from_number(3);

pub(super) fn at(stream: StreamId, ticket: u64) -> Use {
    Use { stream, ticket }
}

fn memory(total: usize) -> (Arc<TestDriver>, DeviceMemory) {
    let driver = TestDriver::new(total);
    (driver.clone(), DeviceMemory::new(driver, None, Zones::None))
}

#[track_caller]
pub(super) fn get(memory: &DeviceMemory, len: usize, stream: StreamId, order: &Known) -> Grant {
    memory.alloc(len, stream, order, Site::here(&"test"), || None).unwrap()
}

#[test]
fn the_same_stream_gets_its_newest_block_of_the_size_without_a_question() {
    let (driver, memory) = memory(usize::MAX);
    let order = nothing();
    let blocks = [(); 3].map(|()| get(&memory, 4000, A, &order));
    for block in blocks {
        memory.free(block.block, &[at(A, 5)]);
    }
    let again = get(&memory, 4096, A, &order);
    assert_eq!((again.ptr, again.len_bytes, again.wait), (blocks[2].ptr, 4096, None));
    assert_eq!((order.questions.get(), driver.calls()), (0, 1));
    assert_eq!(memory.stats().served.own, 1);
}

#[test]
fn lengths_round_to_512_and_nothing_is_served_as_512() {
    let (_, memory) = memory(usize::MAX);
    let (empty, one) = (get(&memory, 0, A, &nothing()), get(&memory, 513, A, &nothing()));
    assert_eq!((empty.len_bytes, one.len_bytes), (512, 1024));
    assert_ne!(empty.ptr, one.ptr);
    assert_eq!(memory.stats().allocated_bytes, 1536);
}

#[test]
fn small_middle_and_large_blocks_come_from_segments_of_their_own_sort() {
    let (driver, memory) = memory(usize::MAX);
    for (len, reserved) in [(MIB, 2), (MIB, 2), (MIB + 1, 22), (10 * MIB, 22), (10 * MIB + 1, 34)] {
        get(&memory, len, A, &nothing());
        assert_eq!(memory.stats().reserved_bytes, reserved * MIB, "after {len}");
    }
    assert_eq!((driver.calls(), driver.device_bytes()), (3, 34 * MIB));
}

#[test]
fn a_stream_after_the_last_use_by_its_known_clock_gets_the_block() {
    let (_, memory) = memory(usize::MAX);
    let block = get(&memory, 16 * MIB, A, &nothing());
    memory.free(block.block, &[at(A, 5)]);
    assert_ne!(get(&memory, 16 * MIB, B, &after(at(A, 4))).ptr, block.ptr);
    let again = get(&memory, 16 * MIB, B, &after(at(A, 5)));
    assert_eq!((again.ptr, again.wait, memory.stats().served.ordered), (block.ptr, None, 1));
}

#[test]
fn any_stream_gets_a_block_whose_uses_are_finished() {
    let (_, memory) = memory(usize::MAX);
    let block = get(&memory, 16 * MIB, A, &nothing());
    memory.free(block.block, &[at(A, 5), at(C, 1)]);
    assert_ne!(get(&memory, 16 * MIB, B, &finished(C)).ptr, block.ptr);
    assert_eq!(get(&memory, 16 * MIB, B, &finished(A)).ptr, block.ptr, "c was found finished before");
    assert_eq!(memory.stats().served.finished, 1);
}

#[test]
fn the_tightest_fit_is_taken() {
    let (_, memory) = memory(usize::MAX);
    let blocks = [40, 30, 20].map(|mib| get(&memory, mib * MIB, A, &nothing()));
    for block in blocks {
        memory.free(block.block, &[at(A, 1)]);
    }
    let found = get(&memory, 30 * MIB, B, &finished(A));
    assert_eq!((found.ptr, found.len_bytes), (blocks[1].ptr, 30 * MIB));
}

#[test]
fn neighbours_are_joined_when_nothing_else_fits_and_cut_again() {
    let (driver, memory) = memory(usize::MAX);
    let blocks = [(); 2048].map(|()| get(&memory, KIB, A, &nothing()));
    for block in blocks {
        memory.free(block.block, &[at(A, 1)]);
    }
    let whole = get(&memory, MIB, A, &nothing());
    assert_eq!((driver.calls(), memory.stats().served.merged, whole.len_bytes), (1, 1, MIB));
    // Only as many blocks as needed were joined.
    assert_eq!(memory.stats().cached_blocks, 1024);
    memory.free(whole.block, &[at(A, 2)]);
    get(&memory, 512 * KIB, A, &nothing());
    assert_eq!((driver.calls(), memory.stats().cached_blocks), (1, 1025));
}

#[test]
fn neighbours_in_use_elsewhere_are_not_joined() {
    let (driver, memory) = memory(usize::MAX);
    let blocks = [(); 4].map(|()| get(&memory, 512 * KIB, A, &nothing()));
    for (block, stream) in blocks.iter().zip([A, B, A, C]) {
        memory.free(block.block, &[at(A, 1), at(stream, 2)]);
    }
    assert_ne!(get(&memory, MIB, A, &nothing()).ptr, blocks[0].ptr);
    assert_eq!(driver.calls(), 2);
    get(&memory, MIB, A, &after(at(B, 2)));
    // The rest of the second segment is the tighter fit. The neighbours come only after it.
    assert_eq!(memory.stats().served.merged, 0);
    let joined = get(&memory, MIB, A, &after(at(B, 2)));
    assert_eq!((joined.ptr, memory.stats().served.merged), (blocks[0].ptr, 1));
}

#[test]
fn one_block_queued_elsewhere_is_left_alone_and_of_two_the_older_is_waited_for() {
    let (driver, memory) = memory(usize::MAX);
    let blocks = [(); 2].map(|()| get(&memory, 16 * MIB, A, &nothing()));
    memory.free(blocks[0].block, &[at(A, 1), at(B, 7)]);
    let third = get(&memory, 16 * MIB, A, &nothing());
    assert_eq!((third.wait, driver.calls()), (None, 3));
    memory.free(blocks[1].block, &[at(A, 1), at(B, 8)]);
    let waited = get(&memory, 16 * MIB, A, &nothing());
    assert_eq!((waited.ptr, waited.wait), (blocks[0].ptr, Some(at(B, 7))));
    assert_eq!((memory.stats().served.waited, driver.calls()), (1, 3));
}

#[test]
fn blocks_queued_behind_different_streams_do_not_tie_a_third_one_to_them() {
    let (driver, memory) = memory(usize::MAX);
    let blocks = [A, B].map(|stream| get(&memory, 16 * MIB, stream, &nothing()));
    memory.free(blocks[0].block, &[at(A, 1)]);
    memory.free(blocks[1].block, &[at(B, 1)]);
    assert_eq!(get(&memory, 16 * MIB, C, &nothing()).wait, None);
    assert_eq!(driver.calls(), 3);
}

#[test]
fn a_loop_that_never_synchronizes_stays_bounded_and_gets_two_buffers() {
    let (driver, memory) = memory(usize::MAX);
    let mut order = nothing();
    let mut addresses = HashSet::new();
    for ticket in 1..1000 {
        let grant = get(&memory, 16 * MIB, A, &order);
        if let Some(used) = grant.wait {
            order.after.insert(used.stream, used.ticket);
        }
        addresses.insert(grant.ptr);
        memory.free(grant.block, &[at(A, 2 * ticket), at(B, ticket)]);
    }
    assert_eq!((addresses.len(), driver.calls()), (2, 2));
}

#[test]
fn when_growing_fails_cached_segments_are_given_back_first() {
    let (driver, memory) = memory(40 * MIB);
    let block = get(&memory, 16 * MIB, A, &nothing());
    memory.free(block.block, &[at(A, 1)]);
    let other = get(&memory, 16 * MIB, B, &nothing());
    let large = get(&memory, 20 * MIB, B, &finished(A));
    assert_eq!((large.wait, driver.device_bytes(), memory.stats().segments), (None, 36 * MIB, 2));
    memory.free(other.block, &[]);
}

#[test]
fn when_nothing_can_be_given_back_a_single_queued_block_is_waited_for() {
    let (_, memory) = memory(16 * MIB);
    let block = get(&memory, 16 * MIB, A, &nothing());
    memory.free(block.block, &[at(A, 3)]);
    let grant = get(&memory, 16 * MIB, B, &nothing());
    assert_eq!((grant.ptr, grant.wait), (block.ptr, Some(at(A, 3))));
}

#[test]
fn at_the_last_resort_neighbours_behind_one_stream_are_joined_and_waited_for_together() {
    let (_, memory) = memory(2 * MIB);
    let blocks = [(); 4].map(|()| get(&memory, 512 * KIB, A, &nothing()));
    for (block, ticket) in blocks.iter().zip([9, 4, 2, 1]) {
        memory.free(block.block, &[at(A, ticket)]);
    }
    let grant = get(&memory, MIB, B, &nothing());
    assert_eq!(grant.len_bytes, MIB);
    let wait = grant.wait.unwrap();
    assert!(wait.stream == A && wait.ticket >= 2);
}

#[test]
fn a_grant_given_back_unused_is_as_unfinished_as_before() {
    let (_, memory) = memory(16 * MIB);
    let block = get(&memory, 16 * MIB, A, &nothing());
    memory.free(block.block, &[at(A, 3)]);
    let grant = get(&memory, 16 * MIB, B, &nothing());
    assert!(grant.wait.is_some());
    memory.free(grant.block, &[]);
    assert_eq!(get(&memory, 16 * MIB, C, &nothing()).wait, Some(at(A, 3)));
}

#[test]
fn a_tight_limit_is_served_with_a_segment_of_the_very_size() {
    let driver = TestDriver::new(usize::MAX);
    let memory = DeviceMemory::new(driver.clone(), Some(MemoryLimit::of_bytes(3 * MIB)), Zones::None);
    get(&memory, 2 * MIB, A, &nothing());
    get(&memory, MIB, A, &nothing());
    assert_eq!((driver.device_bytes(), memory.stats().segments), (3 * MIB, 2));
    assert!(memory.alloc(1, A, &nothing(), Site::here(&"test"), || None).is_err());
}

#[test]
fn out_of_memory_names_the_numbers_and_the_largest_holders() {
    let (_, memory) = memory(100 * MIB);
    let _small = get(&memory, 12 * MIB, A, &nothing());
    let hold = || get(&memory, 16 * MIB, A, &nothing());
    let line = line!() - 1;
    let (held, _other) = (hold(), hold());
    let freed = get(&memory, 32 * MIB, A, &nothing());
    memory.free(freed.block, &[at(A, 1)]);
    let error = memory.alloc(64 * MIB, B, &nothing(), Site::here(&"test"), || None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert_eq!(
        error.to_string(),
        format!(
            "cpu:0 is out of memory: 64.0 MiB asked, 24.0 MiB free of 100 MiB (44.0 MiB in use, 32.0 MiB cached, 32.0 MiB of \
             it behind unfinished work); largest holders: 32.0 MiB from {file}:{line} (2 allocations), 12.0 MiB from {file}:{}; drop tensors or \
             lower the batch size; requests that run at the same time can wait for a Device::budget",
            line - 1,
            file = file!(),
        )
    );
    memory.free(held.block, &[]);
    assert!(
        memory.alloc(16 * MIB, A, &nothing(), Site::here(&"test"), || None).is_ok(),
        "an error changes nothing"
    );
}

#[test]
fn the_limit_is_named_when_it_is_what_is_missing_and_no_length_overflows() {
    let limit = Some(MemoryLimit::of_bytes(8 * MIB));
    let memory = DeviceMemory::new(TestDriver::new(usize::MAX), limit, Zones::None);
    let text =
        |len: usize| memory.alloc(len, A, &nothing(), Site::here(&"test"), || None).unwrap_err().to_string();
    assert!(text(9 * MIB).starts_with(
        "cpu:0 is out of memory: 9.0 MiB asked, 8.0 MiB free of the limit of 8.0 MiB (0 B in use"
    ));
    for len in [usize::MAX, isize::MAX as usize, isize::MAX as usize / 2] {
        assert!(text(len).contains("out of memory"));
    }
}

#[test]
fn zones_lie_behind_blocks_and_count_nowhere() {
    let driver = TestDriver::new(usize::MAX);
    let memory = DeviceMemory::new(driver.clone(), Some(MemoryLimit::of_bytes(22 * MIB)), Zones::Behind);
    let small = [1, 4096, 0, MIB - 4608].map(|len| get(&memory, len, A, &nothing()));
    let offsets = small.map(|grant| (grant.ptr.0 - small[0].ptr.0) as usize);
    assert_eq!(offsets, [0, 2 * 512, 2 * 4608, 2 * 5120]);
    let large = [3 * MIB / 2, 2 * MIB].map(|len| get(&memory, len, A, &nothing()));
    assert_eq!((large[1].ptr.0 - large[0].ptr.0) as usize, 3 * MIB / 2 + 64 * KIB);
    let stats = memory.stats();
    assert_eq!((stats.reserved_bytes, stats.allocated_bytes), (22 * MIB, MIB + 512 + 7 * MIB / 2));
    assert_eq!(driver.device_bytes(), 4 * MIB + 20 * MIB + 20 * 64 * KIB);
}

#[test]
fn a_graph_gets_a_segment_whose_zones_are_those_of_its_blocks() {
    let driver = TestDriver::new(usize::MAX);
    let memory = DeviceMemory::new(driver.clone(), Some(MemoryLimit::of_bytes(4 * MIB)), Zones::Behind);
    // The limit has no room for a segment of 20 MiB, so this one is as long as one of small
    // blocks.
    let large = get(&memory, 2 * MIB, A, &nothing());
    memory.free(large.block, &[]);
    let pool = memory.new_pool();
    let small = memory.alloc_in(pool, 1, A, &nothing(), Site::here(&"test")).unwrap();
    assert_ne!(small.ptr, large.ptr);
    let (segments, bytes) = memory.pieces_of(pool);
    let addresses = small.ptr.0..small.ptr.0 + 4 * MIB as u64;
    assert_eq!((segments.as_slice(), bytes), (std::slice::from_ref(&addresses), 2 * MIB));
    memory.free(small.block, &[]);
    memory.dissolve(pool);
    let again = memory.alloc_in(memory.new_pool(), 1, A, &nothing(), Site::here(&"test")).unwrap();
    assert_eq!((again.ptr, driver.calls()), (small.ptr, 2));
}

#[test]
fn empty_cache_keeps_live_blocks_and_unfinished_ones() {
    let (driver, memory) = memory(usize::MAX);
    let [live, unfinished, done] = [16, 18, 24].map(|mib| get(&memory, mib * MIB, A, &nothing()));
    let half = [(); 2].map(|()| get(&memory, MIB, A, &nothing()));
    memory.free(unfinished.block, &[at(A, 1), at(B, 1)]);
    memory.free(done.block, &[at(A, 1)]);
    memory.free(half[0].block, &[at(A, 1)]);
    assert_eq!(memory.empty_cache(|used| used.stream == A), 24 * MIB);
    assert_eq!(memory.empty_cache(|used| used.stream == A), 0);
    assert_eq!((driver.device_bytes(), memory.stats().reserved_bytes), (36 * MIB, 36 * MIB));
    assert!(driver.holds(live.ptr.0, live.len_bytes) && driver.holds(half[1].ptr.0, MIB));
    memory.free(live.block, &[at(A, 2)]);
    memory.free(half[1].block, &[at(A, 2)]);
    assert_eq!(memory.empty_cache(|_| true), 36 * MIB);
    let stats = memory.stats();
    assert_eq!(
        (stats.allocated_bytes, stats.reserved_bytes, stats.segments, stats.cached_blocks),
        (0, 0, 0, 0)
    );
    assert_eq!(driver.device_bytes(), 0);
}

#[test]
fn peaks_stay_until_they_are_reset() {
    let (_, memory) = memory(usize::MAX);
    let block = get(&memory, 16 * MIB, A, &nothing());
    memory.free(block.block, &[]);
    memory.empty_cache(|_| true);
    let stats = memory.stats();
    assert_eq!((stats.peak_allocated_bytes, stats.peak_reserved_bytes), (16 * MIB, 16 * MIB));
    memory.reset_peak();
    let stats = memory.stats();
    assert_eq!((stats.peak_allocated_bytes, stats.peak_reserved_bytes), (0, 0));
}

#[test]
fn ten_thousand_streams_that_came_and_went_leave_one_segment() {
    let (driver, memory) = memory(usize::MAX);
    for stream in 1..10_000 {
        let order = finished(StreamId::from_number(stream - 1));
        let block = get(&memory, 4 * KIB, StreamId::from_number(stream), &order);
        memory.free(block.block, &[at(StreamId::from_number(stream), 1)]);
    }
    assert_eq!(driver.calls(), 1);
    assert!(memory.stats().cached_blocks <= 513);
}

#[test]
fn threads_that_allocate_at_once_never_share_a_block() {
    let (driver, memory) = memory(usize::MAX);
    let held = Mutex::new(HashSet::new());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (memory, held) = (&memory, &held);
            scope.spawn(move || {
                for round in 0..2000 {
                    let len = [4 * KIB, 64 * KIB, 3 * MIB][round % 3];
                    let grant = get(memory, len, StreamId::from_number(thread), &nothing());
                    assert!(held.lock().insert(grant.ptr));
                    held.lock().remove(&grant.ptr);
                    memory.free(grant.block, &[at(StreamId::from_number(thread), round as u64)]);
                }
            });
        }
    });
    assert_eq!(memory.stats().allocated_bytes, 0);
    assert_eq!(memory.empty_cache(|_| true), memory.stats().peak_reserved_bytes);
    assert_eq!(driver.device_bytes(), 0);
}
