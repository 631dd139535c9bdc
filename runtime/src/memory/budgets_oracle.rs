//! A test of budgets against a model: tasks ask for a budget, allocate within it and beyond it,
//! and one task allocates outside. A scheduler chooses what happens next.
//!
//! The model checks that the verdict on each request of a task is the same under every schedule,
//! and for long blocks that of arithmetic; that no block is handed out before its uses are over or
//! waited for; and that every wait ends.

use super::test_driver::TestDriver;
use super::waits_oracle::{Device, Op, STREAMS, run_actors};
use super::{
    Answer, BlockId, BudgetId, DeviceMemory, Grant, MemoryCall, MemoryLimit, PoolId, ReuseOrder, Zones,
};
use crate::order::{Site, StreamId, Use};
use parking_lot::Mutex;
use proptest::prelude::*;
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::oneshot;
use warpline_driver::{Error, MemoryShortage};
use warpline_test_counts::count;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const LIMIT: usize = 32 * MIB;
/// The limit for programs whose blocks are mostly short.
const SHORT_LIMIT: usize = 8 * MIB;
const BUDGETS: [usize; 6] = [2 * MIB, 4 * MIB, 6 * MIB, 9 * MIB, 14 * MIB, 28 * MIB];
/// The budgets of programs whose blocks are mostly short.
const SHORT_BUDGETS: usize = 3;
const LONG: [usize; 6] = [MIB + 512, 2 * MIB, 3 * MIB, 4 * MIB, 5 * MIB, 8 * MIB];
const SHORT: [usize; 6] = [512, 5000, 100 * KIB, 300 * KIB, 700 * KIB, MIB];

/// The next step of a task. Its numbers are taken modulo what exists.
#[derive(Clone, Debug)]
enum Step {
    Alloc { stream: u8, size: u8, is_short: bool },
    Use { stream: u8, block: u8 },
    Free { block: u8 },
    // Makes a stream wait for another one.
    Wait { stream: u8, other: u8 },
}

/// A task: the length of its budget, none for the one outside, and its steps.
#[derive(Clone, Debug)]
struct Program {
    budget: Option<usize>,
    /// True if it drops its budget before its memory.
    is_early: bool,
    steps: Vec<Step>,
}

fn step(shorts: bool) -> impl Strategy<Value = Step> {
    let n = any::<u8>;
    prop_oneof![
        8 => (n(), n(), 0..5).prop_map(move |(stream, size, kind)| {
            Step::Alloc { stream, size, is_short: shorts && kind > 0 }
        }),
        6 => (n(), n()).prop_map(|(stream, block)| Step::Use { stream, block }),
        5 => n().prop_map(|block| Step::Free { block }),
        1 => (n(), n()).prop_map(|(stream, other)| Step::Wait { stream, other }),
    ]
}

fn program(shorts: bool) -> impl Strategy<Value = Program> {
    let budgets = if shorts { &BUDGETS[..SHORT_BUDGETS] } else { &BUDGETS };
    let budget = prop::sample::select(budgets.to_vec());
    (budget, any::<bool>(), prop::collection::vec(step(shorts), 1..80))
        .prop_map(|(budget, is_early, steps)| Program { budget: Some(budget), is_early, steps })
}

/// The knowledge of a stream: its own order alone, and what has finished.
struct Knows {
    device: Arc<Mutex<Device>>,
    /// True if it can wait for another stream on the device.
    can_wait: bool,
}

impl ReuseOrder for Knows {
    fn after(&self, _used: Use) -> bool {
        false
    }

    fn finished(&self, used: Use) -> bool {
        self.device.lock().done(used)
    }

    fn ends(&self, _used: Use) -> bool {
        true
    }

    fn can_wait(&self, _used: Use) -> bool {
        self.can_wait
    }
}

struct Live {
    block: BlockId,
    addresses: Range<u64>,
    uses: Vec<Use>,
}

enum Waits {
    ForBudget(oneshot::Receiver<Answer>),
    ForMemory { number: u64, stream: usize },
}

struct Task {
    program: Program,
    steps: std::vec::IntoIter<Step>,
    has_asked: bool,
    budget: Option<BudgetId>,
    live: Vec<Live>,
    waits: Option<Waits>,
    is_over: bool,
    /// True for each request that was granted, that for the budget first.
    verdicts: Vec<bool>,
}

#[derive(Clone, Copy, Debug)]
struct Kind {
    maps: bool,
    /// True if no addresses are left for the pool of budgets after a while.
    runs_out: bool,
    zones: bool,
    can_wait: bool,
}

fn kind() -> impl Strategy<Value = Kind> {
    any::<(bool, bool, bool, bool)>().prop_map(|(maps, runs_out, zones, can_wait)| Kind {
        maps,
        runs_out,
        zones,
        can_wait,
    })
}

struct World {
    memory: DeviceMemory,
    driver: Arc<TestDriver>,
    device: Arc<Mutex<Device>>,
    order: Arc<Knows>,
    tasks: Vec<Task>,
    /// The uses of memory that was freed.
    freed: Vec<(Range<u64>, Use)>,
    /// True if the memory outside left too little for the budgets at some time.
    was_short: bool,
    limit: usize,
    runs_out: bool,
}

impl World {
    fn new(programs: &[Program], limit: usize, Kind { maps, runs_out, zones, can_wait }: Kind) -> Self {
        let device = Arc::<Mutex<Device>>::default();
        let driver = if maps { TestDriver::mapping(usize::MAX) } else { TestDriver::new(usize::MAX) };
        let zones = if zones { Zones::Behind } else { Zones::None };
        let of_bytes = Some(MemoryLimit::of_bytes(limit));
        let task = |program: &Program| Task {
            steps: program.steps.clone().into_iter(),
            program: program.clone(),
            has_asked: false,
            budget: None,
            live: Vec::new(),
            waits: None,
            is_over: false,
            verdicts: Vec::new(),
        };
        World {
            memory: DeviceMemory::new(driver.clone(), of_bytes, zones),
            driver,
            order: Arc::new(Knows { device: device.clone(), can_wait }),
            device,
            tasks: programs.iter().map(task).collect(),
            freed: Vec::new(),
            was_short: false,
            limit,
            runs_out,
        }
    }

    fn last(&self, stream: usize) -> Use {
        let ticket = self.device.lock().streams[stream].len() as u64;
        Use { stream: StreamId::from_number(stream as u64), ticket }
    }

    fn beside_budgets(&self) -> usize {
        self.memory.stats().budget_bytes + self.memory.bytes_outside()
    }

    fn note_shortage(&mut self) {
        self.was_short |= self.beside_budgets() > self.limit;
    }

    /// Checks a grant, and makes it live.
    fn granted(&mut self, task: usize, stream: usize, grant: &Grant) {
        let addresses = grant.ptr.0..grant.ptr.0 + grant.len_bytes as u64;
        let own = self.last(stream);
        let mut device = self.device.lock();
        let mut before = device.before(own);
        if let Some(used) = grant.wait {
            let more = device.before(used);
            (0..STREAMS).for_each(|stream| before[stream] = before[stream].max(more[stream]));
            device.enqueue(stream, Op::Wait(used));
        }
        for (range, used) in &self.freed {
            let overlaps = range.start < addresses.end && addresses.start < range.end;
            let is_over = device.done(*used) || before[used.stream.number() as usize] >= used.ticket;
            assert!(!overlaps || is_over, "{range:x?} is still used by {used:?}");
        }
        drop(device);
        for live in self.tasks.iter().flat_map(|task| &task.live) {
            let overlaps = live.addresses.start < addresses.end && addresses.start < live.addresses.end;
            assert!(!overlaps, "two live blocks overlap");
        }
        assert!(self.driver.holds(addresses.start, grant.len_bytes));
        // The allocation itself counts as a use.
        let uses = vec![self.last(stream)];
        self.tasks[task].live.push(Live { block: grant.block, addresses, uses });
    }

    fn settled(&mut self, task: usize, stream: usize, outcome: Result<Grant, Error>) {
        self.note_shortage();
        self.tasks[task].verdicts.push(outcome.is_ok());
        match outcome {
            Ok(grant) => self.granted(task, stream, &grant),
            Err(error) => {
                let details = error.out_of_memory().expect("it has figures");
                let is_spent = matches!(details.shortage, MemoryShortage::Budget { .. });
                // Memory that requests outside wait for counts as given to them.
                let has_outside = self.tasks.iter().any(|task| task.program.budget.is_none());
                let earlier = if has_outside { details.earlier_bytes } else { 0 };
                self.was_short |= self.beside_budgets() + earlier > self.limit;
                let is_outside = self.tasks[task].program.budget.is_none();
                assert!(is_spent || is_outside || self.was_short, "refused within a budget: {error}");
            }
        }
    }

    fn alloc(&mut self, task: usize, stream: usize, len: usize) {
        let (id, site) = (StreamId::from_number(stream as u64), Site::here(&"test"));
        let budget = self.tasks[task].budget;
        match self.memory.alloc(len, id, &self.order, site, || budget) {
            Ok(grant) => self.settled(task, stream, Ok(grant)),
            Err(refusal) => {
                let shortage = refusal.out_of_memory().expect("it has figures").shortage;
                if matches!(shortage, MemoryShortage::Budget { .. }) {
                    return self.settled(task, stream, Err(refusal));
                }
                let call = MemoryCall { len_bytes: len, pool: PoolId::DEFAULT, budget, stream: id, site };
                match self.memory.join(call, self.order.clone(), refusal) {
                    Ok(number) => self.tasks[task].waits = Some(Waits::ForMemory { number, stream }),
                    Err(refusal) => self.settled(task, stream, Err(refusal)),
                }
            }
        }
    }

    fn free(&mut self, live: Live) {
        self.freed.extend(live.uses.iter().map(|used| (live.addresses.clone(), *used)));
        if self.memory.free(live.block, &live.uses) {
            self.memory.wake_waiters();
        }
    }

    /// Looks whether the wait of a task is over. Returns false if it is not.
    fn look(&mut self, task: usize) -> bool {
        match &mut self.tasks[task].waits {
            None => true,
            Some(Waits::ForBudget(answer)) => {
                let Ok(outcome) = answer.try_recv() else { return false };
                self.tasks[task].verdicts.push(outcome.is_ok());
                self.tasks[task].budget = outcome.ok();
                self.tasks[task].waits = None;
                true
            }
            &mut Some(Waits::ForMemory { number, stream }) => {
                let Ok(outcome) = self.memory.look(number, true) else { return false };
                self.tasks[task].waits = None;
                self.settled(task, stream, outcome);
                true
            }
        }
    }

    /// Runs the next step of a task. Returns false if it has none, or waits in vain for now.
    fn run(&mut self, task: usize) -> bool {
        self.note_shortage();
        if self.tasks[task].waits.is_some() {
            return self.look(task);
        }
        if let (false, Some(bytes)) = (self.tasks[task].has_asked, self.tasks[task].program.budget) {
            self.tasks[task].has_asked = true;
            match self.memory.ask_for_budget(bytes, Site::here(&"test")) {
                Ok((_, answer)) => self.tasks[task].waits = Some(Waits::ForBudget(answer)),
                Err(_) => self.tasks[task].verdicts.push(false),
            }
            return true;
        }
        let at = |number: u8| number as usize % STREAMS;
        let has_memory = self.tasks[task].budget.is_some() || self.tasks[task].program.budget.is_none();
        match self.tasks[task].steps.next() {
            None => return self.end(task),
            Some(_) if !has_memory => {}
            Some(Step::Alloc { stream, size, is_short }) => {
                let sizes = if is_short { SHORT } else { LONG };
                self.alloc(task, at(stream), sizes[size as usize % sizes.len()]);
            }
            Some(Step::Use { stream, block }) if !self.tasks[task].live.is_empty() => {
                let block = block as usize % self.tasks[task].live.len();
                let ticket = self.device.lock().enqueue(at(stream), Op::Work);
                let used = Use { stream: StreamId::from_number(at(stream) as u64), ticket };
                let uses = &mut self.tasks[task].live[block].uses;
                // The first op on another stream waits for the allocation, as an edge would say.
                let allocation = uses[0];
                if allocation.stream != used.stream && uses.iter().all(|other| other.stream != used.stream) {
                    let mut device = self.device.lock();
                    device.streams[at(stream)].pop();
                    device.enqueue(at(stream), Op::Wait(allocation));
                    let ticket = device.enqueue(at(stream), Op::Work);
                    uses.push(Use { ticket, ..used });
                    return true;
                }
                match uses.iter_mut().find(|other| other.stream == used.stream) {
                    Some(other) => *other = used,
                    None => uses.push(used),
                }
            }
            Some(Step::Free { block }) if !self.tasks[task].live.is_empty() => {
                let block = block as usize % self.tasks[task].live.len();
                let live = self.tasks[task].live.swap_remove(block);
                self.free(live);
            }
            Some(Step::Wait { stream, other }) if at(stream) != at(other) => {
                let used = self.last(at(other));
                self.device.lock().enqueue(at(stream), Op::Wait(used));
            }
            Some(_) => {}
        }
        true
    }

    /// Ends a task: its memory goes, and its budget.
    fn end(&mut self, task: usize) -> bool {
        if self.tasks[task].is_over {
            return false;
        }
        self.tasks[task].is_over = true;
        let budget = self.tasks[task].budget.take();
        let close = |memory: &DeviceMemory| budget.iter().for_each(|id| memory.close_budget(*id));
        if self.tasks[task].program.is_early {
            close(&self.memory);
        }
        for live in std::mem::take(&mut self.tasks[task].live) {
            self.free(live);
        }
        if !self.tasks[task].program.is_early {
            close(&self.memory);
        }
        true
    }

    /// Runs everything to its end, in the order that `choices` draws.
    fn run_to_the_end(&mut self, choices: &[u8]) {
        let device = self.device.clone();
        run_actors(choices, &device, self.tasks.len(), |at, task| {
            if self.runs_out && at >= choices.len() {
                self.driver.reserve_nothing();
            }
            self.run(task)
        });
        for task in &self.tasks {
            assert!(task.waits.is_none(), "a task waits for ever");
        }
        let stats = self.memory.stats();
        assert_eq!((stats.budgets, stats.budget_bytes, stats.allocated_bytes), (0, 0, 0));
        assert_eq!(self.memory.empty_cache(|_| true), stats.reserved_bytes);
        assert_eq!(self.driver.device_bytes(), 0);
    }
}

/// Returns the verdicts on a program whose blocks are all long.
fn arithmetic(program: &Program) -> Vec<bool> {
    let granules = |bytes: usize| bytes.next_multiple_of(2 * MIB);
    let budget = granules(program.budget.expect("it has a budget"));
    let (mut live, mut verdicts) = (Vec::new(), vec![true]);
    for step in &program.steps {
        match step {
            Step::Alloc { size, .. } => {
                let len = granules(LONG[*size as usize % LONG.len()]);
                let fits = live.iter().sum::<usize>() + len <= budget;
                if fits {
                    live.push(len);
                }
                verdicts.push(fits);
            }
            Step::Free { block } if !live.is_empty() => {
                live.swap_remove(*block as usize % live.len());
            }
            _ => {}
        }
    }
    verdicts
}

fn schedules() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(prop::collection::vec(any::<u8>(), 1..200), 3)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: count(400, 10_000), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn verdicts_are_those_of_arithmetic(
        programs in prop::collection::vec(program(false), 1..6),
        schedules in schedules(),
        kind in kind(),
    ) {
        for choices in &schedules {
            let mut world = World::new(&programs, LIMIT, kind);
            world.run_to_the_end(choices);
            for (task, program) in world.tasks.iter().zip(&programs) {
                prop_assert_eq!(&task.verdicts, &arithmetic(program));
            }
        }
    }

    #[test]
    fn verdicts_on_short_blocks_are_the_same_under_every_schedule(
        programs in prop::collection::vec(program(true), 1..5),
        schedules in schedules(),
        kind in kind(),
    ) {
        let verdicts: Vec<Vec<Vec<bool>>> = schedules.iter().map(|choices| {
            let mut world = World::new(&programs, SHORT_LIMIT, kind);
            world.run_to_the_end(choices);
            world.tasks.into_iter().map(|task| task.verdicts).collect()
        }).collect();
        prop_assert!(verdicts.windows(2).all(|pair| pair[0] == pair[1]), "{verdicts:?}");
    }

    #[test]
    fn memory_outside_comes_and_goes_beside_budgets(
        mut programs in prop::collection::vec(program(true), 1..4),
        outside in prop::collection::vec(step(true), 1..80),
        choices in prop::collection::vec(any::<u8>(), 1..200),
        kind in kind(),
    ) {
        programs.push(Program { budget: None, is_early: false, steps: outside });
        let mut world = World::new(&programs, LIMIT, kind);
        world.run_to_the_end(&choices);
    }
}
