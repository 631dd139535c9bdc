//! A test of the rules of waiting for page-locked memory against a model: a program copies, reads,
//! asks for buffers and holds streams by gates, while a scheduler chooses when devices go on.
//!
//! The model decides each request by arithmetic, from what the program did alone. So a verdict
//! that depends on how far the devices are is found. It also checks that grants come in the order
//! of the calls, and that every wait ends without the program, even if gates stay closed.

use super::super::test_driver::TestDriver;
use super::*;
use crate::order::{Site, StreamId, Use};
use proptest::prelude::*;
use std::sync::OnceLock;
use warpline_test_counts::count;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// A cap, and the lengths of requests: powers of two, and the coarse lengths above 1 MiB.
const SIZES: [(usize, [usize; 5]); 2] = [
    (64 * KIB, [4 * KIB, 8 * KIB, 16 * KIB, 32 * KIB, 64 * KIB]),
    (10 * MIB, [2 * MIB, 4 * MIB, 5 * MIB, 6 * MIB, 10 * MIB]),
];
const STREAMS: usize = 3;

/// A step of the program. Its numbers are taken modulo what exists.
#[derive(Clone, Debug)]
enum Step {
    /// Copies to a device, which returns the memory.
    Write {
        stream: u8,
        len: u8,
    },
    /// Reads from a device. The result is polled later, or never.
    Read {
        stream: u8,
        len: u8,
    },
    /// Asks for a buffer, and waits for it in the next step that needs one.
    Ask {
        len: u8,
    },
    /// Gives the request up.
    GiveUp,
    /// Drops a buffer.
    Drop {
        buffer: u8,
    },
    /// Copies from a buffer. Its `Pending` is kept, or dropped.
    Send {
        stream: u8,
        buffer: u8,
        is_left: bool,
    },
    /// Polls a read, or the copy of a buffer, if it has finished.
    Poll {
        result: u8,
    },
    /// Makes a stream wait for another one.
    Wait {
        stream: u8,
        other: u8,
    },
    /// Holds a stream by a gate.
    Hold {
        stream: u8,
    },
    Open,
}

fn step() -> impl Strategy<Value = Step> {
    let n = any::<u8>;
    prop_oneof![
        5 => (n(), n()).prop_map(|(stream, len)| Step::Write { stream, len }),
        4 => (n(), n()).prop_map(|(stream, len)| Step::Read { stream, len }),
        4 => n().prop_map(|len| Step::Ask { len }),
        1 => Just(Step::GiveUp),
        3 => n().prop_map(|buffer| Step::Drop { buffer }),
        3 => (n(), n(), any::<bool>())
            .prop_map(|(stream, buffer, is_left)| Step::Send { stream, buffer, is_left }),
        3 => n().prop_map(|result| Step::Poll { result }),
        1 => (n(), n()).prop_map(|(stream, other)| Step::Wait { stream, other }),
        1 => n().prop_map(|stream| Step::Hold { stream }),
        1 => Just(Step::Open),
    ]
}

/// The stream's end of a copy, which it drops when the copy has run.
enum Kept {
    Copy { _copy: Arc<InFlight> },
    Read { _end: EndOfRead },
}

enum Op {
    /// Runs once its memory is there.
    Copy {
        kept: Option<Kept>,
        is_there: Arc<OnceLock<()>>,
    },
    Wait {
        stream: usize,
        ticket: usize,
    },
    /// Runs once the gate with this number is open.
    Gate(usize),
}

#[derive(Default)]
struct Devices {
    streams: [Vec<Op>; STREAMS],
    completed: [usize; STREAMS],
    open: Vec<bool>,
}

impl Devices {
    fn can_run(&self, stream: usize) -> bool {
        match self.streams[stream].get(self.completed[stream]) {
            None => false,
            Some(Op::Copy { is_there, .. }) => is_there.get().is_some(),
            Some(Op::Wait { stream, ticket }) => self.completed[*stream] >= *ticket,
            Some(Op::Gate(gate)) => self.open[*gate],
        }
    }

    /// Runs an op of a stream. Returns false if none can run.
    fn run(&mut self, stream: usize) -> bool {
        if !self.can_run(stream) {
            return false;
        }
        let at = self.completed[stream];
        self.completed[stream] += 1;
        if let Op::Copy { kept, .. } = &mut self.streams[stream][at] {
            drop(kept.take());
        }
        true
    }

    /// Returns true if a closed gate is at or before this place, by a search.
    fn is_behind_gate(&self, stream: usize, ticket: usize) -> bool {
        self.streams[stream].iter().take(ticket).any(|op| match op {
            Op::Copy { .. } => false,
            Op::Wait { stream, ticket } => self.is_behind_gate(*stream, *ticket),
            Op::Gate(gate) => !self.open[*gate],
        })
    }
}

/// Memory that the program has, or that comes back, as the model counts it.
#[derive(Clone, Copy)]
enum Counted {
    Held(usize),
    Copy { stream: usize, ticket: usize, len: usize },
}

/// The result of a copy that has one.
enum Polled {
    Read(Arc<InFlight>),
    /// A buffer in a copy, and its place in the model.
    Sent(Claim, usize),
}

/// A request for a buffer that the program has not awaited yet.
enum Asked {
    Served(Pinned<u8>),
    /// It waits, with this number.
    Waits(u64),
}

struct World {
    cap: usize,
    lens: [usize; 5],
    pool: Arc<PinnedPool>,
    devices: Devices,
    /// The newest request for a buffer, and its place in the model.
    asked: Option<(Asked, usize)>,
    buffers: Vec<(Pinned<u8>, usize)>,
    results: Vec<(usize, usize, Polled)>,
    counted: Vec<Counted>,
    /// The calls of the copies that waited, in the order in which they were granted memory.
    granted: Arc<Mutex<Vec<usize>>>,
    verdicts: Vec<bool>,
}

fn id(stream: usize) -> StreamId {
    StreamId::from_number(stream as u64)
}

impl World {
    fn new((cap, lens): (usize, [usize; 5])) -> Self {
        World {
            cap,
            lens,
            pool: PinnedPool::new(TestDriver::new(usize::MAX), cap),
            devices: Devices::default(),
            asked: None,
            buffers: Vec::new(),
            results: Vec::new(),
            counted: Vec::new(),
            granted: Arc::default(),
            verdicts: Vec::new(),
        }
    }

    /// Returns what the model says about a request.
    fn fits(&self, len: usize) -> bool {
        let held = self.counted.iter().map(|counted| match *counted {
            Counted::Held(len) => len,
            Counted::Copy { stream, ticket, len } => {
                if self.devices.is_behind_gate(stream, ticket) {
                    len
                } else {
                    0
                }
            }
        });
        held.sum::<usize>() + len <= self.cap
    }

    fn join(&self, len: usize, asker: Asker) -> Result<u64, Error> {
        let want = Want { lens_bytes: &[len], site: Site::here(&"test"), asker };
        let devices = &self.devices;
        let number = self.pool.join(want, &|copy: Use| {
            let stream = copy.stream.number() as usize;
            let is_over = devices.completed[stream] as u64 >= copy.ticket;
            (!is_over && devices.is_behind_gate(stream, copy.ticket as usize)).then(|| "a gate".into())
        });
        number.inspect(|_| {
            self.pool.serve_now();
            self.pool.make_way();
        })
    }

    /// Enqueues a copy that returns its memory, as a stream does.
    fn copy(&mut self, stream: usize, len: usize, is_read: bool) {
        let expected = self.fits(len);
        let copy = InFlight::new(id(stream), Purpose::Passage);
        let is_there = Arc::new(OnceLock::new());
        if is_read {
            self.pool.note_read(&copy);
        }
        let fill = move |copy: &InFlight, is_there: &OnceLock<()>, promise: Promise| {
            let bytes = promise.keep().expect("the driver has memory");
            copy.fill(Pinned::<u8>::new(bytes, len).into_bytes());
            let _ = is_there.set(());
        };
        let ticket = self.devices.streams[stream].len() + 1;
        copy.enqueued(ticket as u64);
        let answer = match self.pool.try_promise(len, copy.returns()) {
            Some(promise) => {
                fill(&copy, &is_there, promise);
                Ok(())
            }
            None => {
                let (filled, there) = (copy.clone(), is_there.clone());
                let (granted, call) = (self.granted.clone(), self.verdicts.len());
                let grant = Box::new(move |promise| {
                    granted.lock().push(call);
                    fill(&filled, &there, promise);
                });
                let returns = copy.returns().cloned();
                self.join(len, Asker::Copy { returns, grant }).map(drop)
            }
        };
        self.verdicts.push(answer.is_ok());
        assert_eq!(answer.is_ok(), expected, "a copy of {len}: {:?}", answer.err());
        if !expected {
            return;
        }
        if is_read {
            self.results.push((stream, ticket, Polled::Read(copy.clone())));
        }
        let kept = match is_read {
            true => Kept::Read { _end: EndOfRead(copy) },
            false => Kept::Copy { _copy: copy },
        };
        self.devices.streams[stream].push(Op::Copy { kept: Some(kept), is_there });
        self.counted.push(Counted::Copy { stream, ticket, len });
    }

    fn ask(&mut self, len: usize) {
        self.wait();
        let expected = self.fits(len);
        let place = self.counted.len();
        let answer = match self.pool.try_promise(len, None) {
            Some(promise) => {
                let bytes = promise.keep().expect("the driver has memory");
                Ok(Asked::Served(Pinned::new(bytes, len)))
            }
            None => self.join(len, Asker::Task).map(Asked::Waits),
        };
        self.verdicts.push(answer.is_ok());
        assert_eq!(answer.is_ok(), expected, "a buffer of {len}");
        self.counted.push(Counted::Held(if expected { len } else { 0 }));
        self.asked = answer.ok().map(|asked| (asked, place));
    }

    /// Waits for the buffer that was asked for. The devices go on, and the program does not.
    fn wait(&mut self) {
        let Some((asked, place)) = self.asked.take() else { return };
        let number = match asked {
            Asked::Served(buffer) => return self.buffers.push((buffer, place)),
            Asked::Waits(number) => number,
        };
        loop {
            if let Some(promise) = self.pool.take_granted(number).and_then(|mut promises| promises.pop()) {
                let len = promise.len_bytes();
                let bytes = promise.keep().expect("the driver has memory");
                return self.buffers.push((Pinned::new(bytes, len), place));
            }
            let ran = (0..STREAMS).any(|stream| self.devices.run(stream));
            assert!(ran, "a request waits for ever");
        }
    }

    /// Lets the devices go on until they can do nothing. Then nothing may wait for memory.
    fn settle(&mut self) {
        while (0..STREAMS).any(|stream| self.devices.run(stream)) {}
        assert!(!self.pool.is_awaited(), "a request waits for ever");
    }

    fn run(&mut self, step: &Step) {
        let (all, streams) = (self.lens, |n: u8| n as usize % STREAMS);
        let lens = |n: u8| all[n as usize % all.len()];
        match *step {
            Step::Write { stream, len } => self.copy(streams(stream), lens(len), false),
            Step::Read { stream, len } => self.copy(streams(stream), lens(len), true),
            Step::Ask { len } => self.ask(lens(len)),
            Step::GiveUp => {
                if let Some((asked, place)) = self.asked.take() {
                    self.counted[place] = Counted::Held(0);
                    if let Asked::Waits(number) = asked {
                        self.pool.leave(number);
                    }
                }
            }
            Step::Drop { buffer } => {
                self.wait();
                if !self.buffers.is_empty() {
                    let (_, place) = self.buffers.remove(buffer as usize % self.buffers.len());
                    self.counted[place] = Counted::Held(0);
                }
            }
            Step::Send { stream, buffer, is_left } => {
                self.wait();
                if self.buffers.is_empty() {
                    return;
                }
                let (buffer, place) = self.buffers.remove(buffer as usize % self.buffers.len());
                let (stream, len) = (streams(stream), buffer.len());
                let copy = InFlight::new(id(stream), Purpose::Buffer);
                copy.fill(buffer.into_bytes());
                let ticket = self.devices.streams[stream].len() + 1;
                copy.enqueued(ticket as u64);
                let (is_there, kept) = (Arc::new(OnceLock::from(())), Kept::Copy { _copy: copy.clone() });
                self.devices.streams[stream].push(Op::Copy { kept: Some(kept), is_there });
                if is_left {
                    drop(Claim::to(copy));
                    self.counted[place] = Counted::Copy { stream, ticket, len };
                } else {
                    self.results.push((stream, ticket, Polled::Sent(Claim::to(copy), place)));
                }
            }
            Step::Poll { result } => {
                if self.results.is_empty() {
                    return;
                }
                let at = result as usize % self.results.len();
                let (stream, ticket, _) = self.results[at];
                // The program waits for it, unless it would have to open a gate first.
                if self.devices.is_behind_gate(stream, ticket) {
                    return;
                }
                while self.devices.completed[stream] < ticket {
                    assert!((0..STREAMS).any(|stream| self.devices.run(stream)), "a copy waits for ever");
                }
                match self.results.remove(at).2 {
                    Polled::Read(copy) => copy.read(|_| false),
                    Polled::Sent(claim, place) => {
                        let bytes = claim.redeem().take().expect("the copy holds the buffer");
                        self.buffers.push((Pinned::from_bytes(bytes).expect("bytes"), place));
                    }
                }
            }
            Step::Wait { stream, other } => {
                let (stream, other) = (streams(stream), streams(other));
                let ticket = self.devices.streams[other].len();
                if stream != other {
                    self.devices.streams[stream].push(Op::Wait { stream: other, ticket });
                }
            }
            Step::Hold { stream } => {
                self.devices.open.push(false);
                let gate = self.devices.open.len() - 1;
                self.devices.streams[streams(stream)].push(Op::Gate(gate));
            }
            Step::Open => {
                if let Some(gate) = self.devices.open.iter_mut().find(|open| !**open) {
                    *gate = true;
                }
            }
        }
    }

    fn finish(mut self) {
        self.settle();
        let granted = std::mem::take(&mut *self.granted.lock());
        assert!(granted.is_sorted(), "memory is granted in the order of the calls: {granted:?}");
        self.devices.open.fill(true);
        self.settle();
        self.wait();
        let World { cap, pool, devices, buffers, results, .. } = self;
        drop((devices, buffers, results));
        let stats = pool.stats();
        assert_eq!((stats.allocated_bytes, pool.empty()), (0, stats.reserved_bytes));
        assert!(stats.peak_reserved_bytes <= cap);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: count(500, 10_000), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn verdicts_are_those_of_arithmetic_and_every_wait_ends(
        sizes in prop::sample::select(&SIZES[..]),
        program in prop::collection::vec(step(), 1..60),
        // The number of ops that each stream runs after a step; 4 lets the devices finish what they can.
        schedules in prop::collection::vec(prop::collection::vec([0..5u8, 0..5, 0..5], 60), 3),
    ) {
        let mut verdicts = Vec::new();
        for schedule in &schedules {
            let mut world = World::new(sizes);
            for (step, runs) in program.iter().zip(schedule) {
                world.run(step);
                if runs.contains(&4) {
                    world.settle();
                } else {
                    for (stream, &ops) in runs.iter().enumerate() {
                        (0..ops).for_each(|_| _ = world.devices.run(stream));
                    }
                }
            }
            verdicts.push(world.verdicts.clone());
            world.finish();
        }
        for of_schedule in &verdicts {
            prop_assert_eq!(of_schedule, &verdicts[0]);
        }
    }
}
