use super::super::test_driver::TestDriver;
use super::*;
use warpline_driver::ErrorKind;

fn pool(cap: usize) -> (Arc<TestDriver>, Arc<PinnedPool>) {
    let driver = TestDriver::new(usize::MAX);
    (driver.clone(), PinnedPool::new(driver, cap))
}

/// Returns memory that is there now, or the error of the request.
fn take(pool: &Arc<PinnedPool>, len_bytes: usize) -> Result<PinnedBytes, Error> {
    if let Some(bytes) = pool.try_take(len_bytes, None) {
        return Ok(bytes);
    }
    pool.try_promise(len_bytes, None).ok_or_else(|| pool.refusal(len_bytes, "none is there now"))?.keep()
}

#[test]
fn a_dropped_buffer_serves_the_next_one_of_its_size() {
    let (driver, pool) = pool(1 << 20);
    assert!(pool.try_take(5000, None).is_none());
    let first = take(&pool, 5000).unwrap();
    let address = first.ptr;
    assert_eq!(first.len_bytes, 5000);
    drop(first);
    assert!(pool.try_take(9000, None).is_none());
    assert_eq!(pool.try_take(8192, None).unwrap().ptr, address);
    let stats = pool.stats();
    assert_eq!((stats.allocated_bytes, stats.reserved_bytes), (0, 8192));
    assert_eq!((stats.peak_allocated_bytes, stats.peak_reserved_bytes), (8192, 8192));
    assert_eq!((pool.empty(), driver.host_bytes(), pool.stats().reserved_bytes), (8192, 0, 0));
}

#[test]
fn long_blocks_are_not_doubled_and_serve_requests_of_their_length() {
    let (_, pool) = pool(64 << 20);
    drop(take(&pool, (9 << 20) + 1).unwrap());
    assert_eq!(pool.stats().reserved_bytes, 10 << 20);
    assert!(pool.try_take(9 << 20, None).is_none(), "it would take more of the cap than was asked for");
    assert!(pool.try_take(10 << 20, None).is_some());
}

#[test]
fn cached_blocks_of_other_sizes_make_room_before_the_cap_is_an_error() {
    let (driver, pool) = pool(16 << 10);
    drop([take(&pool, 8 << 10).unwrap(), take(&pool, 4 << 10).unwrap()]);
    let whole = take(&pool, 16 << 10).unwrap();
    assert_eq!((driver.host_bytes(), whole.len_bytes), (16 << 10, 16 << 10));
    assert_eq!(take(&pool, usize::MAX).unwrap_err().kind(), ErrorKind::OutOfMemory);
}

#[test]
fn a_driver_without_host_memory_is_an_error_that_leaves_the_figures_alone() {
    let driver = TestDriver::new(4 << 10);
    let pool = PinnedPool::new(driver, 1 << 20);
    let _held = take(&pool, 4 << 10).unwrap();
    let error = take(&pool, 8 << 10).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert!(error.to_string().starts_with(
        "cpu:0 could not allocate pinned memory: 8.0 KiB asked, \
        4.0 KiB in use"
    ));
    assert_eq!((pool.stats().reserved_bytes, pool.stats().peak_reserved_bytes), (4 << 10, 4 << 10));
}

#[test]
fn elements_survive_the_way_through_bytes_and_other_types_are_refused() {
    let (_, pool) = pool(1 << 20);
    let mut buffer = Pinned::<f32>::new(take(&pool, 12).unwrap(), 3);
    buffer.copy_from_slice(&[1.0, 2.0, 3.0]);
    let bytes = Pinned::<i32>::from_bytes(buffer.into_bytes()).unwrap_err();
    let buffer = Pinned::<f32>::from_bytes(bytes).unwrap();
    assert_eq!(*buffer, [1.0, 2.0, 3.0]);
    assert_eq!(format!("{buffer:?}"), "Pinned<f32>(len 3)");
    assert!(Pinned::<u8>::from_bytes(take(&pool, 1).unwrap()).is_err());
}

#[test]
fn a_buffer_of_no_length_needs_no_memory() {
    let (driver, pool) = pool(0);
    let mut empty = Pinned::<f64>::new(take(&pool, 0).unwrap(), 0);
    assert!(empty.is_empty() && empty.iter_mut().next().is_none() && empty.as_ptr().is_aligned());
    assert_eq!((driver.host_bytes(), pool.stats().reserved_bytes), (0, 0));
}

#[test]
#[should_panic(expected = "4 elements of f32 do not fit in 15 bytes")]
fn more_elements_than_fit_are_refused() {
    let (_, pool) = pool(1 << 20);
    let _ = Pinned::<f32>::new(take(&pool, 15).unwrap(), 4);
}

#[test]
fn the_pool_outlives_its_handle_until_the_last_buffer_is_back() {
    let (driver, pool) = pool(1 << 20);
    let bytes = take(&pool, 1).unwrap();
    drop(pool);
    assert_eq!(driver.host_bytes(), 4 << 10);
    std::thread::spawn(move || drop(bytes)).join().unwrap();
    assert_eq!(driver.host_bytes(), 0);
}

#[test]
fn a_promise_sets_room_aside_until_it_is_dropped_or_kept() {
    let (driver, pool) = pool(16 << 10);
    drop(take(&pool, 8 << 10).unwrap());
    let promise = pool.try_promise(12 << 10, None).unwrap();
    assert_eq!((pool.stats().reserved_bytes, driver.host_bytes()), (16 << 10, 8 << 10));
    assert!(pool.try_take(8 << 10, None).is_none(), "what gives way is not lent");
    assert!(pool.try_promise(1, None).is_none());
    drop(promise);
    assert_eq!(pool.stats().reserved_bytes, 8 << 10);
    assert!(pool.try_take(8 << 10, None).is_some(), "what gave way is back");
    let kept = pool.try_promise(12 << 10, None).unwrap().keep().unwrap();
    assert_eq!((kept.len_bytes, driver.host_bytes()), (12 << 10, 16 << 10));
    assert_eq!((pool.stats().allocated_bytes, pool.stats().peak_reserved_bytes), (16 << 10, 16 << 10));
    drop(kept);
    assert_eq!((pool.empty(), driver.host_bytes()), (16 << 10, 0));
}

#[test]
fn a_promise_is_kept_with_a_block_that_came_back_meanwhile() {
    let (driver, pool) = pool(1 << 20);
    let first = take(&pool, 8 << 10).unwrap();
    let address = first.ptr;
    let promise = pool.try_promise(8 << 10, None).unwrap();
    drop(first);
    assert_eq!(promise.keep().unwrap().ptr, address);
    assert_eq!((pool.stats().reserved_bytes, driver.host_bytes()), (8 << 10, 8 << 10));
}

/// Waits until `warpline-pin` has finished its jobs.
fn grown() {
    crate::block_on::block_on(background::run_pinning(crate::DeviceId::Cpu(0), || ()));
}

#[test]
fn short_blocks_are_made_ahead_of_need_within_the_cap() {
    let driver = TestDriver::slow();
    let pool = PinnedPool::new(driver.clone(), (6 << 20) + (16 << 10));
    let first = take(&pool, 4 << 10).unwrap();
    grown();
    assert_eq!(driver.host_bytes(), 8 << 10);
    let second = pool.try_take(4 << 10, None).expect("it was made ahead");
    grown();
    assert_eq!(driver.host_bytes(), 12 << 10);
    drop((first, second));
    for _ in 0..10 {
        drop(take(&pool, 4 << 10).unwrap());
    }
    grown();
    assert_eq!(driver.host_bytes(), 12 << 10, "one more than were ever in use at once");
    let _long = take(&pool, 2 << 20).unwrap();
    grown();
    assert_eq!(driver.host_bytes(), (2 << 20) + (12 << 10), "none of that length");
    let _rest = take(&pool, 4 << 20).unwrap();
    let _last = take(&pool, 16 << 10).unwrap();
    grown();
    assert_eq!(driver.host_bytes(), (6 << 20) + (16 << 10), "the cap leaves no room for another");
    assert!(pool.stats().peak_reserved_bytes <= pool.stats().cap_bytes);
}
