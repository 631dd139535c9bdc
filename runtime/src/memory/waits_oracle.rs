//! A test of the rules of waiting against a model: tasks allocate, use and free memory on streams,
//! gates hold streams, and a scheduler chooses what happens next.
//!
//! The model checks that no schedule gets stuck while a task waits, that no request is refused
//! which the rule does not allow to be refused and, for programs whose requests have one length,
//! that the verdicts are those of arithmetic under every schedule.

use super::test_driver::TestDriver;
use super::{BlockId, DeviceMemory, Grant, MemoryCall, MemoryLimit, PoolId, ReuseOrder, SharedOrder, Zones};
use crate::order::{Site, StreamId, Use};
use parking_lot::Mutex;
use proptest::prelude::*;
use std::sync::Arc;
use warpline_driver::Error;
use warpline_test_counts::count;

const MIB: usize = 1 << 20;
const LIMIT: usize = 96 * MIB;
/// Each is longer than the blocks that share a segment of fixed length.
const SIZES: [usize; 4] = [16 * MIB, 24 * MIB, 40 * MIB, 64 * MIB];
/// Lengths for a driver whose segments grow.
const ANY_SIZES: [usize; 6] = [3 * MIB, 11 * MIB + 512, 16 * MIB, 24 * MIB, 41 * MIB, 64 * MIB];
pub(super) const STREAMS: usize = 3;

/// The next step of a task. Its numbers are taken modulo what exists.
#[derive(Clone, Debug)]
enum Step {
    Alloc { stream: u8, size: u8 },
    Use { stream: u8, block: u8 },
    Free { block: u8 },
    // Makes a stream wait for another one.
    Wait { stream: u8, other: u8 },
    // Holds a stream until the task opens the gate.
    Hold { stream: u8 },
    Open,
}

fn step(gates: bool) -> impl Strategy<Value = Step> {
    let n = any::<u8>;
    prop_oneof![
        6 => (n(), n()).prop_map(|(stream, size)| Step::Alloc { stream, size }),
        6 => (n(), n()).prop_map(|(stream, block)| Step::Use { stream, block }),
        6 => n().prop_map(|block| Step::Free { block }),
        1 => (n(), n()).prop_map(|(stream, other)| Step::Wait { stream, other }),
        u32::from(gates) => n().prop_map(|stream| Step::Hold { stream }),
        u32::from(gates) => Just(Step::Open),
    ]
}

/// An op of a stream.
pub(super) enum Op {
    Work,
    Wait(Use),
    /// Runs once the gate with this number is open.
    Gate(usize),
}

#[derive(Default)]
pub(super) struct Device {
    pub(super) streams: [Vec<Op>; STREAMS],
    completed: [u64; STREAMS],
    open: Vec<bool>,
}

impl Device {
    pub(super) fn enqueue(&mut self, stream: usize, op: Op) -> u64 {
        self.streams[stream].push(op);
        self.streams[stream].len() as u64
    }

    pub(super) fn done(&self, used: Use) -> bool {
        self.completed[used.stream.number() as usize] >= used.ticket
    }

    /// Runs the next op of a stream, if it can run.
    fn step(&mut self, stream: usize) -> bool {
        let can_run = self.can_run(stream);
        self.completed[stream] += u64::from(can_run);
        can_run
    }

    fn can_run(&self, stream: usize) -> bool {
        match self.streams[stream].get(self.completed[stream] as usize) {
            None => false,
            Some(Op::Work) => true,
            Some(Op::Wait(used)) => self.done(*used),
            Some(Op::Gate(gate)) => self.open[*gate],
        }
    }

    /// Returns the last ticket of each stream that `used` is after.
    pub(super) fn before(&self, used: Use) -> [u64; STREAMS] {
        let (mut before, mut open) = ([0; STREAMS], vec![used]);
        while let Some(Use { stream, ticket }) = open.pop() {
            let stream = stream.number() as usize;
            let known = before[stream];
            before[stream] = known.max(ticket);
            for op in self.streams[stream].iter().take(ticket as usize).skip(known as usize) {
                if let Op::Wait(used) = op {
                    open.push(*used);
                }
            }
        }
        before
    }

    /// Returns true if no closed gate is at or before `used`, by a search.
    fn ends(&self, used: Use) -> bool {
        let stream = used.stream.number() as usize;
        let ops = &self.streams[stream][..used.ticket as usize];
        ops.iter().skip(self.completed[stream] as usize).all(|op| match op {
            Op::Work => true,
            Op::Wait(before) => self.ends(*before),
            Op::Gate(gate) => self.open[*gate],
        })
    }
}

/// Lets streams and tasks act in the order that `choices` draws, until none moves. `run` gets the
/// number of the round and of a task, and returns true if it moved.
pub(super) fn run_actors(
    choices: &[u8],
    device: &Mutex<Device>,
    tasks: usize,
    mut run: impl FnMut(usize, usize) -> bool,
) {
    let actors = STREAMS + tasks;
    for at in 0.. {
        let chosen = choices.get(at % choices.len().max(1)).map_or(0, |choice| *choice as usize + at / 7);
        let moved = (0..actors).any(|offset| {
            let actor = (chosen + offset) % actors;
            if actor >= STREAMS { run(at, actor - STREAMS) } else { device.lock().step(actor) }
        });
        if !moved {
            break;
        }
    }
}

/// A stream's knowledge: its own order alone, and what has finished.
struct Knows(Arc<Mutex<Device>>);

impl ReuseOrder for Knows {
    fn after(&self, _used: Use) -> bool {
        false
    }

    fn finished(&self, used: Use) -> bool {
        self.0.lock().done(used)
    }

    fn ends(&self, used: Use) -> bool {
        self.0.lock().ends(used)
    }

    fn can_wait(&self, _used: Use) -> bool {
        false
    }
}

struct Live {
    block: BlockId,
    uses: Vec<Use>,
}

/// A task: the rest of its steps, and what it holds.
struct Task {
    steps: std::vec::IntoIter<Step>,
    live: Vec<Live>,
    gates: Vec<usize>,
    /// The request that it waits for: its number, stream and length.
    waits: Option<(u64, usize, usize)>,
    /// True for each request that was granted.
    verdicts: Vec<bool>,
}

/// The kind of a device's memory.
#[derive(Clone, Copy, Debug)]
struct Kind {
    /// True if the limit is all that the driver has.
    of_driver: bool,
    /// True if segments grow.
    maps: bool,
}

fn kind() -> impl Strategy<Value = Kind> {
    any::<(bool, bool)>().prop_map(|(of_driver, maps)| Kind { of_driver, maps })
}

struct World {
    memory: DeviceMemory,
    driver: Arc<TestDriver>,
    maps: bool,
    device: Arc<Mutex<Device>>,
    order: SharedOrder,
    tasks: Vec<Task>,
    /// The one length that every request has, if they have one.
    one_size: Option<usize>,
}

impl World {
    fn new(programs: &[Vec<Step>], one_size: Option<usize>, Kind { of_driver, maps }: Kind) -> Self {
        let device = Arc::<Mutex<Device>>::default();
        let task = |steps: &Vec<Step>| Task {
            steps: steps.clone().into_iter(),
            live: Vec::new(),
            gates: Vec::new(),
            waits: None,
            verdicts: Vec::new(),
        };
        let limit = (!of_driver).then_some(MemoryLimit::of_bytes(LIMIT));
        let total = if of_driver { LIMIT } else { usize::MAX };
        let driver = if maps { TestDriver::mapping(total) } else { TestDriver::new(total) };
        World {
            memory: DeviceMemory::new(driver.clone(), limit, Zones::None),
            driver,
            maps,
            order: Arc::new(Knows(device.clone())),
            device,
            tasks: programs.iter().map(task).collect(),
            one_size,
        }
    }

    fn occupied_bytes(&self) -> usize {
        let (_, segments, _) = self.memory.snapshot(|_| true);
        let blocks = segments.iter().flat_map(|segment| &segment.blocks);
        let live = blocks.filter(|block| block.state == super::BlockState::Live);
        let live: Vec<_> = live.map(|block| (block.address, block.len_bytes)).collect();
        self.driver.occupied_bytes(&live)
    }

    /// Returns the bytes that a request takes from the driver.
    fn taken(&self, len: usize) -> usize {
        if self.maps { len.next_multiple_of(2 * MIB) } else { len }
    }

    /// Returns true if there was a gate, which may have held up a use of memory.
    fn was_held(&self) -> bool {
        !self.device.lock().open.is_empty()
    }

    /// Notes the outcome of a request. `has_waited`: true if it was in the queue.
    fn settled(
        &mut self,
        (task, stream, len): (usize, usize, usize),
        has_waited: bool,
        outcome: Result<Grant, Error>,
    ) {
        self.tasks[task].verdicts.push(outcome.is_ok());
        match outcome {
            Ok(grant) => {
                let used = Use { stream: StreamId::from_number(stream as u64), ticket: self.last(stream) };
                assert!(grant.wait.is_none());
                self.tasks[task].live.push(Live { block: grant.block, uses: vec![used] });
            }
            // Another task may have served the request a while ago, so only its figures count.
            Err(error) if has_waited => {
                let live = error.out_of_memory().expect("it has figures").allocated_bytes;
                assert!(live > 0 || self.was_held(), "{len} bytes are refused beside nothing");
            }
            Err(error) => {
                let earlier = error.out_of_memory().expect("it has figures").earlier_bytes;
                let occupied = self.occupied_bytes() + earlier;
                assert!(
                    occupied + self.taken(len) > LIMIT || self.was_held(),
                    "{len} bytes are refused beside {occupied} bytes"
                );
            }
        }
    }

    fn last(&self, stream: usize) -> u64 {
        self.device.lock().streams[stream].len() as u64
    }

    fn alloc(&mut self, task: usize, stream: usize, len: usize) {
        let (id, site) = (StreamId::from_number(stream as u64), Site::here(&"test"));
        match self.memory.alloc(len, id, &self.order, site, || None) {
            Ok(grant) => self.settled((task, stream, len), false, Ok(grant)),
            Err(refusal) => {
                let order = self.order.clone();
                match self.memory.join(
                    MemoryCall { len_bytes: len, pool: PoolId::DEFAULT, budget: None, stream: id, site },
                    order,
                    refusal,
                ) {
                    Ok(number) => self.tasks[task].waits = Some((number, stream, len)),
                    Err(refusal) => self.settled((task, stream, len), false, Err(refusal)),
                }
            }
        }
    }

    /// Runs the next step of a task. Returns false if it has none, or waits in vain for now.
    fn run(&mut self, task: usize) -> bool {
        if let Some((number, stream, len)) = self.tasks[task].waits {
            let Ok(outcome) = self.memory.look(number, true) else { return false };
            self.tasks[task].waits = None;
            self.settled((task, stream, len), true, outcome);
            return true;
        }
        let Some(step) = self.tasks[task].steps.next() else { return false };
        let at = |number: u8| number as usize % STREAMS;
        match step {
            Step::Alloc { stream, size } => {
                let len = self.one_size.unwrap_or_else(|| {
                    let sizes = if self.maps { &ANY_SIZES[..] } else { &SIZES };
                    sizes[size as usize % sizes.len()]
                });
                self.alloc(task, at(stream), len);
            }
            Step::Use { stream, block } if !self.tasks[task].live.is_empty() => {
                let block = block as usize % self.tasks[task].live.len();
                let ticket = self.device.lock().enqueue(at(stream), Op::Work);
                let used = Use { stream: StreamId::from_number(at(stream) as u64), ticket };
                let uses = &mut self.tasks[task].live[block].uses;
                uses.retain(|other| other.stream != used.stream);
                uses.push(used);
            }
            Step::Free { block } if !self.tasks[task].live.is_empty() => {
                let block = block as usize % self.tasks[task].live.len();
                let live = self.tasks[task].live.swap_remove(block);
                self.memory.free(live.block, &live.uses);
            }
            Step::Wait { stream, other } if at(stream) != at(other) => {
                let used =
                    Use { stream: StreamId::from_number(at(other) as u64), ticket: self.last(at(other)) };
                self.device.lock().enqueue(at(stream), Op::Wait(used));
            }
            Step::Hold { stream } => {
                let mut device = self.device.lock();
                let gate = device.open.len();
                device.open.push(false);
                device.enqueue(at(stream), Op::Gate(gate));
                self.tasks[task].gates.push(gate);
            }
            Step::Open => {
                if let Some(gate) = self.tasks[task].gates.pop() {
                    self.device.lock().open[gate] = true;
                }
            }
            _ => {}
        }
        true
    }

    /// Runs everything to its end, in the order that `choices` draws.
    fn run_to_the_end(&mut self, choices: &[u8]) {
        let device = self.device.clone();
        run_actors(choices, &device, self.tasks.len(), |_, task| self.run(task));
        for task in &self.tasks {
            assert!(task.waits.is_none(), "a task waits for ever");
        }
    }

    fn finish(mut self) {
        for gate in &mut self.device.lock().open {
            *gate = true;
        }
        for task in &mut self.tasks {
            for live in task.live.drain(..) {
                self.memory.free(live.block, &live.uses);
            }
        }
        let reserved = self.memory.stats().reserved_bytes;
        assert_eq!(self.memory.empty_cache(|_| true), reserved);
        assert_eq!(self.memory.stats().allocated_bytes, 0);
    }
}

/// Returns whether each request of a program is granted, from the number of live blocks alone.
fn arithmetic(program: &[Step], size: usize) -> Vec<bool> {
    let (mut live, mut verdicts) = (0, Vec::new());
    for step in program {
        match step {
            Step::Alloc { .. } => {
                let fits = (live + 1) * size <= LIMIT;
                live += usize::from(fits);
                verdicts.push(fits);
            }
            Step::Free { .. } if live > 0 => live -= 1,
            _ => {}
        }
    }
    verdicts
}

proptest! {
    #![proptest_config(ProptestConfig { cases: count(500, 10_000), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn verdicts_are_those_of_arithmetic_under_every_schedule(
        program in prop::collection::vec(step(false), 1..60),
        size in prop::sample::select(SIZES.to_vec()),
        schedules in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..100), 4),
        kind in kind(),
    ) {
        for choices in &schedules {
            let mut world = World::new(std::slice::from_ref(&program), Some(size), kind);
            world.run_to_the_end(choices);
            prop_assert_eq!(&world.tasks[0].verdicts, &arithmetic(&program, size));
            world.finish();
        }
    }

    #[test]
    fn no_schedule_gets_stuck_and_no_request_is_refused_that_the_rule_allows(
        programs in any::<bool>().prop_flat_map(|gates| {
            prop::collection::vec(prop::collection::vec(step(gates), 1..40), 1..4)
        }),
        choices in prop::collection::vec(any::<u8>(), 1..200),
        kind in kind(),
    ) {
        let mut world = World::new(&programs, None, kind);
        world.run_to_the_end(&choices);
        world.finish();
    }
}
