//! Each request for a budget is answered, in the order of the calls. Never more is granted than
//! there is, and no budget is lost.

use crate::block_on::block_on;
use crate::driver::Result;
use crate::memory::pool::UNIT_BYTES;
use crate::memory::{BudgetId, Grant, MemoryCall, PoolId, SharedOrder};
use crate::order::{Site, StreamId};
use crate::shared::budget_waits::{Budgeted, budget as await_budget, budget_blocking};
use crate::shared::memory_waits::{Short, await_memory};
use crate::shared::stream::StreamCore;
use crate::sync::Arc;
use loom::thread;
use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::sync::Mutex as StdMutex;
use std::task::{Context, Wake, Waker};

/// Waits on the calling thread for a budget of so many units.
fn budget(core: &StreamCore, units: usize) -> Budgeted {
    budget_blocking(&core.device, Site, units * UNIT_BYTES, None).expect("it is not refused")
}

/// A request that has joined the queue.
type Waiting<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

fn poll_once<T>(future: impl Future<Output = Result<T>> + Send + 'static, waker: &Waker) -> Waiting<T> {
    let mut waiting: Waiting<T> = Box::pin(future);
    assert!(waiting.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
    waiting
}

/// Asks for a budget that does not fit yet, and polls the request once.
fn budget_later(core: &StreamCore, units: usize) -> Waiting<Budgeted> {
    budget_for(core, units, Waker::noop())
}

fn budget_for(core: &StreamCore, units: usize, waker: &Waker) -> Waiting<Budgeted> {
    let device = core.device.clone();
    poll_once(async move { await_budget(&device, Site, units * UNIT_BYTES, None).await }, waker)
}

/// Awaits a request, and drops its budget.
fn pass(waiting: Waiting<Budgeted>) {
    drop(block_on(waiting).expect("it is not refused"));
}

/// Asks for a unit of memory.
fn alloc(core: &StreamCore, budget: Option<BudgetId>) -> Result<Grant, Short> {
    let (len_bytes, stream) = (UNIT_BYTES, StreamId(9));
    let call = MemoryCall { len_bytes, pool: PoolId::DEFAULT, budget, stream, site: Site };
    let order = core.device.runtime.streams.clone() as SharedOrder;
    core.device.memory.alloc(call, &order).map_err(|refusal| Short { call, order, refusal })
}

/// Allocates a unit outside of budgets.
fn alloc_outside(core: &StreamCore) -> Grant {
    alloc(core, None).ok().expect("a unit is free")
}

/// Asks for a unit that does not exist yet, and polls the request once.
fn alloc_later(core: &Arc<StreamCore>, budget: Option<BudgetId>) -> Waiting<Grant> {
    let Err(short) = alloc(core, budget) else { panic!("a unit is free") };
    let core = core.clone();
    poll_once(async move { await_memory(&core, short).await }, Waker::noop())
}

/// Takes the steps of a dropped buffer: `Drop for Allocation` of the runtime.
fn free(core: &StreamCore, grant: Grant) {
    let memory = &core.device.memory;
    if memory.free(grant.block, &[]) {
        memory.wake_waiters();
    }
}

/// Runs `f` on another thread.
fn elsewhere<T: 'static>(
    core: &Arc<StreamCore>,
    f: impl FnOnce(&Arc<StreamCore>) -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    let core = core.clone();
    thread::spawn(move || f(&core))
}

/// Runs a model of a device with so many free units, and others behind uses that do not end.
fn model(free: u32, behind: u32, body: impl Fn(&Arc<StreamCore>) + Sync + Send + 'static) {
    loom::model(move || {
        let units = free + behind;
        let core = StreamCore::new(units, 0);
        (0..free).for_each(|unit| core.device.runtime.streams.end(unit));
        body(&core);
        assert_eq!(core.device.memory.units_at_rest(), units as usize, "memory is lost");
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_closed_budget_ends_a_wait() {
    model(1, 0, |core| {
        let held = budget(core, 1);
        let other = elsewhere(core, |_| drop(held));
        drop(budget(core, 1));
        other.join().unwrap();
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_closed_budget_ends_all_waits_that_it_makes_room_for() {
    model(2, 0, |core| {
        let held = budget(core, 2);
        let (first, second) = (budget_later(core, 1), budget_later(core, 1));
        let first = elsewhere(core, |_| block_on(first).unwrap());
        let other = elsewhere(core, |_| drop(held));
        let second = block_on(second).unwrap();
        drop((first.join().unwrap(), second));
        other.join().unwrap();
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_free_of_memory_outside_ends_a_wait() {
    model(3, 0, |core| {
        let (held, outside) = (budget(core, 1), alloc_outside(core));
        let other = elsewhere(core, move |core| free(core, outside));
        drop(budget(core, 2));
        other.join().unwrap();
        drop(held);
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn each_free_of_memory_outside_ends_one_wait() {
    model(4, 0, |core| {
        let (held, outside) = (budget(core, 1), [alloc_outside(core), alloc_outside(core)]);
        let (first, second) = (budget_later(core, 2), budget_later(core, 1));
        let others = outside.map(|grant| elsewhere(core, move |core| free(core, grant)));
        let (first, second) = (block_on(first).unwrap(), block_on(second).unwrap());
        others.into_iter().for_each(|other| other.join().unwrap());
        drop((first, second, held));
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_request_that_joins_while_another_is_answered_waits_for_a_free() {
    model(4, 0, |core| {
        let (held, kept, outside) = (budget(core, 1), budget(core, 1), alloc_outside(core));
        let first = budget_later(core, 2);
        let second = elsewhere(core, |core| budget(core, 1));
        let other = elsewhere(core, move |core| free(core, outside));
        drop(held);
        let (second, first) = (second.join().unwrap(), block_on(first).unwrap());
        other.join().unwrap();
        drop((first, second, kept));
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_later_request_does_not_take_the_share_of_an_earlier_one() {
    model(2, 0, |core| {
        let held = budget(core, 1);
        let first = budget_later(core, 2);
        let other = elsewhere(core, |_| drop(held));
        // One unit is free from the beginning.
        let second = elsewhere(core, |core| {
            let second = budget(core, 1);
            assert_eq!(core.device.memory.waiting_for_budgets(), 0, "the first one was overtaken");
            drop(second);
        });
        pass(first);
        second.join().unwrap();
        other.join().unwrap();
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_request_dropped_while_it_is_answered_passes_its_budget_on() {
    model(1, 0, |core| {
        let held = budget(core, 1);
        let first = budget_later(core, 1);
        let second = elsewhere(core, |core| drop(budget(core, 1)));
        let other = elsewhere(core, |_| drop(held));
        drop(first);
        second.join().unwrap();
        other.join().unwrap();
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_request_behind_one_that_is_dropped_is_answered() {
    model(2, 0, |core| {
        let held = budget(core, 1);
        let first = budget_later(core, 2);
        let second = elsewhere(core, |core| drop(budget(core, 1)));
        drop(first);
        second.join().unwrap();
        drop(held);
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_request_behind_one_that_is_dropped_waits_for_a_free() {
    model(3, 0, |core| {
        let (held, outside) = (budget(core, 1), alloc_outside(core));
        let (first, second) = (budget_later(core, 2), budget_later(core, 2));
        let second = elsewhere(core, |_| pass(second));
        let other = elsewhere(core, move |core| free(core, outside));
        drop(first);
        second.join().unwrap();
        other.join().unwrap();
        drop(held);
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_request_that_is_dropped_alone_leaves_nothing() {
    model(1, 0, |core| {
        let held = budget(core, 1);
        let first = budget_later(core, 1);
        let other = elsewhere(core, |_| drop(held));
        drop(first);
        other.join().unwrap();
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_request_is_refused_if_memory_outside_took_its_place() {
    model(2, 0, |core| {
        let held = budget(core, 1);
        let first = budget_later(core, 2);
        let other = elsewhere(core, |core| {
            let outside = alloc_outside(core);
            drop(held);
            outside
        });
        assert!(block_on(first).is_err(), "more is granted than there is");
        free(core, other.join().unwrap());
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_waker_may_return_a_budget() {
    /// A task that owns a budget, and ends when it is woken.
    struct Task(StdMutex<Option<Budgeted>>);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            drop(self.0.lock().unwrap().take());
        }
    }

    model(2, 0, |core| {
        let held = budget(core, 1);
        let task = Task(StdMutex::new(Some(budget(core, 1))));
        let first = budget_for(core, 1, &Waker::from(Arc::new(task)));
        let second = elsewhere(core, |core| drop(budget(core, 1)));
        drop(held);
        second.join().unwrap();
        pass(first);
    });
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes without optimization: ci/loom runs it")]
fn a_budget_that_ends_while_memory_is_sought_for_it_ends_a_wait() {
    model(0, 2, |core| {
        let ending = budget(core, 1);
        let first = alloc_later(core, Some(ending.id));
        let next = elsewhere(core, |core| drop(budget(core, 2)));
        // Its first poll serves the queue, in which it stays.
        let second = elsewhere(core, |core| alloc_later(core, None));
        // In the order of a dropped future: the request, then its budget.
        drop(first);
        drop(ending);
        // Leaked if the model fails, because its destructor takes a lock of loom's.
        let second = ManuallyDrop::new(second.join().unwrap());
        next.join().unwrap();
        drop(ManuallyDrop::into_inner(second));
    });
}
