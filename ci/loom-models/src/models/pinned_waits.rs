//! Each request for page-locked memory that waits is granted it, in the order of the calls, and no
//! memory is lost.

use crate::Error;
use crate::block_on::block_on;
use crate::memory::pinned::{Asker, EndOfRead, InFlight, Promises, Purpose, Want};
use crate::order::{Site, StreamId};
use crate::shared::pinned_waits::{pinned_bytes_blocking, pinned_room};
use crate::shared::stream::StreamCore;
use crate::sync::{Arc, AtomicBool, Ordering};
use loom::thread;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};

/// The length of the shortest block.
const BLOCK: usize = 4 << 10;

/// Starts a copy that has one block, and returns it when it is dropped.
fn copy(core: &StreamCore) -> Arc<InFlight> {
    let copy = InFlight::new(StreamId(0), Purpose::Passage);
    let promise = core.device.pinned.try_promise(BLOCK, copy.returns()).expect("the cap has room");
    copy.fill(promise.keep().unwrap());
    copy
}

/// Ends copies, one after the other, on another thread.
fn ending<const N: usize>(copies: [Arc<InFlight>; N]) -> thread::JoinHandle<()> {
    thread::spawn(move || copies.into_iter().for_each(drop))
}

/// Gets a buffer of one block, and drops it.
fn use_buffer(core: &Arc<StreamCore>) {
    let device = &core.device;
    drop(pinned_bytes_blocking(device, &device.pinned, Some(core), Site, BLOCK).unwrap());
}

fn using_buffer(core: &Arc<StreamCore>) -> thread::JoinHandle<()> {
    let core = core.clone();
    thread::spawn(move || use_buffer(&core))
}

/// A request that has joined the queue.
type Waiting<'a> = Pin<Box<dyn Future<Output = Result<Promises, Error>> + 'a>>;

/// Asks for blocks that are in use, and polls the request once.
fn room_later<'a>(core: &'a StreamCore, lens_bytes: &'a [usize]) -> Waiting<'a> {
    let mut waiting = Box::pin(pinned_room(&core.device, Site, lens_bytes));
    assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    waiting
}

/// Runs a model with a cap of so many blocks. No memory is in use in the end.
fn model(blocks: usize, body: impl Fn(&Arc<StreamCore>) + Sync + Send + 'static) {
    loom::model(move || {
        let core = StreamCore::new(0, blocks * BLOCK);
        body(&core);
        let pool = &core.device.pinned;
        assert!(pool.waiters().is_none(), "a request is left");
        assert!(!pool.is_awaited(), "the pool counts as awaited, though no request waits");
        let all = pool.try_promises(&vec![BLOCK; blocks], None).expect("memory is lost");
        drop(all);
        pool.empty();
        let stats = pool.stats();
        assert_eq!((stats.allocated_bytes, stats.reserved_bytes), (0, 0), "it counts too much");
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_request_that_joins_while_a_copy_ends_gets_its_memory() {
    model(1, |core| {
        let device = ending([copy(core)]);
        use_buffer(core);
        device.join().unwrap();
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_request_that_joins_while_a_promise_is_dropped_gets_its_room() {
    model(1, |core| {
        let returning = InFlight::new(StreamId(0), Purpose::Passage);
        let pool = &core.device.pinned;
        let promise = pool.try_promise(BLOCK, returning.returns()).expect("the cap has room");
        let other = thread::spawn(move || drop(promise));
        use_buffer(core);
        other.join().unwrap();
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_read_that_ends_while_a_request_joins_makes_way() {
    model(1, |core| {
        // A `Pending` that nobody polls keeps it.
        let read = copy(core);
        core.device.pinned.note_read(&read);
        let device = thread::spawn({
            let end = EndOfRead(read.clone());
            move || drop(end)
        });
        use_buffer(core);
        device.join().unwrap();
        drop(read);
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_later_request_does_not_take_the_memory_of_an_earlier_one() {
    model(2, |core| {
        let device = [copy(core), copy(core)];
        let (pool, granted) = (&core.device.pinned, Arc::new(AtomicBool::new(false)));
        // The first request is that of a copy, whose memory returns when it ends.
        let first = InFlight::new(StreamId(0), Purpose::Passage);
        let grant = Box::new({
            let (granted, first) = (granted.clone(), first.clone());
            move |promise: crate::memory::Promise| {
                granted.store(true, Ordering::Release);
                first.fill(promise.keep().unwrap());
                drop(first);
            }
        });
        let asker = Asker::Copy { returns: first.returns().cloned(), grant };
        drop(first);
        pool.join(Want { lens_bytes: &[2 * BLOCK], site: Site, asker }, &|_| None).unwrap();
        let device = ending(device);
        pool.serve_now();
        use_buffer(core);
        assert!(granted.load(Ordering::Acquire), "the first one was overtaken");
        device.join().unwrap();
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_request_dropped_while_it_is_granted_passes_its_memory_on() {
    model(2, |core| {
        let [ends, stays] = [copy(core), copy(core)];
        let first = room_later(core, &[BLOCK]);
        let second = using_buffer(core);
        let device = ending([ends]);
        drop(first);
        second.join().unwrap();
        device.join().unwrap();
        drop(stays);
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_request_behind_one_that_is_dropped_gets_what_is_free() {
    model(3, |core| {
        let [ends, stays] = [copy(core), copy(core)];
        let first = room_later(core, &[BLOCK, BLOCK]);
        let second = using_buffer(core);
        drop(first);
        second.join().unwrap();
        drop((ends, stays));
    });
}
