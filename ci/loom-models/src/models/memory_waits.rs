//! Each request for device memory that waits is served, in the order of the calls, and no memory
//! is lost.

use crate::Error;
use crate::background::barred;
use crate::block_on::block_on;
use crate::memory::pool::UNIT_BYTES;
use crate::memory::{Grant, MemoryCall, PoolId, SharedOrder};
use crate::order::{Site, StreamId};
use crate::shared::memory_waits::{Short, await_memory, wait_for_memory};
use crate::shared::stream::StreamCore;
use crate::sync::Arc;
use loom::thread;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};

/// The stream that asks.
const STREAM: StreamId = StreamId(9);

/// Asks for memory. Returns what its owner waits with, if there is none.
fn alloc(core: &Arc<StreamCore>, units: usize) -> Result<Grant, Short> {
    let len_bytes = units * UNIT_BYTES;
    let call = MemoryCall { len_bytes, pool: PoolId::DEFAULT, budget: None, stream: STREAM, site: Site };
    let order = core.device.runtime.streams.clone() as SharedOrder;
    core.device.memory.alloc(call, &order).map_err(|refusal| Short { call, order, refusal })
}

fn alloc_blocking(core: &Arc<StreamCore>, units: usize) -> Grant {
    alloc(core, units).or_else(|short| wait_for_memory(core, short)).expect("it is not refused")
}

/// A request that has joined the queue.
type Waiting = Pin<Box<dyn Future<Output = Result<Grant, Error>> + Send>>;

/// Asks for memory that does not exist yet, and polls the request once.
fn alloc_later(core: &Arc<StreamCore>, units: usize) -> Waiting {
    let Err(short) = alloc(core, units) else { panic!("too many units are free") };
    let core = core.clone();
    let mut waiting = Box::pin(async move { await_memory(&core, short).await });
    assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    waiting
}

/// Takes the steps of a dropped buffer: `Drop for Allocation` of the runtime.
fn free(core: &StreamCore, grant: Grant) {
    let memory = &core.device.memory;
    if memory.free(grant.block, &[]) {
        memory.wake_waiters();
    }
}

/// Ends the uses of these units, one after the other, on another thread.
fn ending<const N: usize>(core: &Arc<StreamCore>, units: [u32; N]) -> thread::JoinHandle<()> {
    let streams = core.device.runtime.streams.clone();
    thread::spawn(move || units.into_iter().for_each(|unit| streams.end(unit)))
}

/// Runs a model of a device with these units, each behind a use of its own. With three threads,
/// more than two preemptions take long.
fn model(units: u32, preemptions: usize, body: impl Fn(&Arc<StreamCore>) + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.map(|most| most.min(preemptions));
    builder.check(move || {
        let core = StreamCore::new(units, 0);
        body(&core);
        assert_eq!(core.device.memory.units_at_rest(), units as usize, "memory is lost");
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_wait_ends_with_the_use_of_the_memory() {
    model(1, 3, |core| {
        let device = ending(core, [0]);
        free(core, alloc_blocking(core, 1));
        device.join().unwrap();
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_free_alone_ends_a_wait() {
    model(2, 3, |core| {
        core.device.runtime.streams.end(0);
        let held = alloc_blocking(core, 1);
        // The use of the other unit does not end.
        let other = thread::spawn({
            let core = core.clone();
            move || free(&core, held)
        });
        free(core, alloc_blocking(core, 1));
        other.join().unwrap();
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_later_request_does_not_take_the_memory_of_an_earlier_one() {
    model(3, 2, |core| {
        let streams = core.device.runtime.streams.clone();
        streams.end(0);
        let first = alloc_later(core, 2);
        let first = thread::spawn(move || {
            streams.end(1);
            block_on(first).unwrap()
        });
        let device = ending(core, [2]);
        let second = alloc_blocking(core, 1);
        assert_eq!(core.device.memory.waiting_len(), 0, "the first one was overtaken");
        device.join().unwrap();
        free(core, first.join().unwrap());
        free(core, second);
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_request_dropped_while_it_is_served_passes_its_memory_on() {
    model(2, 2, |core| {
        let first = alloc_later(core, 1);
        let second = thread::spawn({
            let core = core.clone();
            move || free(&core, alloc_blocking(&core, 1))
        });
        // The use of the other unit does not end.
        let device = ending(core, [0]);
        drop(first);
        second.join().unwrap();
        device.join().unwrap();
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_request_behind_one_that_is_dropped_takes_what_is_free() {
    model(3, 2, |core| {
        core.device.runtime.streams.end(0);
        // The uses of the other units do not end.
        let first = alloc_later(core, 2);
        let second = thread::spawn({
            let core = core.clone();
            move || free(&core, alloc_blocking(&core, 1))
        });
        drop(first);
        second.join().unwrap();
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_task_that_must_not_serve_the_queue_is_woken_by_the_thread_that_does() {
    model(1, 2, |core| {
        let Err(short) = alloc(core, 1) else { panic!("no unit is free") };
        let device = ending(core, [0]);
        barred(|| free(core, block_on(await_memory(core, short)).unwrap()));
        device.join().unwrap();
    });
}
