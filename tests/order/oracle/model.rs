//! The slow model, which finds the order of points by graph search and tracks which stream carries
//! which refusal.
//!
//! It has no clocks, prunes no histories, and does not know which work has finished.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use warpline::StreamId;

/// A point of the execution, which is after the points that [`Graph::add`] was given.
pub(crate) type Point = usize;

#[derive(Default)]
pub(crate) struct Graph {
    before: Vec<Vec<Point>>,
}

impl Graph {
    pub(crate) fn add(&mut self, before: Vec<Point>) -> Point {
        self.before.push(before);
        self.before.len() - 1
    }

    pub(crate) fn add_edge(&mut self, from: Point, to: Point) {
        self.before[to].push(from);
    }

    /// Returns everything at or before the given points.
    pub(crate) fn past(&self, of: &[Point]) -> BTreeSet<Point> {
        let mut past = BTreeSet::new();
        self.extend(&mut past, of);
        past
    }

    /// Adds everything at or before the given points to the past of others.
    fn extend(&self, past: &mut BTreeSet<Point>, of: &[Point]) {
        let mut open = of.to_vec();
        while let Some(point) = open.pop() {
            if past.insert(point) {
                open.extend(&self.before[point]);
            }
        }
    }
}

/// The number of a refusal.
pub(crate) type Refused = usize;
pub(crate) type Bytes = BTreeSet<usize>;

/// The position of a stream: its newest point, and the refusals that it carries.
#[derive(Clone)]
pub(crate) struct Stand {
    pub(crate) stream: StreamId,
    pub(crate) point: Point,
    pub(crate) carries: BTreeSet<Refused>,
}

struct Stream {
    stand: Stand,
    /// The number of its tickets. Each op takes one, and so does each wait that orders it after
    /// something new.
    issued: u64,
    is_open: bool,
    /// The refusals that the program has not seen, oldest first.
    unseen: VecDeque<Refused>,
}

struct Access {
    point: Point,
    bytes: Bytes,
    writes: bool,
    stream: StreamId,
}

struct Mark {
    by: StreamId,
    buffer: u64,
    bytes: Bytes,
    /// True if the mark also affects streams that do not carry it.
    everybodys: bool,
}

#[derive(Default)]
pub(crate) struct Model {
    graph: Graph,
    streams: BTreeMap<StreamId, Stream>,
    /// The newest point that the host has observed.
    host: Point,
    /// The accesses to each buffer. A dropped buffer has no entry.
    accesses: BTreeMap<u64, Vec<Access>>,
    marks: BTreeMap<Refused, Vec<Mark>>,
    refusals: usize,
}

/// An op's access to one buffer.
#[derive(Clone, Debug)]
pub(crate) struct Touch {
    pub(crate) buffer: u64,
    pub(crate) bytes: Bytes,
    pub(crate) reads: bool,
    pub(crate) writes: bool,
}

impl Model {
    pub(crate) fn new() -> Self {
        let mut model = Model::default();
        model.host = model.graph.add(vec![]);
        model
    }

    pub(crate) fn open(&mut self, stream: StreamId) {
        let point = self.graph.add(vec![]);
        let stand = Stand { stream, point, carries: BTreeSet::new() };
        self.streams.insert(stream, Stream { stand, issued: 0, is_open: true, unseen: VecDeque::new() });
    }

    /// Closes a stream. From now on its accesses conflict with nothing, and no stream takes over
    /// the refusals that it carries.
    pub(crate) fn close(&mut self, stream: StreamId) {
        let closed = self.streams.get_mut(&stream).unwrap();
        closed.is_open = false;
        closed.stand.carries.clear();
    }

    pub(crate) fn stand(&self, stream: StreamId) -> Stand {
        self.streams[&stream].stand.clone()
    }

    pub(crate) fn issued(&self, stream: StreamId) -> u64 {
        self.streams[&stream].issued
    }

    /// Returns the streams with accesses that conflict with an op of `stream` and are not ordered
    /// before it.
    pub(crate) fn conflicts(&self, stream: StreamId, touches: &[Touch]) -> BTreeSet<StreamId> {
        let past = self.graph.past(&[self.streams[&stream].stand.point, self.host]);
        let of = |touch: &Touch| -> Vec<StreamId> {
            let accesses = &self.accesses[&touch.buffer];
            // A closed stream's write is after what it overwrote, and before everything that
            // touches those bytes later.
            let overwritten: Vec<(&Bytes, BTreeSet<Point>)> = accesses
                .iter()
                .filter(|later| later.writes && !self.streams[&later.stream].is_open)
                .map(|later| (&later.bytes, self.graph.past(&[later.point])))
                .collect();
            let concerned = accesses
                .iter()
                .filter(|earlier| earlier.writes || touch.writes)
                .filter(|earlier| !earlier.bytes.is_disjoint(&touch.bytes))
                .filter(|earlier| !past.contains(&earlier.point) && self.streams[&earlier.stream].is_open)
                .filter(|earlier| {
                    !overwritten.iter().any(|(bytes, past)| {
                        past.contains(&earlier.point) && bytes.is_superset(&earlier.bytes)
                    })
                });
            concerned.map(|earlier| earlier.stream).collect()
        };
        touches.iter().flat_map(of).collect()
    }

    /// Returns true if an op of `stream` would read bytes that a refused write did not write.
    pub(crate) fn inherits(&self, stream: StreamId, touches: &[Touch]) -> bool {
        let carries = &self.streams[&stream].stand.carries;
        touches.iter().filter(|touch| touch.reads).any(|touch| {
            self.marks.iter().any(|(refused, marks)| {
                marks.iter().any(|mark| {
                    mark.buffer == touch.buffer
                        && !mark.bytes.is_disjoint(&touch.bytes)
                        && (mark.everybodys || carries.contains(refused))
                })
            })
        })
    }

    /// Records an accepted op, and returns its point.
    pub(crate) fn op(&mut self, stream: StreamId, touches: &[Touch]) -> Point {
        let at = self.streams.get_mut(&stream).unwrap();
        let point = self.graph.add(vec![at.stand.point, self.host]);
        at.stand.point = point;
        at.issued += 1;
        for Touch { buffer, bytes, writes, reads } in touches {
            let access = Access { point, bytes: bytes.clone(), writes: *writes, stream };
            self.accesses.get_mut(buffer).unwrap().push(access);
            if *writes && !reads {
                let on_it = self.marks.values_mut().flatten().filter(|mark| mark.buffer == *buffer);
                on_it.for_each(|mark| mark.bytes = &mark.bytes - bytes);
            }
        }
        point
    }

    /// Records a refused write. With `everybodys`, the write may have changed the bytes, so it
    /// affects all streams.
    pub(crate) fn refuse(&mut self, stream: StreamId, touches: &[Touch], everybodys: bool) -> Refused {
        self.refusals += 1;
        let written = touches.iter().filter(|touch| touch.writes);
        let mark = |touch: &Touch| {
            let (buffer, bytes) = (touch.buffer, touch.bytes.clone());
            Mark { by: stream, buffer, bytes, everybodys }
        };
        self.marks.insert(self.refusals, written.map(mark).collect());
        if !everybodys {
            self.streams.get_mut(&stream).unwrap().stand.carries.insert(self.refusals);
        }
        self.refusals
    }

    /// Records that the program has looked at the error of the refused call itself.
    pub(crate) fn see(&mut self, refused: Refused) {
        if let Some(marks) = self.marks.get_mut(&refused) {
            marks.retain(|mark| mark.everybodys);
        }
    }

    /// Records that the refused call was dropped without a look at its error.
    pub(crate) fn drop_unseen(&mut self, stream: StreamId, refused: Refused) {
        self.streams.get_mut(&stream).unwrap().unseen.push_back(refused);
    }

    /// Records that a `synchronize` of the stream has resolved, and returns the refusal that it
    /// reports.
    pub(crate) fn synchronized(&mut self, stream: StreamId) -> Option<Refused> {
        let refused = self.streams.get_mut(&stream).unwrap().unseen.pop_front()?;
        self.see(refused);
        Some(refused)
    }

    pub(crate) fn accept(&mut self, buffer: u64, bytes: &Bytes) {
        for mark in self.marks.values_mut().flatten().filter(|mark| mark.buffer == buffer) {
            mark.bytes = &mark.bytes - bytes;
        }
    }

    /// Records a wait on `stream` for a position. It takes a ticket if it orders something new, or
    /// if the other stream is closed.
    pub(crate) fn wait(&mut self, stream: StreamId, from: &Stand) {
        self.wait_behind(&mut self.past_of(stream), stream, from);
    }

    /// Returns everything that work which the stream is given now is after.
    fn past_of(&self, stream: StreamId) -> BTreeSet<Point> {
        self.graph.past(&[self.streams[&stream].stand.point, self.host])
    }

    /// Records a wait on a stream with that past, which then has what it waits for.
    fn wait_behind(&mut self, past: &mut BTreeSet<Point>, stream: StreamId, from: &Stand) {
        if from.stream == stream {
            return;
        }
        let is_open = self.streams[&from.stream].is_open;
        let at = self.streams.get_mut(&stream).unwrap();
        if !is_open || !past.contains(&from.point) {
            at.stand.point = self.graph.add(vec![at.stand.point, from.point]);
            at.issued += 1;
            self.graph.extend(past, &[at.stand.point]);
        }
        at.stand.carries.extend(&from.carries);
    }

    /// Records a wait for every stream that used the buffer, and then for every stream that was
    /// refused to write it. All closed streams together take one ticket.
    pub(crate) fn wait_for(&mut self, stream: StreamId, buffer: u64) {
        let mut users: Vec<StreamId> = self.accesses[&buffer].iter().map(|access| access.stream).collect();
        let some_are_closed = users.iter().any(|user| !self.streams[user].is_open);
        let marks = self.marks.values().flatten();
        let on_it = marks.filter(|mark| mark.buffer == buffer && !mark.bytes.is_empty());
        users.extend(on_it.map(|mark| mark.by));
        // One search, because a thousand streams may each wait for a thousand others.
        let mut past = self.past_of(stream);
        for user in users {
            if self.streams[&user].is_open {
                let from = self.stand(user);
                self.wait_behind(&mut past, stream, &from);
            }
        }
        if some_are_closed {
            let at = self.streams.get_mut(&stream).unwrap();
            at.stand.point = self.graph.add(vec![at.stand.point]);
            at.issued += 1;
        }
    }

    pub(crate) fn observe(&mut self, point: Point) {
        self.host = self.graph.add(vec![self.host, point]);
    }

    /// Records an allocation, at the position of its stream.
    pub(crate) fn allocate(&mut self, stream: StreamId, buffer: u64, bytes: usize) {
        let point = self.streams[&stream].stand.point;
        let access = Access { point, bytes: (0..bytes).collect(), writes: true, stream };
        self.accesses.insert(buffer, vec![access]);
    }

    pub(crate) fn free(&mut self, buffer: u64) {
        self.accesses.remove(&buffer);
        self.marks.values_mut().for_each(|marks| marks.retain(|mark| mark.buffer != buffer));
    }
}
