//! Histories against a list of everything that was ever done.
//!
//! The list is searched byte by byte, and it is never shortened. Clocks are explicit maps.

mod costs;

use super::*;
use crate::access::AccessMode;
use crate::check::{
    Access, Asker, Disjoint, Ensured, Entered, Entry, Refused, Strictness, check_and_enter, disjoint,
    overlap_within, undo,
};
use crate::clock::{Clock, StreamId, Ticket};
use crate::ledger::PATIENCE;
use crate::marks::Marks;
use crate::observed::Observed;
use crate::range::ByteRange;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use warpline_test_counts::count;

const ROWS: u64 = 16;
const ROW: u64 = 64;
const BYTES: u64 = ROWS * ROW;
const LEDGERS: usize = 2;

struct Operand<'a> {
    ledger: &'a Ledger,
    range: ByteRange,
    mode: AccessMode,
}

impl Access for Operand<'_> {
    fn ledger(&self) -> &Ledger {
        self.ledger
    }

    fn range(&self) -> &ByteRange {
        &self.range
    }

    fn mode(&self) -> AccessMode {
        self.mode
    }
}

#[track_caller]
fn site() -> Site {
    Site::here(&"op")
}

/// The work before a point of a stream, as the order check knows it and as an explicit map.
#[derive(Clone, Default)]
struct Before {
    clock: Clock,
    model: BTreeMap<StreamId, Ticket>,
}

/// A point of a stream.
#[derive(Clone)]
struct Point {
    used: Use,
    before: Before,
}

struct Stream {
    id: StreamId,
    issued: Ticket,
    before: Before,
}

impl Stream {
    fn new(observed: &Observed) -> Self {
        Stream { id: observed.admit().expect("few streams"), issued: 0, before: Before::default() }
    }

    fn point(&self) -> Point {
        Point { used: Use { stream: self.id, ticket: self.issued }, before: self.before.clone() }
    }

    fn wait(&mut self, point: &Point) {
        let known =
            self.before.model.get(&point.used.stream).is_some_and(|known| *known >= point.used.ticket);
        if point.used.stream == self.id || known {
            return;
        }
        self.issued += 1;
        let now = Use { stream: self.id, ticket: self.issued };
        self.before.clock.merge(now, point.used, &point.before.clock);
        note(&mut self.before.model, point);
    }
}

/// Adds a point and the work before it to a map.
fn note(model: &mut BTreeMap<StreamId, Ticket>, Point { used, before }: &Point) {
    for (stream, ticket) in
        before.model.iter().map(|(&id, &ticket)| (id, ticket)).chain([(used.stream, used.ticket)])
    {
        let known = model.entry(stream).or_default();
        *known = ticket.max(*known);
    }
}

/// An access that was entered.
struct Done {
    used: Use,
    before: BTreeMap<StreamId, Ticket>,
    ledger: usize,
    range: ByteRange,
    bytes: BTreeSet<u64>,
    writes: bool,
}

/// An access that a step makes: a ledger, its bytes, and true for a write.
type Touch = (usize, ByteRange, bool);

#[derive(Clone, Debug)]
enum Step {
    /// An op that the driver perhaps refuses.
    Op {
        stream: usize,
        touches: Vec<Touch>,
        refused: Option<Meanwhile>,
    },
    Wait(usize, usize),
    /// One stream waits for all others.
    WaitForAll(usize),
    Record(usize),
    WaitEvent(usize, usize),
    /// The host awaits a recent op.
    Await(usize),
    /// The stream closes and drains, and another takes its place.
    Replace(usize),
    /// Readers wait for the lock of a ledger.
    Contend(usize),
}

/// What other threads do to all ledgers between the entry of an op and its refusal by the driver.
#[derive(Clone, Copy, Debug)]
enum Meanwhile {
    Nothing,
    /// They open them exclusively.
    Open,
    /// They open them exclusively, and then readers wait for their locks.
    OpenAndContend,
}

fn range() -> impl Strategy<Value = ByteRange> {
    // Some strides are multiples of each other, and some are not.
    let stride = prop::sample::select(vec![16_u64, 24, 32, 36, 64]);
    let columns = (stride, 0..BYTES / 2, 1..9_u64, 1..=ROWS);
    prop_oneof![
        8 => (0..BYTES / 8, 1..5_u64).prop_map(|(at, len)| ByteRange::contiguous(8 * at, (8 * len).min(BYTES - 8 * at))),
        1 => (0..BYTES, 0..BYTES).prop_map(|(a, b)| ByteRange::contiguous(a.min(b), a.abs_diff(b))),
        1 => Just(ByteRange::contiguous(0, BYTES)),
        4 => columns.prop_map(|(stride, from, len, rows)| {
            // Some runs reach into the next row.
            ByteRange::strided(from, len.min(stride), stride, rows.min((BYTES - from - len) / stride))
        }),
    ]
}

fn steps(streams: usize) -> impl Strategy<Value = Vec<Step>> {
    let stream = 0..streams;
    let touch = (0..LEDGERS, range(), prop::bool::weighted(0.6));
    let touches = prop::collection::vec(touch, 1..3);
    let meanwhile =
        prop::sample::select(vec![Meanwhile::Nothing, Meanwhile::Open, Meanwhile::OpenAndContend]);
    let op = (stream.clone(), touches, prop::option::weighted(0.1, meanwhile));
    let step = prop_oneof![
        40 => op.prop_map(|(stream, touches, refused)| Step::Op { stream, touches, refused }),
        6 => (stream.clone(), stream.clone()).prop_map(|(a, b)| Step::Wait(a, b)),
        4 => stream.clone().prop_map(Step::WaitForAll),
        1 => stream.clone().prop_map(Step::Record),
        1 => (stream.clone(), 0..4_usize).prop_map(|(a, event)| Step::WaitEvent(a, event)),
        1 => (0..30_usize).prop_map(Step::Await),
        1 => stream.prop_map(Step::Replace),
        2 => (0..LEDGERS).prop_map(Step::Contend),
    ];
    prop::collection::vec(step, 0..400)
}

/// The histories of some memory, with the list of everything that was done.
struct Run {
    observed: Observed,
    host: BTreeMap<StreamId, Ticket>,
    ledgers: Vec<Ledger>,
    streams: Vec<Stream>,
    gone: BTreeSet<StreamId>,
    done: Vec<Done>,
    /// The newest first.
    ops: Vec<Point>,
    /// The newest first.
    events: Vec<Point>,
    strictness: Strictness,
    marks: Marks,
    ensured: Ensured,
}

impl Run {
    fn new(streams: usize, ledgers: usize, len: u64, strictness: Strictness) -> Self {
        let observed = Observed::default();
        let streams: Vec<Stream> = (0..streams).map(|_| Stream::new(&observed)).collect();
        let used = streams[0].point().used;
        let allocation = |ledger| {
            let range = ByteRange::contiguous(0, len);
            Done { used, before: BTreeMap::new(), ledger, range, bytes: (0..len).collect(), writes: true }
        };
        Run {
            host: BTreeMap::new(),
            ledgers: (0..ledgers).map(|_| Ledger::new(used, len, site())).collect(),
            gone: BTreeSet::new(),
            done: (0..ledgers).map(allocation).collect(),
            ops: Vec::new(),
            events: Vec::new(),
            marks: Marks::default(),
            ensured: Ensured::new(),
            observed,
            streams,
            strictness,
        }
    }

    fn operands(&self, touches: &[Touch]) -> Vec<Operand<'_>> {
        let operand = |&(ledger, range, writes): &Touch| {
            let mode = if writes { AccessMode::Write } else { AccessMode::Read };
            Operand { ledger: &self.ledgers[ledger], range, mode }
        };
        touches.iter().map(operand).collect()
    }

    /// Lets the check decide on an op of the stream, and enter it.
    fn enter(
        &mut self,
        stream: usize,
        touches: &[Touch],
        refused: Option<Meanwhile>,
    ) -> Result<Entered, Refused> {
        self.streams[stream].issued += 1;
        let operands = self.operands(touches);
        let Stream { id, issued, before } = &self.streams[stream];
        let (ticket, site) = (*issued, site());
        let (stated, observed, marks) = (&before.clock, &self.observed, &self.marks);
        let asker = Asker { stream: *id, stated, observed, marks, ensured: &self.ensured };
        let entry = Entry { asker, ticket, site: &site, strictness: self.strictness };
        let (mut order, mut entered) = (Disjoint::new(), Entered::default());
        let order = disjoint(&operands, &mut order).then_some(&order);
        check_and_enter(&operands, order, &entry, &mut entered)?;
        if let Some(meanwhile) = refused {
            for ledger in &self.ledgers {
                if !matches!(meanwhile, Meanwhile::Nothing) {
                    drop(ledger.open());
                }
                if matches!(meanwhile, Meanwhile::OpenAndContend) {
                    contend(ledger);
                }
            }
            undo(&operands, &entry, std::mem::take(&mut entered));
        }
        Ok(entered)
    }

    /// Returns the uses that the op is not ordered after.
    fn expected(&self, stream: usize, (ledger, range, writes): Touch) -> Vec<Use> {
        let Stream { id, before, .. } = &self.streams[stream];
        let knows = |model: &BTreeMap<StreamId, Ticket>, used: Use| {
            model.get(&used.stream).is_some_and(|known| *known >= used.ticket)
        };
        // A write of a stream that is gone is after what it overwrote, and before everything.
        let is_overwritten = |old: &Done| {
            self.done
                .iter()
                .filter(|by| by.writes && self.gone.contains(&by.used.stream))
                .any(|by| by.ledger == ledger && by.range.covers(&old.range) && knows(&by.before, old.used))
        };
        let bytes: BTreeSet<u64> = range.runs().flat_map(|(at, len)| at..at + len).collect();
        let concerned = self.done.iter().filter(|old| {
            old.ledger == ledger
                && (writes || old.writes)
                && old.used.stream != *id
                && !self.gone.contains(&old.used.stream)
                && !knows(&before.model, old.used)
                && !knows(&self.host, old.used)
                && !old.bytes.is_disjoint(&bytes)
                && !is_overwritten(old)
        });
        concerned.map(|old| old.used).collect()
    }

    fn op(&mut self, stream: usize, touches: &[Touch], refused: Option<Meanwhile>) {
        if overlap_within(&self.operands(touches), false).is_some() {
            return;
        }
        let expected: Vec<Vec<Use>> = touches.iter().map(|touch| self.expected(stream, *touch)).collect();
        let result = self.enter(stream, touches, refused);
        let was_entered = result.is_ok();
        let findings = match result {
            Ok(_) if refused.is_some() => return,
            Ok(entered) => entered.findings,
            Err(Refused::Unordered(findings)) => findings,
            Err(other) => panic!("{other:?}"),
        };
        assert_eq!(was_entered, self.strictness == Strictness::Find || expected.iter().all(Vec::is_empty));
        for (at, expected) in expected.iter().enumerate() {
            let found: Vec<Use> = findings
                .iter()
                .filter(|finding| finding.access == at)
                .map(|finding| finding.earlier.used)
                .collect();
            assert_eq!(found.is_empty(), expected.is_empty(), "{found:?} found, {expected:?} expected");
            assert!(found.iter().all(|used| expected.contains(used)), "{found:?} and {expected:?}");
        }
        if !was_entered {
            return;
        }
        let point = self.streams[stream].point();
        for &(ledger, range, writes) in touches.iter().filter(|touch| !touch.1.is_empty()) {
            let bytes = range.runs().flat_map(|(at, len)| at..at + len).collect();
            let before = point.before.model.clone();
            self.done.push(Done { used: point.used, before, ledger, range, bytes, writes });
        }
        self.ops.insert(0, point);
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Op { stream, ref touches, refused } => self.op(stream, touches, refused),
            Step::Wait(stream, other) => {
                let point = self.streams[other].point();
                self.streams[stream].wait(&point);
            }
            Step::WaitForAll(stream) => {
                for other in 0..self.streams.len() {
                    self.step(&Step::Wait(stream, other));
                }
            }
            Step::Record(stream) => self.events.insert(0, self.streams[stream].point()),
            Step::WaitEvent(stream, event) => {
                if let Some(event) = self.events.get(event) {
                    self.streams[stream].wait(event);
                }
            }
            Step::Await(op) => {
                if let Some(op) = self.ops.get(op) {
                    self.observed.observe(op.used, &op.before.clock);
                    note(&mut self.host, op);
                }
            }
            Step::Replace(stream) => {
                let new = Stream::new(&self.observed);
                let old = std::mem::replace(&mut self.streams[stream], new);
                self.observed.close(old.id);
                self.observed.retire(old.id);
                self.gone.insert(old.id);
            }
            Step::Contend(ledger) => contend(&self.ledgers[ledger]),
        }
    }

    /// Asserts that the trees are sound, and that the newest uses are known.
    fn check(&self) {
        for (at, ledger) in self.ledgers.iter().enumerate() {
            let page = ledger.open();
            page.records.assert_sound();
            for Stream { id, .. } in &self.streams {
                let used = self.done.iter().rfind(|done| done.ledger == at && done.used.stream == *id);
                let newest = used.map(|done| done.used.ticket);
                assert!(page.use_by(*id) >= newest, "{:?} and {newest:?}", page.use_by(*id));
            }
        }
    }
}

/// Lets readers wait for the lock of the ledger.
fn contend(ledger: &Ledger) {
    for _ in 0..PATIENCE {
        drop(ledger.open_contended(StreamId::from_number(0)));
    }
}

#[test]
fn an_op_that_compares_no_accesses_needs_the_work_of_closed_streams() {
    let all = [(0, ByteRange::contiguous(0, 64), false)];
    for contended in [false, true] {
        let mut run = Run::new(4, 1, 64, Strictness::Skip);
        let written = [(0, ByteRange::contiguous(0, 64), true)];
        run.enter(1, &written, None).expect("no order is checked");
        let by_closed = run.streams[1].point().used;
        run.enter(2, &all, None).expect("the stream is open");
        run.observed.close(by_closed.stream);
        if contended {
            contend(&run.ledgers[0]);
        }
        match run.enter(3, &all, None) {
            Err(Refused::Needs(needs)) => assert_eq!(needs, [by_closed]),
            other => panic!("{:?}", other.map(|_| ())),
        }
        run.ensured.add(by_closed);
        run.enter(3, &all, None).expect("it is ordered");
        run.ensured = Ensured::new();
        run.observed.observe(by_closed, &Clock::default());
        run.enter(2, &all, None).expect("it has finished");
    }
}

fn run(strictness: Strictness, streams: usize, steps: &[Step]) {
    let mut run = Run::new(streams, LEDGERS, BYTES, strictness);
    for (at, step) in steps.iter().enumerate() {
        run.step(step);
        // Looking opens the ledgers, which ends the sharding.
        if at % 16 == 0 {
            run.check();
        }
    }
    run.check();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(count(100, 400)))]

    #[test]
    fn a_strict_check_agrees_with_a_search_through_everything(steps in steps(6)) {
        run(Strictness::Refuse, 6, &steps);
    }

    #[test]
    fn a_check_that_only_finds_agrees_with_a_search_through_everything(steps in steps(12)) {
        run(Strictness::Find, 12, &steps);
    }
}

fn row(at: u64) -> ByteRange {
    ByteRange::contiguous(ROW * at, ROW)
}

#[test]
fn an_op_is_after_ensured_uses_and_earlier_ones_of_their_streams_alone() {
    let mut run = Run::new(3, 1, BYTES, Strictness::Refuse);
    let allocated = run.streams[0].point();
    run.streams[1].wait(&allocated);
    run.streams[2].wait(&allocated);
    for at in [2, 3, 4] {
        run.enter(1, &[(0, row(at), true)], None).expect("it is after the allocation");
    }
    let newest = run.streams[1].point().used;
    run.ensured.add(Use { ticket: newest.ticket - 1, ..newest });
    run.ensured.add(Use { ticket: newest.ticket - 2, ..newest });
    run.enter(2, &[(0, row(2), true), (0, row(3), true)], None).expect("both are ensured");
    let refused = run.enter(2, &[(0, row(4), false)], None);
    assert!(matches!(refused, Err(Refused::Unordered(findings)) if findings[0].earlier.used == newest));
    run.ensured = Ensured::new();
    run.ensured.add(Use { stream: run.streams[0].id, ..newest });
    assert!(run.enter(2, &[(0, row(4), false)], None).is_err(), "another stream's uses are ensured");
}

#[test]
fn a_use_by_a_stream_that_its_node_does_not_name_is_found() {
    const STREAMS: usize = 40;
    let mut run = Run::new(STREAMS, 1, ROW * STREAMS as u64, Strictness::Refuse);
    run.step(&Step::WaitForAll(0));
    let allocated = run.streams[0].point();
    run.streams.iter_mut().for_each(|stream| stream.wait(&allocated));
    for at in 0..STREAMS {
        run.enter(at, &[(0, row(at as u64), true)], None).expect("all are apart");
    }
    for other in 1..STREAMS - 1 {
        run.step(&Step::Wait(0, other));
    }
    let all_but_the_last = ByteRange::contiguous(0, ROW * (STREAMS as u64 - 1));
    run.enter(0, &[(0, all_but_the_last, false)], None).expect("it waited for these");
    assert!(run.enter(0, &[(0, ByteRange::contiguous(0, ROW * STREAMS as u64), false)], None).is_err());
}

#[test]
fn a_column_meets_columns_of_a_stride_that_does_not_fit_its_own() {
    let mut run = Run::new(2, 1, BYTES, Strictness::Refuse);
    let allocated = run.streams[0].point();
    run.streams[1].wait(&allocated);
    for at in 0..30 {
        run.enter(0, &[(0, ByteRange::strided(at, 1, 48, 8), true)], None).expect("one stream");
    }
    // Both have byte 63: 31 + 32 and 15 + 48.
    assert!(run.enter(1, &[(0, ByteRange::strided(31, 1, 32, 8), true)], None).is_err());
}
