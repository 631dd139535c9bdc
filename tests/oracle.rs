//! The order check against a slow oracle: happens-before by graph search over everything that was recorded.
//!
//! The oracle knows no clocks, tickets or pruned histories. It keeps every accepted access, an edge for everything that
//! orders, and looks for a path. The runtime is driven over the recording driver, so that what is finished, and with it which
//! waits are elided, is up to the program.

mod support;

use proptest::prelude::*;
use std::collections::{BTreeSet, HashMap};
use support::recording::Recording;
use warpline::prelude::*;

const STREAMS: usize = 4;
const BUFFERS: usize = 3;
/// A buffer is a square matrix of bytes.
const SIDE: usize = 4;
const BYTES: usize = SIDE * SIDE;

/// What a range of a buffer is made from.
#[derive(Clone, Copy, Debug)]
enum Part {
    Slice(usize, usize),
    Columns(usize, usize),
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
    },
    Copy {
        stream: usize,
        from: (usize, Part),
        to: (usize, Part),
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
    /// The device gets to the newest markers, without the host looking.
    Progress,
    /// The buffer is dropped and another allocated.
    Replace {
        stream: usize,
        buffer: usize,
    },
    /// The stream is closed, drains, and another takes its place.
    Close {
        stream: usize,
    },
}

fn part() -> impl Strategy<Value = Part> {
    let ends = |n: usize| (0..n, 0..n).prop_map(|(a, b)| (a.min(b), a.max(b) + 1));
    prop_oneof![
        ends(BYTES).prop_map(|(a, b)| Part::Slice(a, b)),
        Just(Part::Slice(0, BYTES)),
        ends(SIDE).prop_map(|(a, b)| Part::Columns(a, b)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let (stream, buffer, any) = (0..STREAMS, 0..BUFFERS, 0..64_usize);
    prop_oneof![
        4 => (stream.clone(), buffer.clone(), part())
            .prop_map(|(stream, buffer, part)| Step::Read { stream, buffer, part }),
        4 => (stream.clone(), buffer.clone(), part())
            .prop_map(|(stream, buffer, part)| Step::Write { stream, buffer, part }),
        2 => (stream.clone(), buffer.clone(), part(), buffer.clone(), part())
            .prop_map(|(stream, a, p, b, q)| Step::Copy { stream, from: (a, p), to: (b, q) }),
        4 => (stream.clone(), stream.clone()).prop_map(|(stream, other)| Step::WaitStream { stream, other }),
        2 => stream.clone().prop_map(|stream| Step::Record { stream }),
        2 => (stream.clone(), any.clone()).prop_map(|(stream, event)| Step::WaitEvent { stream, event }),
        1 => (stream.clone(), buffer.clone()).prop_map(|(stream, buffer)| Step::WaitFor { stream, buffer }),
        2 => any.clone().prop_map(|op| Step::AwaitOp { op }),
        1 => any.prop_map(|event| Step::AwaitEvent { event }),
        1 => stream.clone().prop_map(|stream| Step::Synchronize { stream }),
        1 => Just(Step::Progress),
        1 => (stream.clone(), buffer).prop_map(|(stream, buffer)| Step::Replace { stream, buffer }),
        1 => stream.prop_map(|stream| Step::Close { stream }),
    ]
}

/// A point of the execution; `before` are those directly before it.
#[derive(Default)]
struct Graph {
    before: Vec<Vec<usize>>,
}

impl Graph {
    fn add(&mut self, before: Vec<usize>) -> usize {
        self.before.push(before);
        self.before.len() - 1
    }

    /// Everything at or before the given points.
    fn past(&self, of: &[usize]) -> BTreeSet<usize> {
        let mut past = BTreeSet::new();
        let mut open = of.to_vec();
        while let Some(point) = open.pop() {
            if past.insert(point) {
                open.extend(&self.before[point]);
            }
        }
        past
    }
}

struct Past {
    point: usize,
    bytes: BTreeSet<usize>,
    writes: bool,
    stream: u64,
}

/// The slow side.
struct Oracle {
    graph: Graph,
    /// The newest point of each stream, and the point at each of its tickets.
    last: Vec<usize>,
    at_ticket: Vec<HashMap<u64, usize>>,
    host: usize,
    accesses: Vec<Vec<Past>>,
    stream_ids: Vec<u64>,
}

fn bytes_of(part: Part) -> BTreeSet<usize> {
    match part {
        Part::Slice(a, b) => (a..b).collect(),
        Part::Columns(a, b) => {
            (0..SIDE).flat_map(|row| (a..b).map(move |column| row * SIDE + column)).collect()
        }
    }
}

fn view_of(buffer: &Buffer<u8>, part: Part) -> Buffer<u8> {
    match part {
        Part::Slice(a, b) => buffer.slice(a..b).unwrap(),
        Part::Columns(a, b) => buffer.as_matrix(SIDE).unwrap().columns(a..b).unwrap(),
    }
}

impl Oracle {
    fn new_stream(&mut self, at: usize, unique: u64) {
        let start = self.graph.add(vec![]);
        self.last[at] = start;
        self.at_ticket[at] = HashMap::from([(0, start)]);
        self.stream_ids[at] = unique;
    }

    /// Which earlier streams' uses of the bytes are not before an op that `stream` would get now.
    fn conflicts(&self, stream: usize, buffer: usize, part: Part, writes: bool) -> BTreeSet<u64> {
        let past = self.graph.past(&[self.last[stream], self.host]);
        let bytes = bytes_of(part);
        self.accesses[buffer]
            .iter()
            .filter(|earlier| (earlier.writes || writes) && !earlier.bytes.is_disjoint(&bytes))
            .filter(|earlier| !past.contains(&earlier.point))
            .map(|earlier| earlier.stream)
            .collect()
    }

    fn op(&mut self, stream: usize, ticket: u64) -> usize {
        let point = self.graph.add(vec![self.last[stream], self.host]);
        self.last[stream] = point;
        self.at_ticket[stream].insert(ticket, point);
        point
    }

    fn access(&mut self, point: usize, stream: usize, buffer: usize, part: Part, writes: bool) {
        let stream = self.stream_ids[stream];
        self.accesses[buffer].push(Past { point, bytes: bytes_of(part), writes, stream });
    }

    fn wait(&mut self, stream: usize, from: usize, ticket: u64) {
        let point = self.graph.add(vec![self.last[stream], from]);
        self.last[stream] = point;
        // If it was elided, the ticket is that of the op before, and what is known at that op stays.
        self.at_ticket[stream].entry(ticket).or_insert(point);
    }

    fn observe(&mut self, point: usize) {
        self.host = self.graph.add(vec![self.host, point]);
    }

    fn allocate(&mut self, stream: usize, buffer: usize, ticket: u64) {
        // An allocation counts at the last ticket taken, and takes one if it has to.
        let point = match self.at_ticket[stream].get(&ticket) {
            Some(&point) => point,
            None => self.op(stream, ticket),
        };
        let bytes = (0..BYTES).collect();
        let stream = self.stream_ids[stream];
        self.accesses[buffer] = vec![Past { point, bytes, writes: true, stream }];
    }
}

/// Both sides of one program.
struct Run {
    // Streams and buffers go before the runtime they belong to.
    streams: Vec<Stream>,
    buffers: Vec<Buffer<u8>>,
    ops: Vec<(Pending<()>, usize)>,
    events: Vec<(Event, usize)>,
    oracle: Oracle,
    device: Device,
    driver: std::sync::Arc<Recording>,
    made: u64,
    _runtime: Runtime,
}

impl Run {
    fn new() -> Self {
        let (runtime, driver) = Recording::runtime(OrderMode::Deny);
        let device = runtime.best_device().unwrap();
        let mut run = Run {
            streams: Vec::new(),
            buffers: Vec::new(),
            ops: Vec::new(),
            events: Vec::new(),
            oracle: Oracle {
                graph: Graph::default(),
                last: vec![0; STREAMS],
                at_ticket: vec![HashMap::new(); STREAMS],
                host: 0,
                accesses: (0..BUFFERS).map(|_| Vec::new()).collect(),
                stream_ids: vec![0; STREAMS],
            },
            device,
            driver,
            made: 0,
            _runtime: runtime,
        };
        run.oracle.host = run.oracle.graph.add(vec![]);
        for at in 0..STREAMS {
            let stream = run.make_stream(at);
            run.streams.push(stream);
        }
        for at in 0..BUFFERS {
            let buffer = run.streams[at].alloc(BYTES).unwrap();
            run.oracle.allocate(at, at, 0);
            run.buffers.push(buffer);
        }
        run
    }

    fn make_stream(&mut self, at: usize) -> Stream {
        self.made += 1;
        self.oracle.new_stream(at, self.made);
        self.device.stream().label(self.made.to_string()).build().unwrap()
    }

    /// Compares the verdict of an op with the oracle's and, if it was accepted, enters it there.
    fn judge(&mut self, stream: usize, pending: Pending<()>, touched: &[(usize, Part, bool)]) {
        let expected: BTreeSet<u64> = touched
            .iter()
            .flat_map(|&(buffer, part, writes)| self.oracle.conflicts(stream, buffer, part, writes))
            .collect();
        let overlaps = |a: &(usize, Part, bool), b: &(usize, Part, bool)| {
            a.0 == b.0 && !bytes_of(a.1).is_disjoint(&bytes_of(b.1))
        };
        if touched.len() == 2 && overlaps(&touched[0], &touched[1]) {
            assert_eq!(pending.queued().unwrap_err().kind(), ErrorKind::Overlap);
        } else if let Some(ticket) = pending.ticket() {
            assert!(expected.is_empty(), "accepted although not after streams {expected:?}");
            let point = self.oracle.op(stream, ticket);
            for &(buffer, part, writes) in touched {
                self.oracle.access(point, stream, buffer, part, writes);
            }
            self.ops.push((pending, point));
            return;
        } else {
            let error = pending.queued().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unordered, "{error}");
            let named: BTreeSet<u64> =
                error.conflicts().iter().map(|conflict| conflict.earlier_stream().parse().unwrap()).collect();
            assert!(
                !named.is_empty() && named.is_subset(&expected),
                "{named:?} named, {expected:?} expected"
            );
        }
        for &(buffer, ..) in touched {
            self.buffers[buffer].accept_contents();
        }
    }

    fn observe(&mut self, mut pending: Pending<()>, point: usize) {
        if !pending.query().unwrap() {
            self.driver.reach_markers();
            assert!(pending.query().unwrap(), "a query asks for a marker");
        }
        self.oracle.observe(point);
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Read { stream, buffer, part } => {
                // A copy to the side would be a second operand; a host copy reads alone.
                let view = view_of(&self.buffers[buffer], part);
                let read = self.streams[stream].copy_to_host(&view);
                let pending = self.as_unit(stream, read);
                self.judge(stream, pending, &[(buffer, part, false)]);
            }
            Step::Write { stream, buffer, part } => {
                let pending = self.streams[stream].fill(&view_of(&self.buffers[buffer], part), 1);
                self.judge(stream, pending, &[(buffer, part, true)]);
            }
            Step::Copy { stream, from, to } => {
                let (source, target) =
                    (view_of(&self.buffers[from.0], from.1), view_of(&self.buffers[to.0], to.1));
                if source.len() != target.len() || !source.is_contiguous() && !target.is_contiguous() {
                    return;
                }
                let pending = self.streams[stream].copy(&source, &target);
                self.judge(stream, pending, &[(from.0, from.1, false), (to.0, to.1, true)]);
            }
            Step::WaitStream { stream, other } => {
                self.streams[stream].wait_stream(&self.streams[other]);
                let from = self.oracle.last[other];
                self.oracle.wait(stream, from, self.streams[stream].issued());
            }
            Step::Record { stream } => {
                self.events.push((self.streams[stream].record_event(), self.oracle.last[stream]));
            }
            Step::WaitEvent { stream, event } => {
                let Some((event, point)) = self.pick(event) else { return };
                self.streams[stream].wait_event(&event);
                self.oracle.wait(stream, point, self.streams[stream].issued());
            }
            Step::WaitFor { stream, buffer } => {
                self.streams[stream].wait_for(&self.buffers[buffer]);
                // From where each stream that used it stands now.
                let users: BTreeSet<u64> =
                    self.oracle.accesses[buffer].iter().map(|past| past.stream).collect();
                for other in 0..STREAMS {
                    if users.contains(&self.oracle.stream_ids[other]) && other != stream {
                        let from = self.oracle.last[other];
                        self.oracle.wait(stream, from, self.streams[stream].issued());
                    }
                }
            }
            Step::AwaitOp { op } => {
                if self.ops.is_empty() {
                    return;
                }
                let (pending, point) = self.ops.swap_remove(op % self.ops.len());
                self.observe(pending, point);
            }
            Step::AwaitEvent { event } => {
                let Some((event, point)) = self.pick(event) else { return };
                self.observe(event.synchronize(), point);
            }
            Step::Synchronize { stream } => {
                let (pending, point) = (self.streams[stream].synchronize(), self.oracle.last[stream]);
                self.observe(pending, point);
            }
            Step::Progress => self.driver.reach_markers(),
            Step::Replace { stream, buffer } => {
                self.buffers[buffer] = self.streams[stream].alloc(BYTES).unwrap();
                self.oracle.allocate(stream, buffer, self.streams[stream].issued());
            }
            Step::Close { stream } => {
                let point = self.oracle.last[stream];
                let label = self.streams[stream].label().to_owned();
                let new = self.make_stream(stream);
                drop(std::mem::replace(&mut self.streams[stream], new));
                // Drained, it is before everything.
                self.driver.reach_marker(&label);
                self.oracle.observe(point);
            }
        }
    }

    fn pick(&self, event: usize) -> Option<(Event, usize)> {
        (!self.events.is_empty()).then(|| self.events[event % self.events.len()].clone())
    }

    /// The `Pending` of the same ticket without the buffer in it.
    fn as_unit(&self, stream: usize, read: Pending<Pinned<u8>>) -> Pending<()> {
        match read.ticket() {
            // An event at the very place: nothing was enqueued in between.
            Some(_) => self.streams[stream].record_event().synchronize(),
            None => Pending::refused(read.wait().unwrap_err()),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn verdicts_agree_with_a_search_through_the_whole_past(
        program in proptest::collection::vec(step(), 1..60)
    ) {
        let mut run = Run::new();
        for step in &program {
            run.step(step);
        }
    }
}

/// Threads that state no order at all: of two accesses to the same bytes, one a write, from two streams, at most one can have
/// been accepted.
#[test]
fn threads_without_edges_never_both_get_conflicting_accesses() {
    for round in 0..300_u64 {
        let (_runtime, device, []) = support::streams([]);
        let owner = device.new_stream().unwrap();
        let buffers: Vec<Buffer<u8>> = (0..3).map(|_| owner.alloc(8).unwrap()).collect();
        owner.synchronize().wait().unwrap();
        let start = std::sync::Barrier::new(3);
        let accepted: Vec<Vec<(usize, usize)>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3_u64)
                .map(|thread| {
                    let (device, buffers, start) = (&device, &buffers, &start);
                    scope.spawn(move || {
                        let stream = device.new_stream().unwrap();
                        let mut dice = (round * 3 + thread + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                        start.wait();
                        let mut accepted = Vec::new();
                        for _ in 0..4 {
                            dice = dice
                                .wrapping_mul(6_364_136_223_846_793_005)
                                .wrapping_add(1_442_695_040_888_963_407);
                            let (from, by) = ((dice >> 33) as usize % 3, 1 + (dice >> 40) as usize % 2);
                            let to = (from + by) % 3;
                            if stream.copy(&buffers[from], &buffers[to]).queued().is_ok() {
                                accepted.push((from, to));
                            }
                        }
                        // Kept open, so that nothing counts as over.
                        (stream, accepted)
                    })
                })
                .collect();
            let results: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            results.into_iter().map(|(_, accepted)| accepted).collect()
        });
        for (at, mine) in accepted.iter().enumerate() {
            for theirs in accepted[..at].iter().flatten() {
                for (from, to) in mine {
                    assert!(
                        to != &theirs.1 && to != &theirs.0 && from != &theirs.1,
                        "round {round}: {from} to {to} and {theirs:?} were both accepted"
                    );
                }
            }
        }
    }
}

/// What one thread did on its own stream, in its order.
enum Did {
    Op(Vec<(usize, bool)>),
    Recorded(usize),
    Waited(usize),
}

/// Threads that hand each other events. Of two conflicting accesses that were both accepted, one has to be before the other along
/// program order and the edges from a recorded event to a wait for it.
#[test]
fn threads_that_pass_events_are_only_accepted_along_the_edges_they_stated() {
    use std::sync::Mutex;
    const THREADS: usize = 3;
    let (mut accepted, mut refused) = (0, 0);
    for round in 0..400_u64 {
        let (_runtime, device, []) = support::streams([]);
        let owner = device.new_stream().unwrap();
        let buffers: Vec<Buffer<u8>> = (0..3).map(|_| owner.alloc(8).unwrap()).collect();
        owner.synchronize().wait().unwrap();
        let events: Mutex<Vec<Event>> = Mutex::default();
        let start = std::sync::Barrier::new(THREADS);
        let histories: Vec<(Stream, Vec<Did>, usize)> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS as u64)
                .map(|thread| {
                    let (device, buffers, events, start) = (&device, &buffers, &events, &start);
                    scope.spawn(move || {
                        let stream = device.new_stream().unwrap();
                        let mut dice = (round * 3 + thread + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                        let mut below = |n: usize| {
                            dice = dice
                                .wrapping_mul(6_364_136_223_846_793_005)
                                .wrapping_add(1_442_695_040_888_963_407);
                            (dice >> 33) as usize % n
                        };
                        let (mut history, mut refused) = (Vec::new(), 0);
                        start.wait();
                        for _ in 0..40 {
                            match below(4) {
                                0 => {
                                    let event = stream.record_event();
                                    let mut events = events.lock().unwrap();
                                    history.push(Did::Recorded(events.len()));
                                    events.push(event);
                                }
                                1 => {
                                    let picked = {
                                        let events = events.lock().unwrap();
                                        let newest = events.len();
                                        (newest > 0)
                                            .then(|| newest - 1 - below(newest.min(3)))
                                            .map(|at| (at, events[at].clone()))
                                    };
                                    if let Some((at, event)) = picked {
                                        stream.wait_event(&event);
                                        history.push(Did::Waited(at));
                                    }
                                }
                                _ => {
                                    let (from, to) = (below(3), below(3));
                                    let op = if from == to {
                                        stream.fill(&buffers[to], 1)
                                    } else {
                                        stream.copy(&buffers[from], &buffers[to])
                                    };
                                    if op.queued().is_ok() {
                                        let read = (from != to).then_some((from, false));
                                        history.push(Did::Op(read.into_iter().chain([(to, true)]).collect()));
                                    } else {
                                        refused += 1;
                                        buffers[to].accept_contents();
                                    }
                                }
                            }
                        }
                        (stream, history, refused)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });

        // One point for each step, after the one before it on its thread and, for a wait, after the recording.
        let mut graph = Graph::default();
        let mut recorded = HashMap::new();
        let (mut waits, mut ops) = (Vec::new(), Vec::new());
        for (thread, (_, history, turned_away)) in histories.iter().enumerate() {
            refused += turned_away;
            let mut last = graph.add(vec![]);
            for did in history {
                last = graph.add(vec![last]);
                match did {
                    Did::Recorded(event) => drop(recorded.insert(*event, last)),
                    Did::Waited(event) => waits.push((last, *event)),
                    Did::Op(accesses) => ops.push((thread, last, accesses)),
                }
            }
        }
        for (point, event) in waits {
            graph.before[point].push(recorded[&event]);
        }
        accepted += ops.len();
        let pasts: Vec<_> = ops.iter().map(|(_, point, _)| graph.past(&[*point])).collect();
        for (at, (thread, point, accesses)) in ops.iter().enumerate() {
            for (before, (other_thread, other_point, other)) in ops[..at].iter().enumerate() {
                let conflict = accesses
                    .iter()
                    .any(|(buffer, writes)| other.iter().any(|(b, w)| b == buffer && (*w || *writes)));
                let ordered = pasts[at].contains(other_point) || pasts[before].contains(point);
                assert!(
                    thread == other_thread || !conflict || ordered,
                    "round {round}: {accesses:?} and {other:?} were both accepted without an edge"
                );
            }
        }
    }
    assert!(accepted > 4000 && refused > 4000, "{accepted} accepted, {refused} refused: it says little");
}
