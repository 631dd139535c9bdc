use super::*;
use proptest::prelude::*;
use warpline_test_counts::count;

fn id(stream: usize) -> StreamId {
    StreamId::from_number(stream as u64)
}

/// A stream that takes a ticket for each op and each wait that changes its clock.
#[derive(Clone, Default)]
struct Stream {
    issued: Ticket,
    clock: Clock,
    /// Every entry of the clock, found by merging all entries of both clocks.
    model: BTreeMap<StreamId, Ticket>,
}

/// The clocks of streams, with a model of each.
struct Streams(Vec<Stream>);

impl Streams {
    fn new(count: usize) -> Self {
        Streams(vec![Stream::default(); count])
    }

    fn op(&mut self, stream: usize) {
        self.0[stream].issued += 1;
    }

    /// Makes `stream` wait for all of `other`, as `other` is now.
    fn wait(&mut self, stream: usize, other: usize) {
        let other_now = self.0[other].clone();
        self.wait_for(stream, other, &other_now);
    }

    /// Makes `stream` wait for `other`, as it was.
    fn wait_for(&mut self, stream: usize, other: usize, was: &Stream) {
        if stream == other {
            return;
        }
        let (point, mine) = (Use { stream: id(other), ticket: was.issued }, &mut self.0[stream]);
        let covered = mine.model.get(&id(other)).is_some_and(|ticket| *ticket >= was.issued);
        assert_eq!(mine.clock.covers(point), covered, "{point:?} for {:?}", id(stream));
        if covered {
            return;
        }
        mine.issued += 1;
        assert!(mine.clock.merge(Use { stream: id(stream), ticket: mine.issued }, point, &was.clock));
        for (earlier, ticket) in
            was.model.iter().map(|(&stream, &ticket)| (stream, ticket)).chain([(id(other), was.issued)])
        {
            if earlier != id(stream) {
                let of_stream = mine.model.entry(earlier).or_default();
                *of_stream = ticket.max(*of_stream);
            }
        }
    }

    /// Compares each clock with its model, without the owner's own entry.
    fn check(&self) {
        for (at, stream) in self.0.iter().enumerate() {
            let mut entries = stream.clock.entries();
            entries.remove(&id(at));
            assert_eq!(entries, stream.model, "the clock of {:?}", id(at));
            for other in 0..self.0.len() {
                let (other, expected) = (id(other), stream.model.get(&id(other)));
                assert!(other == id(at) || stream.clock.get(other) == expected.copied());
            }
        }
    }
}

/// Returns the number of entries that `run` looks at.
fn visited(run: impl FnOnce()) -> usize {
    VISITED.set(0);
    run();
    VISITED.get()
}

#[derive(Clone, Debug)]
enum Step {
    Op(usize),
    Wait(usize, usize),
    /// Keeps where the stream stands, as an event does.
    Record(usize),
    WaitEvent(usize, usize),
}

fn steps(streams: usize) -> impl Strategy<Value = Vec<Step>> {
    let stream = 0..streams;
    let step = prop_oneof![
        4 => stream.clone().prop_map(Step::Op),
        8 => (stream.clone(), stream.clone()).prop_map(|(a, b)| Step::Wait(a, b)),
        2 => stream.clone().prop_map(Step::Record),
        2 => (stream, 0..4_usize).prop_map(|(a, event)| Step::WaitEvent(a, event)),
    ];
    prop::collection::vec(step, 0..300)
}

fn run(streams: usize, steps: &[Step]) {
    let mut clocks = Streams::new(streams);
    let mut events: Vec<(usize, Stream)> = Vec::new();
    for step in steps {
        match *step {
            Step::Op(stream) => clocks.op(stream),
            Step::Wait(stream, other) => clocks.wait(stream, other),
            Step::Record(stream) => events.insert(0, (stream, clocks.0[stream].clone())),
            Step::WaitEvent(stream, event) => {
                if let Some((other, was)) = events.get(event).cloned() {
                    clocks.wait_for(stream, other, &was);
                }
            }
        }
    }
    clocks.check();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn few_streams_have_the_clocks_of_the_model(steps in steps(5)) {
        run(5, &steps);
    }

    #[test]
    fn many_streams_have_the_clocks_of_the_model(steps in steps(40)) {
        run(40, &steps);
    }
}

/// A hub writes, each other stream waits for it, and the hub waits for each.
fn star(streams: usize, rounds: usize) -> Streams {
    let mut clocks = Streams::new(streams + 1);
    for _ in 0..rounds {
        clocks.op(0);
        for stream in 1..=streams {
            clocks.wait(stream, 0);
            clocks.op(stream);
            clocks.wait(0, stream);
        }
    }
    clocks
}

#[test]
fn in_a_star_a_wait_costs_the_same_at_any_number_of_streams() {
    let of_a_wait = |streams: usize| {
        let mut clocks = star(streams, 2).0;
        let mut hub = clocks.remove(0);
        let seen = visited(|| {
            for (at, stream) in clocks.iter_mut().enumerate() {
                let at = id(at + 1);
                hub.issued += 1;
                stream.issued += 1;
                let down = Use { stream: id(0), ticket: hub.issued };
                stream.clock.merge(Use { stream: at, ticket: stream.issued }, down, &hub.clock);
                hub.issued += 1;
                let up = Use { stream: at, ticket: stream.issued };
                hub.clock.merge(Use { stream: id(0), ticket: hub.issued }, up, &stream.clock);
            }
        });
        seen / streams
    };
    let (few, many) = (of_a_wait(128), of_a_wait(count(512, 2048)));
    assert!(many <= 2 * few, "{few} and {many}");
    assert!(many <= 60, "{many}");
    star(300, 3).check();
}

#[test]
fn a_join_of_unrelated_clocks_looks_at_each_entry_once() {
    let clocks = |first: usize, count: usize| {
        let mut clocks = Streams::new(first + count + 1);
        (first..first + count).for_each(|other| clocks.wait(first + count, other));
        clocks.0.pop().unwrap()
    };
    for count in [500, 4000] {
        let (mut mine, theirs) = (clocks(0, count), clocks(0, count + 64));
        let (owner, other) = (id(1 << 19), id(1 << 18));
        let seen = visited(|| {
            let now = Use { stream: owner, ticket: mine.issued + 1 };
            mine.clock.merge(now, Use { stream: other, ticket: theirs.issued }, &theirs.clock);
        });
        assert!(seen <= 2 * count + 1000, "{seen} of {count}");
    }
}

#[test]
fn a_later_stream_in_the_same_slot_has_an_entry_of_its_own() {
    let later = StreamId::of_slot(3, 1);
    let mut clock = Clock::default();
    for (ticket, stream) in (1..).zip([id(3), later]) {
        clock.merge(Use { stream: id(0), ticket }, Use { stream, ticket: 7 - ticket }, &Clock::default());
    }
    assert_eq!((clock.get(id(3)), clock.get(later)), (Some(6), Some(5)));
    // In the tree there is room for one. The earlier stream is gone, so it is before everything.
    for stream in 10..30 {
        let now = Use { stream: id(0), ticket: stream };
        clock.merge(now, Use { stream: id(stream as usize), ticket: 1 }, &Clock::default());
    }
    assert_eq!((clock.get(id(3)), clock.get(later)), (None, Some(5)));
}

#[test]
fn a_stated_edge_from_an_empty_stream_counts() {
    let mut clock = Clock::default();
    let none = |stream| Use { stream, ticket: 0 };
    assert!(!clock.covers(none(id(1))));
    clock.merge(Use { stream: id(2), ticket: 1 }, none(id(1)), &Clock::default());
    assert!(clock.covers(none(id(1))) && !clock.covers(Use { stream: id(1), ticket: 1 }));
}
