//! The work of a capture and its order, from which a driver makes a graph.
//!
//! A plan consists of numbers and commands only. Its streams stand for those of the capture. Steps
//! of one stream run one after the other. A wait orders the later steps of its stream after a step
//! of another stream. There is no other order, so a driver may run two branches in any order or at
//! the same time.

use super::{Command, Copy, CopyKind, Fill, Launch, Priority};
use crate::kernel::Workspace;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use warpline_order::Site;

/// The reason why a copy between devices cannot be in a graph.
pub const OF_ONE_DEVICE: &str = "a graph runs on one device; copy between devices before or after \
    a launch";

/// The work of a graph.
#[derive(Debug, Default)]
pub struct Plan {
    /// The streams. The capture began on the first, 0. It comes before the first steps of all
    /// others, and all their steps come before its end.
    pub streams: Vec<PlanStream>,
    /// The steps of all streams, in the order in which they were recorded. No step waits for a
    /// later one.
    pub steps: Vec<Step>,
}

/// A stream of a plan.
#[derive(Debug, Default)]
pub struct PlanStream {
    /// The priority of the captured stream that this one stands for.
    pub priority: Priority,
    /// The workspace of libraries on this stream, if they asked for one. They own it for as long as
    /// a graph of the plan exists.
    pub workspace: Option<Workspace>,
}

/// One step of a stream.
#[derive(Debug)]
pub struct Step {
    /// The number of its stream.
    pub stream: usize,
    /// The number of the step on that stream; the first is 1.
    pub number: u64,
    /// The name of the step and the line that requested it.
    pub site: Site,
    /// The work of the step.
    pub work: Work,
}

/// The work of a step, which can be repeated.
#[derive(Clone, Debug)]
pub enum Work {
    /// Moves bytes, but not to the host, nor to or from another device.
    Copy(Copy),
    /// Repeats a pattern.
    Fill(Fill),
    /// Runs a kernel.
    Launch(Launch),
    /// Holds its stream until another stream has passed its step `number`. There is no step 0: a
    /// wait for it is only an edge from that stream's beginning.
    Wait {
        /// The other stream.
        stream: usize,
        /// The step that the other stream has to pass.
        number: u64,
    },
}

/// Returns the work of a command, or the reason why it cannot be part of a graph.
pub fn work_of(command: Command) -> Result<Work, &'static str> {
    match command {
        Command::Copy(Copy { kind: CopyKind::DeviceToHost, .. }) => {
            Err("the host would not see the result of each launch; read after a launch")
        }
        Command::Copy(Copy { kind: CopyKind::Peer { .. }, .. }) | Command::StagedCopy(_) => {
            Err(OF_ONE_DEVICE)
        }
        Command::Copy(copy) => Ok(Work::Copy(copy)),
        Command::Fill(fill) => Ok(Work::Fill(fill)),
        Command::Launch(launch) => Ok(Work::Launch(launch)),
        Command::Graph(_) => Err("its steps are not known; launch it after this one"),
        Command::Call(_) => {
            Err("a host function is called once, and a graph runs many times; call it after a \
                launch")
        }
        Command::Stamp(_) => Err("an event has one time, and a graph runs many times; time its launches"),
        Command::Wait(_) | Command::Edge(_) | Command::Elided => {
            Err("it waits for work outside the graph; wait before a launch")
        }
        Command::Foreign | Command::HostWork(_) => {
            Err("a capture cannot see what foreign work enqueues; do it between \
            launches")
        }
    }
}

impl Step {
    /// Returns the stream and the step that this step waits for, if it is a wait.
    pub fn waits_for(&self) -> Option<(usize, u64)> {
        match self.work {
            Work::Wait { stream, number } => Some((stream, number)),
            _ => None,
        }
    }
}

/// Appends the steps of `other` to the stream `end`, which is given with the number of its last
/// step.
///
/// Steps of the first stream of `other` go to that stream. Steps of its other streams go to
/// `sides`: streams of the same priority, given with their last steps, all of which come before
/// `end`. Where no side is left, the function adds a stream to `plan` and to `sides`.
pub fn append_plan(plan: &mut Plan, other: &Plan, end: (usize, u64), sides: &mut Vec<(usize, u64)>) {
    // The side of each further stream of `other`: the next side of its priority that is not taken.
    let mut side_of = Vec::new();
    let mut looked_at = [0; Priority::High as usize + 1];
    for &PlanStream { priority, .. } in other.streams.iter().skip(1) {
        let looked_at = &mut looked_at[priority as usize];
        let fits = |at: &usize| plan.streams[sides[*at].0].priority == priority;
        let at = (*looked_at..sides.len()).find(fits).unwrap_or_else(|| {
            sides.push((plan.streams.len(), 0));
            plan.streams.push(PlanStream { priority, workspace: None });
            sides.len() - 1
        });
        *looked_at = at + 1;
        side_of.push(at);
    }
    let sides_before = side_of.iter().map(|&at| sides[at]);
    let before: Vec<(usize, u64)> = std::iter::once(end).chain(sides_before).collect();
    let stream = |inner: usize| before[inner].0;
    // On a side, number 0 is the point at which the graph began.
    let shifted = |inner: usize, of: u64| before[inner].1 + of;
    for step in &other.steps {
        let work = match step.work {
            Work::Wait { stream: inner, number: of } => {
                Work::Wait { stream: stream(inner), number: shifted(inner, of) }
            }
            ref work => work.clone(),
        };
        let number = shifted(step.stream, step.number);
        if step.stream > 0 {
            sides[side_of[step.stream - 1]].1 = number;
        }
        plan.steps.push(Step { stream: stream(step.stream), number, site: step.site, work });
    }
}

impl Plan {
    /// Returns the indices of the steps that run something, in an order that respects the waits.
    ///
    /// `choose` receives the numbers of the streams that could continue, in ascending order, and
    /// picks one by its index.
    pub fn order(&self, mut choose: impl FnMut(&[usize]) -> usize) -> Vec<usize> {
        let mut progress = Progress::new(self);
        let mut order = Vec::new();
        while !progress.free.is_empty() {
            let stream = progress.free.remove(choose(&progress.free));
            order.push(progress.take(stream));
        }
        debug_assert!(progress.queues.iter().all(Vec::is_empty), "steps wait for each other");
        order
    }
}

/// The progress of an order.
///
/// A stream is examined at the beginning, after its own step, and when the step that it waits for
/// is done. Each step and each wait therefore costs the same for any number of streams.
struct Progress<'a> {
    plan: &'a Plan,
    /// The remaining steps of each stream, its next step last.
    queues: Vec<Vec<usize>>,
    /// The number of each stream's last step.
    done: Vec<u64>,
    /// The streams that wait for each stream, with the step that they wait for, the lowest first.
    waiting: Vec<BinaryHeap<Reverse<(u64, usize)>>>,
    /// The streams whose next step runs something, in ascending order.
    free: Vec<usize>,
}

impl<'a> Progress<'a> {
    fn new(plan: &'a Plan) -> Self {
        let mut queues = vec![Vec::new(); plan.streams.len()];
        for (at, step) in plan.steps.iter().enumerate().rev() {
            queues[step.stream].push(at);
        }
        let streams = plan.streams.len();
        let (done, waiting) = (vec![0; streams], vec![BinaryHeap::new(); streams]);
        let mut progress = Progress { plan, queues, done, waiting, free: Vec::new() };
        progress.pass_waits((0..streams).collect());
        progress
    }

    /// Takes the next step of a stream that could continue, and notes that it is done.
    fn take(&mut self, stream: usize) -> usize {
        let at = self.queues[stream].pop().expect("it has a step that can run");
        self.done[stream] = self.plan.steps[at].number;
        let mut streams = vec![stream];
        self.release(stream, &mut streams);
        self.pass_waits(streams);
        at
    }

    /// Moves the streams that waited for the present step of `stream` to `streams`.
    fn release(&mut self, stream: usize, streams: &mut Vec<usize>) {
        let (done, waiting) = (self.done[stream], &mut self.waiting[stream]);
        while let Some(&Reverse((number, who))) = waiting.peek()
            && number <= done
        {
            waiting.pop();
            streams.push(who);
        }
    }

    /// Advances each of `streams`, and each stream that waits for one of them, to its next step
    /// that runs something, or to a wait for an unfinished step.
    fn pass_waits(&mut self, mut streams: Vec<usize>) {
        while let Some(stream) = streams.pop() {
            while let Some(&at) = self.queues[stream].last() {
                match self.plan.steps[at].work {
                    Work::Wait { stream: other, number } if self.done[other] < number => {
                        self.waiting[other].push(Reverse((number, stream)));
                        break;
                    }
                    Work::Wait { .. } => {
                        self.queues[stream].pop();
                        self.done[stream] = self.plan.steps[at].number;
                        self.release(stream, &mut streams);
                    }
                    _ => {
                        let place = self.free.partition_point(|&free| free < stream);
                        self.free.insert(place, stream);
                        break;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DevicePtr;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const NOTHING: Fill =
        Fill { dst: DevicePtr(0), pitch: 0, width_bytes: 0, height: 0, pattern: 0, pattern_bytes: 1 };

    /// Builds a plan of `streams` streams from random numbers. Each step runs something or waits
    /// for the newest step of another stream.
    fn plan(streams: usize, draws: &[(usize, Option<usize>)]) -> Plan {
        let mut numbers = vec![0; streams];
        let mut steps = Vec::new();
        for &(stream, other) in draws {
            let stream = stream % streams;
            let work = match other {
                Some(other) => Work::Wait { stream: other % streams, number: numbers[other % streams] },
                None => Work::Fill(NOTHING),
            };
            numbers[stream] += 1;
            steps.push(Step { stream, number: numbers[stream], site: Site::here(&"step"), work });
        }
        Plan { streams: (0..streams).map(|_| PlanStream::default()).collect(), steps }
    }

    /// Finds by search which steps have to come before each step.
    fn before(plan: &Plan) -> Vec<BTreeSet<usize>> {
        let mut before: Vec<BTreeSet<usize>> = Vec::new();
        for (at, step) in plan.steps.iter().enumerate() {
            let mut mine = BTreeSet::new();
            for (earlier, other) in plan.steps[..at].iter().enumerate() {
                let waited = match step.work {
                    Work::Wait { stream, number } => other.stream == stream && other.number <= number,
                    _ => false,
                };
                if other.stream == step.stream || waited {
                    mine.insert(earlier);
                    mine.extend(&before[earlier]);
                }
            }
            before.push(mine);
        }
        before
    }

    proptest! {
        #[test]
        fn every_order_has_all_that_runs_after_what_it_waits_for(
            streams in 1usize..5,
            draws in proptest::collection::vec((0usize..5, proptest::option::weighted(0.4, 0usize..5)), 0..24),
            choices in proptest::collection::vec(0usize..100, 1..24),
        ) {
            let plan = plan(streams, &draws);
            let before = before(&plan);
            let runs: Vec<usize> =
                (0..plan.steps.len()).filter(|&at| !matches!(plan.steps[at].work, Work::Wait { .. })).collect();
            let mut turn = 0;
            let mut left: BTreeSet<usize> = runs.iter().copied().collect();
            let order = plan.order(|free| {
                // The steps of all streams that come after none of the remaining steps.
                let next = left.iter().filter(|&at| before[*at].is_disjoint(&left));
                let could: BTreeSet<usize> = next.map(|&at| plan.steps[at].stream).collect();
                assert_eq!(free, could.into_iter().collect::<Vec<_>>());
                turn += 1;
                let chosen = choices[turn % choices.len()] % free.len();
                let at = *left.iter().find(|&&at| plan.steps[at].stream == free[chosen]).unwrap();
                left.remove(&at);
                chosen
            });
            let mut sorted = order.clone();
            sorted.sort_unstable();
            prop_assert_eq!(&sorted, &runs);
            for (place, at) in order.iter().enumerate() {
                for later in &order[place + 1..] {
                    prop_assert!(!before[*at].contains(later), "step {later} ran after {at}");
                }
            }
        }
    }

    #[test]
    fn a_plan_in_a_plan_is_its_steps_between_those_around_it() {
        let mut outer = plan(2, &[(0, None), (1, Some(0)), (1, None)]);
        // A plan that forks at its beginning and is joined.
        let inner = plan(2, &[(1, Some(0)), (1, None), (0, None), (0, Some(1))]);
        let mut sides = Vec::new();
        append_plan(&mut outer, &inner, (1, 2), &mut sides);
        assert_eq!((outer.streams.len(), &sides[..]), (3, &[(2, 2)][..]));
        let shown: Vec<_> = outer.steps[3..]
            .iter()
            .map(|step| match step.work {
                Work::Wait { stream, number } => (step.stream, step.number, Some((stream, number))),
                _ => (step.stream, step.number, None),
            })
            .collect();
        assert_eq!(shown, [(2, 1, Some((1, 2))), (2, 2, None), (1, 3, None), (1, 4, Some((2, 2)))]);
        // The second time, it uses the same streams.
        append_plan(&mut outer, &inner, (1, 4), &mut sides);
        assert_eq!((outer.streams.len(), &sides[..]), (3, &[(2, 4)][..]));
        // Another priority gets streams of its own.
        let mut urgent = plan(2, &[(1, Some(0)), (1, None), (0, Some(1))]);
        urgent.streams[1].priority = Priority::High;
        append_plan(&mut outer, &urgent, (1, 6), &mut sides);
        let priorities: Vec<Priority> = outer.streams.iter().map(|stream| stream.priority).collect();
        let normal = Priority::Normal;
        assert_eq!(
            (&priorities[..], &sides[..]),
            (&[normal, normal, normal, Priority::High][..], &[(2, 4), (3, 2)][..])
        );
        let before = before(&outer);
        let order = outer.order(|free| free.len() - 1);
        assert_eq!(order.len(), 7);
        for (place, at) in order.iter().enumerate() {
            assert!(order[place + 1..].iter().all(|later| !before[*at].contains(later)));
        }
    }

    #[test]
    fn branches_come_in_either_order() {
        let draws = [(0, None), (1, Some(0)), (1, None), (0, None)];
        let plan = plan(2, &draws);
        assert_eq!(plan.order(|_| 0), [0, 3, 2]);
        assert_eq!(plan.order(|free| free.len() - 1), [0, 2, 3]);
    }
}
