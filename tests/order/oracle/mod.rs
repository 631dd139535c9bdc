//! The order check against a slow oracle, which searches for happens-before paths through
//! everything that was recorded.
//!
//! The oracle (`oracle/model.rs`) knows no clocks and no pruned histories. It keeps every accepted
//! access and an edge for everything that orders, and it searches for a path. It also tracks which
//! stream carries which refusal.
//!
//! Over the recording driver, the program decides which work has finished. So it also decides which
//! waits reach the driver, and when closed streams are gone. Over the CPU device, timing decides.
//! The oracle ignores all of that, so no verdict and no ticket may depend on it.

#[cfg(test)]
mod backends;
#[allow(dead_code, reason = "the fuzz target uses it")]
pub(crate) mod decoded;
mod model;
#[cfg(test)]
mod shapes;
mod threads;

use crate::support::recording::Recording;
use model::{Bytes, Model, Point, Stand, Touch};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::collections::BTreeSet;
use std::sync::Arc;
use warpline::prelude::*;
use warpline::{StreamId, reads, writes};
use warpline_test_counts::count;

const DEVICES: usize = 2;
const BUFFERS: usize = 3;

/// The size of a program's world.
#[derive(Clone, Copy, Debug)]
struct Size {
    /// The number of devices that have streams.
    devices: usize,
    /// The number of streams, equally many on each device.
    streams: usize,
    /// The side of a buffer, which is a square matrix of bytes.
    side: usize,
}

impl Size {
    const SMALL: Size = Size { devices: DEVICES, streams: 4, side: 4 };

    fn bytes(self) -> usize {
        self.side * self.side
    }
}

/// A part of a buffer.
#[derive(Clone, Copy, Debug)]
enum Part {
    Slice(usize, usize),
    /// Columns of the buffer as a matrix of this many rows.
    Columns {
        rows: usize,
        from: usize,
        to: usize,
    },
}

impl Part {
    /// Returns the bytes of the part of a buffer of `len` bytes.
    fn bytes(self, len: usize) -> Bytes {
        match self {
            Part::Slice(a, b) => (a..b).collect(),
            Part::Columns { rows, from, to } => {
                let of_row = |row| (from..to).map(move |column| row * (len / rows) + column);
                (0..rows).flat_map(of_row).collect()
            }
        }
    }

    fn of(self, buffer: &Buffer<u8>) -> Buffer<u8> {
        match self {
            Part::Slice(a, b) => buffer.slice(a..b).unwrap(),
            Part::Columns { rows, from, to } => buffer.as_matrix(rows).unwrap().columns(from..to).unwrap(),
        }
    }
}

/// The program's treatment of the error of a refused op.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    LookedAt,
    Dropped,
}

#[derive(Clone, Debug)]
enum Step {
    Read {
        stream: usize,
        buffer: usize,
        part: Part,
    },
    Write {
        stream: usize,
        buffer: usize,
        part: Part,
        refusal: Refusal,
    },
    /// A copy between buffers of any two devices.
    Copy {
        stream: usize,
        from: (usize, Part),
        to: (usize, Part),
        refusal: Refusal,
    },
    /// Foreign work, which may report that it could not be enqueued.
    External {
        stream: usize,
        buffer: usize,
        part: Part,
        writes: bool,
        fails: bool,
        refusal: Refusal,
    },
    WaitStream {
        stream: usize,
        other: usize,
    },
    Record {
        stream: usize,
    },
    WaitEvent {
        stream: usize,
        event: usize,
    },
    WaitFor {
        stream: usize,
        buffer: usize,
    },
    AwaitOp {
        op: usize,
    },
    AwaitEvent {
        event: usize,
    },
    Synchronize {
        stream: usize,
    },
    Accept {
        buffer: usize,
        part: Part,
    },
    /// The device reaches the newest markers, and the host does not observe it.
    Progress,
    /// Drops the buffer and allocates another one.
    Replace {
        stream: usize,
        buffer: usize,
    },
    /// Closes the stream, and opens another in its place. The closed one drains with the next
    /// `Progress`.
    Close {
        stream: usize,
    },
}

fn part(size: Size) -> impl Strategy<Value = Part> {
    let ends = |n: usize| (0..n, 0..n).prop_map(|(a, b)| (a.min(b), a.max(b) + 1));
    let columns =
        |rows: usize| ends(size.bytes() / rows).prop_map(move |(from, to)| Part::Columns { rows, from, to });
    prop_oneof![
        2 => ends(size.bytes()).prop_map(|(a, b)| Part::Slice(a, b)),
        2 => Just(Part::Slice(0, size.bytes())),
        // Two strides.
        1 => columns(size.side),
        1 => columns(size.side / 2),
    ]
}

fn step(size: Size) -> impl Strategy<Value = Step> {
    let (stream, buffer, any) = (0..size.streams, 0..BUFFERS, 0..64_usize);
    let part = move || part(size);
    let refusal = || prop_oneof![Just(Refusal::LookedAt), Just(Refusal::Dropped)];
    prop_oneof![
        4 => (stream.clone(), buffer.clone(), part())
            .prop_map(|(stream, buffer, part)| Step::Read { stream, buffer, part }),
        4 => (stream.clone(), buffer.clone(), part(), refusal())
            .prop_map(|(stream, buffer, part, refusal)| Step::Write { stream, buffer, part, refusal }),
        3 => (stream.clone(), buffer.clone(), part(), buffer.clone(), part(), refusal())
            .prop_map(|(stream, a, p, b, q, refusal)| Step::Copy { stream, from: (a, p), to: (b, q), refusal }),
        2 => (stream.clone(), buffer.clone(), part(), proptest::bool::ANY, 0..6, refusal())
            .prop_map(|(stream, buffer, part, writes, fails, refusal)| {
                Step::External { stream, buffer, part, writes, fails: fails == 0, refusal }
            }),
        4 => (stream.clone(), stream.clone()).prop_map(|(stream, other)| Step::WaitStream { stream, other }),
        2 => stream.clone().prop_map(|stream| Step::Record { stream }),
        2 => (stream.clone(), any.clone()).prop_map(|(stream, event)| Step::WaitEvent { stream, event }),
        1 => (stream.clone(), buffer.clone()).prop_map(|(stream, buffer)| Step::WaitFor { stream, buffer }),
        2 => any.clone().prop_map(|op| Step::AwaitOp { op }),
        1 => any.prop_map(|event| Step::AwaitEvent { event }),
        1 => stream.clone().prop_map(|stream| Step::Synchronize { stream }),
        1 => (buffer.clone(), part()).prop_map(|(buffer, part)| Step::Accept { buffer, part }),
        1 => Just(Step::Progress),
        1 => (stream.clone(), buffer).prop_map(|(stream, buffer)| Step::Replace { stream, buffer }),
        1 => stream.prop_map(|stream| Step::Close { stream }),
    ]
}

/// A buffer, its name in the oracle, and its device.
struct Memory {
    buffer: Buffer<u8>,
    name: u64,
    device: usize,
}

/// A program's run, in the runtime and in the oracle.
struct Run {
    // Streams and buffers are dropped before the runtime they belong to.
    streams: Vec<Stream>,
    buffers: Vec<Memory>,
    ops: Vec<(Pending<()>, Point)>,
    events: Vec<(Event, Stand)>,
    model: Model,
    devices: Vec<Device>,
    /// The driver that finishes work only when the test says so. `None` on devices that run it
    /// themselves.
    driver: Option<Arc<Recording>>,
    allocated: u64,
    size: Size,
    _runtime: Runtime,
}

/// The runtime's answer to a call.
enum Verdict {
    Accepted,
    Refused(Error),
}

impl Run {
    /// Returns a run over the recording driver.
    fn recorded(size: Size) -> Self {
        let (runtime, driver) = Recording::runtime_of(OrderMode::Deny, DEVICES as u32);
        Self::new(size, runtime, Some(driver), [0, 1].map(DeviceId::Cuda))
    }

    /// Returns a run over devices that execute the work.
    fn real(runtime: Runtime, ids: [DeviceId; DEVICES]) -> Self {
        Self::new(Size::SMALL, runtime, None, ids)
    }

    fn new(size: Size, runtime: Runtime, driver: Option<Arc<Recording>>, ids: [DeviceId; DEVICES]) -> Self {
        let devices = ids.into_iter().map(|id| runtime.device(id).unwrap()).collect();
        let mut run = Run {
            streams: Vec::new(),
            buffers: Vec::new(),
            ops: Vec::new(),
            events: Vec::new(),
            model: Model::new(),
            devices,
            driver,
            allocated: 0,
            size,
            _runtime: runtime,
        };
        for at in 0..size.streams {
            let stream = run.make_stream(at);
            run.streams.push(stream);
        }
        for stream in 0..BUFFERS {
            let memory = run.allocate(stream);
            run.buffers.push(memory);
        }
        run
    }

    fn device_of(&self, stream: usize) -> usize {
        stream % self.size.devices
    }

    fn make_stream(&mut self, at: usize) -> Stream {
        let stream = self.devices[self.device_of(at)].new_stream().unwrap();
        self.model.open(stream.id());
        stream
    }

    fn allocate(&mut self, stream: usize) -> Memory {
        self.allocated += 1;
        let (name, device) = (self.allocated, self.device_of(stream));
        let buffer = self.streams[stream].alloc(self.size.bytes()).unwrap();
        self.model.allocate(self.streams[stream].id(), name, self.size.bytes());
        Memory { buffer, name, device }
    }

    fn touch(&self, buffer: usize, part: Part, reads: bool, writes: bool) -> Touch {
        Touch { buffer: self.buffers[buffer].name, bytes: part.bytes(self.size.bytes()), reads, writes }
    }

    /// Compares the verdict on an op with the oracle's, and records the outcome in the oracle.
    /// Returns the point of an accepted op.
    fn judge(
        &mut self,
        stream: usize,
        verdict: Verdict,
        touches: &[Touch],
        refusal: Refusal,
    ) -> Option<Point> {
        let id = self.streams[stream].id();
        let expected = self.model.conflicts(id, touches);
        let inherits = self.model.inherits(id, touches);
        match verdict {
            Verdict::Accepted => {
                assert!(!inherits, "accepted although it reads what was not written");
                assert!(expected.is_empty(), "accepted although not after streams {expected:?}");
                Some(self.model.op(id, touches))
            }
            Verdict::Refused(error) => {
                assert_eq!(error.is_inherited(), inherits, "{error}");
                assert!(inherits || error.kind() == ErrorKind::Unordered, "{error}");
                let named: BTreeSet<StreamId> =
                    error.conflicts().iter().map(|conflict| conflict.earlier_stream_id()).collect();
                assert!(
                    inherits || !named.is_empty() && named.is_subset(&expected),
                    "{named:?} named, {expected:?} expected"
                );
                let refused = self.model.refuse(id, touches, false);
                match refusal {
                    Refusal::LookedAt => self.model.see(refused),
                    Refusal::Dropped => self.model.drop_unseen(id, refused),
                }
                None
            }
        }
    }

    /// Judges a call. The program looks at its error or drops it, depending on `refusal`.
    fn judge_pending(&mut self, stream: usize, pending: Pending<()>, touches: &[Touch], refusal: Refusal) {
        if pending.ticket().is_some() {
            let point = self.judge(stream, Verdict::Accepted, touches, refusal).unwrap();
            self.ops.push((pending, point));
            return;
        }
        let error = match refusal {
            Refusal::LookedAt => pending.queued().unwrap_err(),
            Refusal::Dropped => {
                let error = pending.as_operand().unwrap_err().error().clone();
                drop(pending);
                error
            }
        };
        self.judge(stream, Verdict::Refused(error), touches, refusal);
    }

    /// Returns true if the buffer is on another device than `stream`. An op then has to be refused.
    fn is_elsewhere(&self, stream: usize, buffer: usize) -> bool {
        self.device_of(stream) != self.buffers[buffer].device
    }

    /// Returns true if `stream` can copy between the two buffers: all devices have one backend, or
    /// one end is on the stream's device and the other on it or on a CPU device.
    fn reaches(&self, stream: usize, from: usize, to: usize) -> bool {
        let here = self.devices[self.device_of(stream)].id();
        let ends = [from, to].map(|buffer| self.devices[self.buffers[buffer].device].id());
        let of_one_backend = ends.iter().all(|end| end.backend() == here.backend());
        let to_the_host = |end: DeviceId| end == here || matches!(end, DeviceId::Cpu(_));
        let is_cpu = matches!(here, DeviceId::Cpu(_));
        of_one_backend || !is_cpu && ends.contains(&here) && ends.into_iter().all(to_the_host)
    }

    fn observe(&mut self, mut pending: Pending<()>, point: Point) {
        match &self.driver {
            Some(driver) if !pending.query().unwrap() => {
                driver.reach_markers();
                assert!(pending.query().unwrap(), "a query asks for a marker");
            }
            Some(_) => {}
            None => pending.blocking_wait().unwrap(),
        }
        self.model.observe(point);
    }

    /// Completes the enqueued work, if the test has to do so.
    fn progress(&self) {
        if let Some(driver) = &self.driver {
            driver.reach_markers();
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Read { stream, buffer, part } => {
                // A copy to another buffer would have a second operand, but a copy to the host only
                // reads.
                let read = self.streams[stream].copy_to_host(&part.of(&self.buffers[buffer].buffer));
                if self.is_elsewhere(stream, buffer) {
                    return is_of_another_device(read);
                }
                let pending = self.as_unit(stream, read);
                let touches = [self.touch(buffer, part, true, false)];
                self.judge_pending(stream, pending, &touches, Refusal::LookedAt);
            }
            Step::Write { stream, buffer, part, refusal } => {
                let pending = self.streams[stream].fill(&part.of(&self.buffers[buffer].buffer), 1);
                if self.is_elsewhere(stream, buffer) {
                    return is_of_another_device(pending);
                }
                let touches = [self.touch(buffer, part, false, true)];
                self.judge_pending(stream, pending, &touches, refusal);
            }
            Step::Copy { stream, from, to, refusal } => {
                let view = |(buffer, part): (usize, Part)| part.of(&self.buffers[buffer].buffer);
                let (source, target) = (view(from), view(to));
                if source.len() != target.len() || !source.is_contiguous() && !target.is_contiguous() {
                    return;
                }
                let pending = self.streams[stream].copy_buffer_peer(&target, &source);
                if !self.reaches(stream, from.0, to.0) {
                    return is_of_another_device(pending);
                }
                if from.0 == to.0
                    && !from.1.bytes(self.size.bytes()).is_disjoint(&to.1.bytes(self.size.bytes()))
                {
                    assert_eq!(pending.queued().unwrap_err().kind(), ErrorKind::Overlap);
                    return;
                }
                let touches = [self.touch(from.0, from.1, true, false), self.touch(to.0, to.1, false, true)];
                self.judge_pending(stream, pending, &touches, refusal);
            }
            Step::External { stream, buffer, part, writes: writing, fails, refusal } => {
                self.external(stream, buffer, part, writing, fails, refusal);
            }
            Step::WaitStream { stream, other } => {
                self.streams[stream].wait_stream(&self.streams[other]);
                let from = self.model.stand(self.streams[other].id());
                self.model.wait(self.streams[stream].id(), &from);
            }
            Step::Record { stream } => {
                let stand = self.model.stand(self.streams[stream].id());
                self.events.push((self.streams[stream].record_event(), stand));
            }
            Step::WaitEvent { stream, event } => {
                let Some((event, from)) = self.pick(event) else { return };
                self.streams[stream].wait_event(&event);
                self.model.wait(self.streams[stream].id(), &from);
            }
            Step::WaitFor { stream, buffer } => {
                self.streams[stream].wait_for(&self.buffers[buffer].buffer);
                self.model.wait_for(self.streams[stream].id(), self.buffers[buffer].name);
            }
            Step::AwaitOp { op } => {
                if self.ops.is_empty() {
                    return;
                }
                let (pending, point) = self.ops.swap_remove(op % self.ops.len());
                self.observe(pending, point);
            }
            Step::AwaitEvent { event } => {
                let Some((event, from)) = self.pick(event) else { return };
                self.observe(event.synchronize(), from.point);
            }
            Step::Synchronize { stream } => {
                let mut pending = self.streams[stream].synchronize();
                if self.driver.is_some() && !pending.query().unwrap() {
                    self.progress();
                }
                let returned = pending.blocking_wait();
                let id = self.streams[stream].id();
                self.model.observe(self.model.stand(id).point);
                assert_eq!(returned.is_err(), self.model.synchronized(id).is_some(), "{returned:?}");
            }
            Step::Accept { buffer, part } => {
                part.of(&self.buffers[buffer].buffer).accept_contents();
                self.model.accept(self.buffers[buffer].name, &part.bytes(self.size.bytes()));
            }
            Step::Progress => self.progress(),
            Step::Replace { stream, buffer } => {
                let new = self.allocate(stream);
                let old = std::mem::replace(&mut self.buffers[buffer], new);
                self.model.free(old.name);
            }
            Step::Close { stream } => {
                self.model.close(self.streams[stream].id());
                let new = self.make_stream(stream);
                drop(std::mem::replace(&mut self.streams[stream], new));
            }
        }
        for stream in &self.streams {
            assert_eq!(stream.issued(), self.model.issued(stream.id()), "tickets of {stream:?}");
        }
    }

    fn external(
        &mut self,
        stream: usize,
        buffer: usize,
        part: Part,
        writing: bool,
        fails: bool,
        refusal: Refusal,
    ) {
        let (view, nothing) = (part.of(&self.buffers[buffer].buffer), [] as [&Buffer<u8>; 0]);
        let declared = match writing {
            true => (reads(nothing), writes([&view])),
            false => (reads([&view]), writes(nothing)),
        };
        let mut called = false;
        // SAFETY: the closure enqueues nothing.
        let pending = unsafe {
            self.streams[stream].external(declared.0, declared.1, |raw| {
                called = true;
                if fails {
                    raw.fail("it says so");
                }
            })
        };
        if self.is_elsewhere(stream, buffer) {
            return is_of_another_device(pending);
        }
        let touches = [self.touch(buffer, part, true, writing)];
        if called && fails {
            self.judge(stream, Verdict::Accepted, &touches, refusal);
            let refused = self.model.refuse(self.streams[stream].id(), &touches, true);
            match refusal {
                Refusal::LookedAt => assert_eq!(pending.queued().unwrap_err().kind(), ErrorKind::Driver),
                Refusal::Dropped => self.model.drop_unseen(self.streams[stream].id(), refused),
            }
        } else {
            assert_eq!(called, pending.ticket().is_some());
            self.judge_pending(stream, pending, &touches, refusal);
        }
    }

    fn pick(&self, event: usize) -> Option<(Event, Stand)> {
        (!self.events.is_empty()).then(|| self.events[event % self.events.len()].clone())
    }

    /// Returns a `Pending` of the same ticket that does not hold the buffer.
    fn as_unit(&self, stream: usize, read: Pending<Pinned<u8>>) -> Pending<()> {
        match read.ticket() {
            // The event has the same position, because nothing was enqueued in between.
            Some(_) => self.streams[stream].record_event().synchronize(),
            None => Pending::refused(read.blocking_wait().unwrap_err()),
        }
    }
}

fn is_of_another_device<T: std::fmt::Debug>(pending: Pending<T>) {
    assert_eq!(pending.blocking_wait().unwrap_err().kind(), ErrorKind::DeviceMismatch);
}

/// Runs `cases` random programs, each on a fresh run from `run`.
fn on_random_programs(cases: u32, run: impl Fn() -> Run) {
    run_programs(cases, proptest::collection::vec(step(Size::SMALL), 1..60), run);
}

/// Runs `cases` of the programs, each on a fresh run from `run`.
fn run_programs(cases: u32, programs: impl Strategy<Value = Vec<Step>>, run: impl Fn() -> Run) {
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let outcome = TestRunner::new(config).run(&programs, |program| {
        let mut run = run();
        program.iter().for_each(|step| run.step(step));
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn verdicts_agree_with_a_search_through_the_whole_past() {
    on_random_programs(count(500, 4_000), || Run::recorded(Size::SMALL));
}

#[test]
fn verdicts_do_not_depend_on_how_fast_the_device_is() {
    on_random_programs(count(400, 3_000), || {
        let runtime = Runtime::builder().cpu_devices(DEVICES as u32).build().unwrap();
        Run::real(runtime, [0, 1].map(DeviceId::Cpu))
    });
}

#[test]
fn verdicts_are_the_same_on_the_software_cuda_driver() {
    for completion in ["word", "event"] {
        crate::support::software::in_child(&[("WARPLINE_COMPLETION", completion)], || {
            on_random_programs(count(100, 500), || {
                Run::real(Runtime::new().unwrap(), [0, 1].map(DeviceId::Cuda))
            });
        });
    }
}
