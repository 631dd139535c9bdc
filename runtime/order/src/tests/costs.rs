//! How many records an op looks at, and how many are kept.

use super::*;
use crate::records::VISITED;

/// Returns the number of records and nodes that `run` looks at, for each of `times`.
fn visited(times: usize, run: impl FnOnce()) -> usize {
    VISITED.set(0);
    run();
    VISITED.get().div_ceil(times)
}

/// Asserts that the number of records looked at is at most `most`, and hardly grows with the size.
fn assert_bounded(most: usize, sizes: [usize; 2], of: impl Fn(usize) -> usize) {
    let [small, large] = sizes.map(of);
    assert!(large <= most && large <= 2 * small, "{small} and {large} at {sizes:?}");
}

const SLICE: u64 = 64;

fn slice(at: usize) -> ByteRange {
    ByteRange::contiguous(SLICE * at as u64, SLICE)
}

/// Lets one stream write a slice and then the touch that `then` returns, `count` times. Returns the
/// number of records that the last tenth looks at, for each slice.
fn appended(count: usize, then: impl Fn(usize) -> Option<Touch>) -> usize {
    let mut run = Run::new(1, 1, SLICE * count as u64, Strictness::Refuse);
    let mut write = |at: usize| {
        run.enter(0, &[(0, slice(at), true)], None).expect("one stream");
        if let Some(touch) = then(at) {
            run.enter(0, &[touch], None).expect("one stream");
        }
    };
    let last = count / 10;
    (0..count - last).for_each(&mut write);
    visited(last, || (count - last..count).for_each(&mut write))
}

#[test]
fn writing_another_slice_looks_at_as_few_records_at_any_size() {
    assert_bounded(100, [1_000, 30_000], |count| appended(count, |_| None));
}

#[test]
fn writing_another_slice_and_reading_all_looks_at_as_few_records_at_any_size() {
    let prefix = |at: usize| ByteRange::contiguous(0, SLICE * (at + 1) as u64);
    assert_bounded(100, [1_000, 30_000], |count| appended(count, |at| Some((0, prefix(at), false))));
}

/// Returns `count` streams that are after the allocation by stream 0, which is one of them.
fn ordered(count: usize, len: u64) -> Run {
    let mut run = Run::new(count, 1, len, Strictness::Refuse);
    let hub = run.streams[0].point();
    run.streams.iter_mut().for_each(|stream| stream.wait(&hub));
    run
}

#[test]
fn one_of_many_readers_looks_at_as_few_records_at_any_number() {
    let all = (0, slice(0), false);
    assert_bounded(100, [200, 5_000], |count| {
        let mut run = ordered(count, SLICE);
        let mut read =
            || (0..count).for_each(|stream| drop(run.enter(stream, &[all], None).expect("a read")));
        visited(count, &mut read).max(visited(count, read))
    });
}

#[test]
fn a_write_after_many_readers_looks_at_each_a_few_times() {
    assert_bounded(4, [200, 5_000], |count| {
        let mut run = ordered(count, SLICE);
        for stream in 0..count {
            run.enter(stream, &[(0, slice(0), false)], None).expect("a read");
            let reader = run.streams[stream].point();
            run.streams[0].wait(&reader);
        }
        visited(count, || drop(run.enter(0, &[(0, slice(0), true)], None).expect("it waited for all")))
    });
}

#[test]
fn writing_one_of_many_columns_looks_at_as_few_records_at_any_number() {
    const ROWS: usize = 4;
    assert_bounded(120, [200, 5_000], |count| {
        let row = SLICE * count as u64;
        let mut run = ordered(count, row * ROWS as u64);
        let column = |at| ByteRange::strided(SLICE * at as u64, SLICE, row, ROWS as u64);
        let mut write =
            || (0..count).for_each(|at| drop(run.enter(at, &[(0, column(at), true)], None).expect("alone")));
        visited(count, &mut write).max(visited(count, write))
    });
}

#[test]
fn what_was_observed_is_dropped_soon() {
    let mut run = Run::new(1, 1, SLICE * 10_000, Strictness::Refuse);
    for at in 0..5_000 {
        run.enter(0, &[(0, slice(at), true)], None).expect("one stream");
    }
    let last = run.streams[0].point();
    run.observed.observe(last.used, &last.before.clock);
    for at in 5_000..5_008 {
        run.enter(0, &[(0, slice(at), true)], None).expect("one stream");
    }
    assert!(run.ledgers[0].open().records.len() <= 8);
}

/// Lets one stream read each of `count` tiles of one block of columns, and does so `rounds` times.
/// The host observes each op when `lag` more ops were entered. Returns the number of records.
fn tiles_read(count: usize, rounds: usize, lag: usize) -> usize {
    const ROWS: u64 = 4;
    let row = 4 * SLICE;
    let tile = |at: usize| ByteRange::strided(row * ROWS * at as u64, SLICE, row, ROWS);
    let mut run = Run::new(1, 1, row * ROWS * count as u64, Strictness::Refuse);
    let mut points = Vec::new();
    for at in 0..count * rounds {
        run.enter(0, &[(0, tile(at % count), false)], None).expect("one stream");
        points.push(run.streams[0].point());
        if let Some(point) = at.checked_sub(lag).map(|at| &points[at]) {
            run.observed.observe(point.used, &point.before.clock);
        }
    }
    let page = run.ledgers[0].open();
    page.records.assert_sound();
    page.records.len()
}

#[test]
fn a_view_that_is_read_again_keeps_one_record_wherever_its_rows_are() {
    assert_eq!(tiles_read(100, 50, usize::MAX), 1 + 100);
}

#[test]
fn observed_records_behind_others_are_dropped_too() {
    // All start in the same column, and those that are not yet observed lie among them.
    assert!(tiles_read(20_000, 1, 100) <= 500, "{}", tiles_read(20_000, 1, 100));
}

#[test]
fn an_earlier_read_is_still_there_if_a_later_one_is_undone_after_the_shards_were_closed() {
    for (others, meanwhile) in [
        (0, Meanwhile::Open),
        (30, Meanwhile::Open),
        (0, Meanwhile::OpenAndContend),
        (30, Meanwhile::OpenAndContend),
    ] {
        let mut run = ordered(3, SLICE * 100);
        for at in 0..others {
            run.enter(1, &[(0, slice(at + 1), false)], None).expect("a read");
        }
        run.enter(1, &[(0, slice(0), false)], None).expect("a read");
        contend(&run.ledgers[0]);
        run.enter(1, &[(0, slice(0), false)], Some(meanwhile)).expect("a read");
        let write = run.enter(2, &[(0, slice(0), true)], None);
        assert!(matches!(write, Err(Refused::Unordered(_))), "after {others} other reads, {meanwhile:?}");
    }
}

#[test]
fn any_number_of_readers_may_wait_for_memory_that_stays_in_one_book() {
    let run = Run::new(1, 1, SLICE, Strictness::Refuse);
    let mut ledger = Ledger::unknown();
    let used = run.streams[0].point().used;
    ledger.begin(used, Some(used), SLICE, site());
    for _ in 0..1_000 {
        assert!(!ledger.open_contended(used.stream).sharded);
    }
}

/// Lets `streams` streams write `count` ranges in turn, and stream 0 wait for the others. Then it
/// makes the touch that `then` returns 50 times. Returns the number of records it looks at each
/// time.
fn after_writes(
    (streams, count, len): (usize, usize, u64),
    written: impl Fn(usize) -> ByteRange,
    then: impl Fn(usize) -> Touch,
) -> usize {
    let mut run = ordered(streams, len);
    for at in 0..count {
        run.enter(at % streams, &[(0, written(at), true)], None).expect("all are apart");
    }
    run.step(&Step::WaitForAll(0));
    let touch = |at| drop(run.enter(0, &[then(at)], None).expect("it waited for all"));
    let visited = visited(50, || (0..50).for_each(touch));
    run.ledgers[0].open().records.assert_sound();
    visited
}

#[test]
fn reading_what_several_streams_wrote_in_turn_looks_at_as_few_records_at_any_number() {
    assert_bounded(50, [1_000, 30_000], |count| {
        let len = SLICE * count as u64;
        after_writes((8, count, len), slice, |_| (0, ByteRange::contiguous(0, len), false))
    });
}

#[test]
fn writing_rows_among_many_columns_looks_at_as_few_records_at_any_number() {
    const ROWS: u64 = 64;
    assert_bounded(100, [1_000, count(4_000, 20_000)], |count| {
        let row = SLICE * count as u64;
        // The columns end half-way, so that each row below them is new.
        let column = |at| ByteRange::strided(SLICE * at as u64, SLICE, row, ROWS / 2);
        let two_rows = |at| (0, ByteRange::contiguous(row * (at as u64 % (ROWS - 1)), 2 * row), true);
        after_writes((1, count, row * ROWS), column, two_rows)
    });
}

#[test]
fn writing_columns_among_many_rows_looks_at_as_few_records_at_any_number() {
    const ROW: u64 = 8 * SLICE;
    assert_bounded(100, [1_000, count(4_000, 20_000)], |count| {
        let row = |at| ByteRange::contiguous(ROW * at as u64, ROW);
        let column = |at| (0, ByteRange::strided(SLICE * (at as u64 % 8), SLICE, ROW, count as u64), true);
        after_writes((1, count, ROW * count as u64), row, column)
    });
}

#[test]
fn writing_tiles_looks_at_as_few_records_at_any_number() {
    const ROWS: u64 = 4;
    const ROW: u64 = 4 * SLICE;
    assert_bounded(150, [1_000, count(4_000, 20_000)], |count| {
        let tile = |at| ByteRange::strided(ROW * ROWS * at as u64, SLICE, ROW, ROWS);
        let again = |at| (0, tile(at * (count / 50)), true);
        after_writes((1, count, ROW * ROWS * count as u64), tile, again)
    });
}

#[test]
fn writing_columns_of_a_reshaped_matrix_looks_at_as_few_records_at_any_number() {
    const ROWS: u64 = 8;
    // More streams than a node names, so that no node is skipped because of order.
    const STREAMS: usize = 40;
    // One matrix in two shapes, again and again: columns of each second row, and of all rows.
    assert_bounded(250, [1_000, count(4_000, 20_000)], |count| {
        let row = SLICE * count as u64;
        let wide = |at: usize| ByteRange::strided(SLICE * at as u64, SLICE, 2 * row, ROWS / 2);
        let narrow = |at: usize| ByteRange::strided(SLICE * (at * 7) as u64, SLICE, row, ROWS);
        let mut run = ordered(STREAMS, row * ROWS);
        let mut counted = 0;
        for _ in 0..3 {
            for at in 0..count {
                run.enter(at % STREAMS, &[(0, wide(at), true)], None).expect("it waited for all");
            }
            run.step(&Step::WaitForAll(0));
            // The first column of all rows moves the others into one tree.
            run.enter(0, &[(0, narrow(0), true)], None).expect("it waited for all");
            let mut write =
                |at| drop(run.enter(0, &[(0, narrow(at), true)], None).expect("it waited for all"));
            counted = visited(50, || (1..=50).for_each(&mut write)).max(counted);
            let written = run.streams[0].point();
            run.streams.iter_mut().for_each(|stream| stream.wait(&written));
        }
        run.ledgers[0].open().records.assert_sound();
        counted
    });
}

#[test]
fn moving_columns_into_one_tree_looks_at_each_a_few_times() {
    const ROWS: u64 = 8;
    assert_bounded(25, [1_000, count(4_000, 20_000)], |count| {
        let row = SLICE * count as u64;
        let mut run = Run::new(1, 1, row * ROWS, Strictness::Refuse);
        for at in 0..count as u64 {
            let wide = ByteRange::strided(SLICE * at, SLICE, 2 * row, ROWS / 2);
            run.enter(0, &[(0, wide, true)], None).expect("one stream");
        }
        let narrow = ByteRange::strided(0, SLICE, row, ROWS);
        visited(count, || drop(run.enter(0, &[(0, narrow, true)], None).expect("one stream")))
    });
}

#[test]
fn streams_that_are_gone_leave_few_uses() {
    let mut run = Run::new(2, 1, SLICE, Strictness::Skip);
    let mut most = 0;
    for _ in 0..20_000 {
        run.step(&Step::Replace(1));
        for stream in [1, 0] {
            run.enter(stream, &[(0, slice(0), false)], None).expect("no order is checked");
        }
        most = run.ledgers[0].open().uses().len().max(most);
    }
    assert!(most <= 8, "{most}");
}
