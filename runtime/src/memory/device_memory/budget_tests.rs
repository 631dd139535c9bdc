//! Budgets beside requests that wait, and lengths at the end of the range.

use super::tests::{A, B, MIB, at};
use super::*;
use crate::memory::queue::SharedOrder;
use crate::memory::test_driver::TestDriver;

const C: StreamId = StreamId::from_number(3);

fn memory(limit: usize) -> DeviceMemory {
    let limit = Some(MemoryLimit::of_bytes(limit));
    DeviceMemory::new(TestDriver::mapping(usize::MAX), limit, Zones::None)
}

fn granted(memory: &DeviceMemory, bytes: usize) -> BudgetId {
    let (_, mut answer) = memory.ask_for_budget(bytes, Site::here(&"test")).expect("it fits");
    answer.try_recv().expect("it does not wait").expect("it fits")
}

/// An order in which every use ends by itself, and no stream waits on the device.
struct Ends;

impl ReuseOrder for Ends {
    fn after(&self, _: Use) -> bool {
        false
    }

    fn finished(&self, _: Use) -> bool {
        false
    }

    fn ends(&self, _: Use) -> bool {
        true
    }

    fn can_wait(&self, _: Use) -> bool {
        false
    }
}

#[test]
fn a_request_that_waits_for_what_its_budget_keeps_takes_nothing_from_others() {
    let memory = memory(4 * MIB);
    let [one, other] = [granted(&memory, 2 * MIB), granted(&memory, 2 * MIB)];
    let order: SharedOrder = Arc::new(Ends);
    let site = Site::here(&"test");
    let alloc = |budget, len| memory.alloc(len, C, &order, site, || Some(budget));
    let join = |budget, len_bytes, refusal| {
        let call = MemoryCall { len_bytes, pool: PoolId::DEFAULT, budget: Some(budget), stream: C, site };
        memory.join(call, order.clone(), refusal)
    };
    let blocks = [(); 4].map(|()| alloc(one, MIB / 2).expect("it is within the budget"));
    memory.free(blocks[0].block, &[at(A, 1), at(B, 1)]);
    let refusal = alloc(one, MIB / 2).expect_err("both uses are unfinished");
    join(one, MIB / 2, refusal).expect("it waits for one of them");
    let refusal = alloc(other, 2 * MIB).expect_err("it is behind the first one");
    join(other, 2 * MIB, refusal).expect("it waits, too");
}

#[test]
fn budgets_at_the_end_of_the_range_do_not_overflow() {
    let memory = memory(usize::MAX);
    let site = Site::here(&"test");
    assert!(memory.ask_for_budget(usize::MAX, site).is_err());
    let most = isize::MAX as usize / (2 * MIB) * (2 * MIB);
    let budget = granted(&memory, most);
    let (_, mut waits) = memory.ask_for_budget(4 * MIB, site).expect("it waits for the first");
    assert!(waits.try_recv().is_err());
    memory.close_budget(budget);
    assert!(waits.try_recv().is_ok());
    assert_eq!(memory.budget(granted(&memory, 0)), (2 * MIB, 0, 0));
}
