//! A test of the reuse rule against a slow model, with random programs over several streams.
//!
//! The model keeps the whole history. It knows every use there ever was, by byte range, and finds
//! the order by searching the graph of tickets and waits. The pool is given vector clocks instead.
//! After each grant the model checks every use that overlaps.

use super::test_driver::TestDriver;
use super::{DeviceMemory, Grant, PoolId, ReuseOrder, Zones};
use crate::order::{Site, StreamId, Use};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use warpline_test_counts::count;

const SIZES: [usize; 12] =
    [0, 600, 4096, 5000, 300 << 10, 1 << 20, (1 << 20) + 1, 3 << 20, 5 << 20, 9 << 20, 11 << 20, 16 << 20];

/// The next step of a program. Its numbers are taken modulo what exists.
#[derive(Clone, Debug)]
enum Step {
    Alloc { slot: u8, size: u8 },
    // Allocates, and returns the block without having waited for it or touched it.
    Abandon { slot: u8, size: u8 },
    // Uses a block. `ordered`: after a wait for the allocating stream. The order modes that let
    // races through use it without.
    Use { slot: u8, block: u8, ordered: bool },
    // Frees a block. `counts`: the allocation itself is named as a use of its stream.
    Free { block: u8, counts: bool },
    Wait { slot: u8, other: u8 },
    Run { stream: u8 },
    // Gives the slot a stream that never existed before.
    Replace { slot: u8 },
    EmptyCache,
    // Makes the driver refuse to unmap more pieces than this in one call.
    Refuse { pieces: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    let n = any::<u8>;
    prop_oneof![
        6 => (n(), n()).prop_map(|(slot, size)| Step::Alloc { slot, size }),
        1 => (n(), n()).prop_map(|(slot, size)| Step::Abandon { slot, size }),
        5 => (n(), n(), any::<bool>()).prop_map(|(slot, block, ordered)| Step::Use { slot, block, ordered }),
        5 => (n(), any::<bool>()).prop_map(|(block, counts)| Step::Free { block, counts }),
        2 => (n(), n()).prop_map(|(slot, other)| Step::Wait { slot, other }),
        5 => n().prop_map(|stream| Step::Run { stream }),
        1 => n().prop_map(|slot| Step::Replace { slot }),
        1 => Just(Step::EmptyCache),
        1 => n().prop_map(|pieces| Step::Refuse { pieces }),
    ]
}

#[derive(Default)]
struct Stream {
    /// The use that each ticket waits for, from ticket 1.
    ops: Vec<Option<Use>>,
    /// The clock after each ticket, from ticket 0.
    clocks: Vec<BTreeMap<StreamId, u64>>,
    completed: u64,
}

struct Live {
    grant: Grant,
    stream: StreamId,
    /// The allocating stream's last ticket, after its wait.
    since: u64,
    uses: BTreeMap<StreamId, u64>,
}

struct Past {
    start: u64,
    end: u64,
    used: Use,
}

/// A freed block of which nothing was handed out since.
struct Freed {
    start: u64,
    len: usize,
}

struct World {
    memory: DeviceMemory,
    driver: Arc<TestDriver>,
    limit: Option<usize>,
    zones: Zones,
    slots: Vec<StreamId>,
    streams: Vec<Stream>,
    live: Vec<Live>,
    past: Vec<Past>,
    freed: Vec<Freed>,
    peaks: (usize, usize),
}

struct Answers<'a>(&'a [Stream], StreamId);

impl ReuseOrder for Answers<'_> {
    fn after(&self, used: Use) -> bool {
        assert_ne!(used.stream, self.1, "the pool knows a stream's own order");
        let clock = self.0[self.1.number() as usize].clocks.last().unwrap();
        clock.get(&used.stream).is_some_and(|&ticket| ticket >= used.ticket)
    }

    fn finished(&self, used: Use) -> bool {
        self.0[used.stream.number() as usize].completed >= used.ticket
    }
}

impl World {
    fn new(limit: Option<usize>, zones: Zones, maps: bool) -> Self {
        let driver = if maps { TestDriver::mapping(usize::MAX) } else { TestDriver::new(usize::MAX) };
        let mut world = World {
            memory: DeviceMemory::new(driver.clone(), limit.map(super::MemoryLimit::of_bytes), zones),
            driver,
            limit,
            zones,
            slots: Vec::new(),
            streams: Vec::new(),
            live: Vec::new(),
            past: Vec::new(),
            freed: Vec::new(),
            peaks: (0, 0),
        };
        world.slots = (0..4).map(|_| world.open()).collect();
        world
    }

    fn open(&mut self) -> StreamId {
        self.streams.push(Stream { clocks: vec![BTreeMap::new()], ..Stream::default() });
        StreamId::from_number(self.streams.len() as u64 - 1)
    }

    fn slot(&self, slot: u8) -> StreamId {
        self.slots[slot as usize % self.slots.len()]
    }

    fn last(&self, stream: StreamId) -> u64 {
        self.streams[stream.number() as usize].ops.len() as u64
    }

    fn enqueue(&mut self, stream: StreamId, wait: Option<Use>) -> u64 {
        let mut clock = self.streams[stream.number() as usize].clocks.last().unwrap().clone();
        if let Some(wait) = wait {
            let before = &self.streams[wait.stream.number() as usize].clocks[wait.ticket as usize];
            for (&stream, &ticket) in before.iter().chain([(&wait.stream, &wait.ticket)]) {
                let entry = clock.entry(stream).or_insert(ticket);
                *entry = ticket.max(*entry);
            }
        }
        let stream = &mut self.streams[stream.number() as usize];
        stream.ops.push(wait);
        stream.clocks.push(clock);
        stream.ops.len() as u64
    }

    /// Runs the next op of a stream, if it need not wait.
    fn run(&mut self, stream: usize) -> bool {
        let at = self.streams[stream].completed as usize;
        let Some(op) = self.streams[stream].ops.get(at) else { return false };
        if let Some(wait) = op
            && self.streams[wait.stream.number() as usize].completed < wait.ticket
        {
            return false;
        }
        self.streams[stream].completed += 1;
        true
    }

    fn done(&self, used: Use) -> bool {
        self.streams[used.stream.number() as usize].completed >= used.ticket
    }

    /// Returns true if `used` is done, or comes before everything that `stream` does next. The
    /// order is found by a search.
    fn harmless(&self, used: Use, stream: StreamId) -> bool {
        if self.done(used) {
            return true;
        }
        let mut seen = vec![0; self.streams.len()];
        let mut todo = vec![Use { stream, ticket: self.last(stream) }];
        while let Some(point) = todo.pop() {
            if point.stream == used.stream && point.ticket >= used.ticket {
                return true;
            }
            let reached = &mut seen[point.stream.number() as usize];
            let from = *reached;
            *reached = point.ticket.max(from);
            for ticket in from..point.ticket {
                todo.extend(self.streams[point.stream.number() as usize].ops[ticket as usize]);
            }
        }
        false
    }

    fn alloc(&mut self, slot: u8, size: u8, abandon: bool) {
        let (stream, asked) = (self.slot(slot), SIZES[size as usize % SIZES.len()]);
        let size = asked.max(1).next_multiple_of(512);
        let (served, calls) = (self.memory.stats().served, self.driver.calls());
        let answers = Answers(&self.streams, stream);
        let grant = match self.memory.alloc(asked, stream, &answers, Site::here(&"test"), || None) {
            Ok(grant) => grant,
            Err(_) => {
                let limit = self.limit.expect("only a limit refuses");
                let reserved = self.memory.stats().reserved_bytes;
                assert!(reserved + size > limit, "{asked} bytes were refused too early");
                return;
            }
        };
        let (start, end) = (grant.ptr.0, grant.ptr.0 + grant.len_bytes as u64);
        assert!(grant.len_bytes >= size && start % 512 == 0);
        let zone = self.zone_of(&grant);
        assert!(self.driver.holds(start, grant.len_bytes + zone as usize), "a block outside every segment");
        for live in &self.live {
            let (theirs, their_zone) = (live.grant.ptr.0, self.zone_of(&live.grant));
            let their_end = theirs + live.grant.len_bytes as u64;
            assert!(end + zone <= theirs || start >= their_end + their_zone, "live blocks overlap");
        }
        if self.driver.calls() > calls {
            for freed in &self.freed {
                let fits = freed.len >= size && (freed.len <= 1 << 20) == (size <= 1 << 20);
                let ready = self
                    .overlapping(freed.start, freed.start + freed.len as u64)
                    .all(|used| self.harmless(used, stream));
                assert!(!fits || !ready, "grew although a block of {} bytes was ready for {size}", freed.len);
            }
        }
        let now = self.memory.stats().served;
        if now.merged > served.merged || now.waited > served.waited {
            // Blocks may have been joined, and have uses of other streams since.
            self.freed.clear();
        }
        self.freed.retain(|freed| end <= freed.start || start >= freed.start + freed.len as u64);
        if abandon {
            self.note();
            self.memory.free(grant.block, &[]);
            return;
        }
        if let Some(wait) = grant.wait {
            assert!(wait.stream != stream && wait.ticket <= self.last(wait.stream));
            assert!(!self.done(wait), "a wait for what is finished");
            self.enqueue(stream, Some(wait));
        }
        for used in self.overlapping(start, end) {
            assert!(
                self.harmless(used, stream),
                "{stream:?} got memory that {used:?} may still use: {grant:?}"
            );
        }
        self.live.push(Live { grant, stream, since: self.last(stream), uses: BTreeMap::new() });
    }

    /// Returns the least length of the zone behind a block.
    fn zone_of(&self, grant: &Grant) -> u64 {
        match self.zones {
            Zones::None => 0,
            Zones::Behind if grant.len_bytes <= 1 << 20 => grant.len_bytes as u64,
            Zones::Behind => 64 << 10,
        }
    }

    fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = Use> {
        self.past.iter().filter(move |past| start < past.end && past.start < end).map(|past| past.used)
    }

    fn touch(&mut self, block: usize, used: Use) {
        let live = &mut self.live[block];
        live.uses.insert(used.stream, used.ticket);
        let start = live.grant.ptr.0;
        self.past.push(Past { start, end: start + live.grant.len_bytes as u64, used });
    }

    fn free(&mut self, block: usize, counts: bool) {
        let (stream, since) = (self.live[block].stream, self.live[block].since);
        if counts && !self.live[block].uses.contains_key(&stream) {
            self.touch(block, Use { stream, ticket: since });
        }
        let live = self.live.swap_remove(block);
        let uses: Vec<Use> = live.uses.iter().map(|(&stream, &ticket)| Use { stream, ticket }).collect();
        self.memory.free(live.grant.block, &uses);
        let (start, len) = (live.grant.ptr.0, live.grant.len_bytes);
        // If the allocating stream is not named, the pool has to keep the block's earlier uses, and
        // may know less than the model. Buffers always name it, so memory that they free is reused
        // as early as possible.
        if live.uses.contains_key(&stream) {
            self.freed.push(Freed { start, len });
        }
    }

    fn empty_cache(&mut self) {
        let before = self.memory.stats().reserved_bytes;
        let given = self.memory.empty_cache(|used| self.done(used));
        assert_eq!(self.memory.stats().reserved_bytes + given, before);
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Alloc { slot, size } => self.alloc(slot, size, false),
            Step::Abandon { slot, size } => self.alloc(slot, size, true),
            Step::Use { slot, block, ordered } if !self.live.is_empty() => {
                let (stream, block) = (self.slot(slot), block as usize % self.live.len());
                let owner = self.live[block].stream;
                if ordered && stream != owner {
                    self.enqueue(stream, Some(Use { stream: owner, ticket: self.live[block].since }));
                }
                let ticket = self.enqueue(stream, None);
                self.touch(block, Use { stream, ticket });
            }
            Step::Free { block, counts } if !self.live.is_empty() => {
                self.free(block as usize % self.live.len(), counts);
            }
            Step::Wait { slot, other } if self.slot(slot) != self.slot(other) => {
                let other = self.slot(other);
                self.enqueue(self.slot(slot), Some(Use { stream: other, ticket: self.last(other) }));
            }
            Step::Run { stream } => {
                self.run(stream as usize % self.streams.len());
            }
            Step::Replace { slot } => {
                let slot = slot as usize % self.slots.len();
                self.slots[slot] = self.open();
            }
            Step::EmptyCache => self.empty_cache(),
            Step::Refuse { pieces } => {
                self.driver.unmap_at_most(Some(pieces as usize % 8).filter(|pieces| *pieces < 4));
            }
            _ => {}
        }
        self.note();
        let stats = self.memory.stats();
        let live: usize = self.live.iter().map(|live| live.grant.len_bytes).sum();
        assert_eq!((stats.allocated_bytes, stats.live_blocks), (live, self.live.len()));
        let (segments, reserved) = self.memory.pieces_of(PoolId::DEFAULT);
        let spans: u64 = segments.iter().map(|addresses| addresses.end - addresses.start).sum();
        assert_eq!((stats.reserved_bytes, spans as usize), (reserved, self.driver.device_bytes()));
        assert!(self.zones == Zones::Behind || spans as usize == reserved);
        assert_eq!((stats.peak_allocated_bytes, stats.peak_reserved_bytes), self.peaks);
        assert!(self.limit.is_none_or(|limit| stats.reserved_bytes <= limit));
        for past in self.past.iter().filter(|past| !self.done(past.used)) {
            let held = self.driver.holds(past.start, (past.end - past.start) as usize);
            assert!(held, "memory in use went back to the driver");
        }
        self.freed.retain(|freed| self.driver.holds(freed.start, freed.len));
    }

    fn note(&mut self) {
        let stats = self.memory.stats();
        self.peaks.0 = self.peaks.0.max(stats.allocated_bytes);
        self.peaks.1 = self.peaks.1.max(stats.reserved_bytes);
    }

    fn finish(mut self) {
        while (0..self.streams.len()).any(|stream| self.run(stream)) {}
        while !self.live.is_empty() {
            self.free(0, true);
        }
        let reserved = self.memory.stats().reserved_bytes;
        self.driver.unmap_at_most(None);
        assert_eq!(self.memory.empty_cache(|_| true), reserved);
        let stats = self.memory.stats();
        assert_eq!((stats.allocated_bytes, stats.reserved_bytes, stats.cached_blocks), (0, 0, 0));
        assert_eq!((stats.segments, self.driver.device_bytes()), (0, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: count(1_500, 10_000), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_block_is_reused_before_its_uses_are_over(
        steps in prop::collection::vec(step(), 1..80),
        limit in prop::option::of(prop::sample::select(vec![2_usize << 20, 24 << 20, 48 << 20])),
        zones in prop::sample::select(vec![Zones::None, Zones::Behind]),
        maps: bool,
    ) {
        let mut world = World::new(limit, zones, maps);
        for step in &steps {
            world.step(step);
        }
        world.finish();
    }
}
