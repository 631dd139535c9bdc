//! Real threads, whose verdicts depend on their interleaving. Conflicting accesses that were
//! accepted have to be ordered.

use super::model::Graph;
use std::collections::HashMap;
use warpline::prelude::*;

/// Threads that state no order. Of two accesses to the same bytes from two streams, one of them a
/// write, at most one may be accepted.
#[test]
fn threads_without_edges_never_both_get_conflicting_accesses() {
    for round in 0..300_u64 {
        let (_runtime, device, []) = crate::support::streams([]);
        let owner = device.new_stream().unwrap();
        let buffers: Vec<Buffer<u8>> = (0..3).map(|_| owner.alloc(8).unwrap()).collect();
        owner.synchronize().blocking_wait().unwrap();
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
                            if stream.copy_buffer(&buffers[to], &buffers[from]).queued().is_ok() {
                                accepted.push((from, to));
                            }
                        }
                        // The stream stays open, because accesses of a closed stream conflict with
                        // nothing.
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

/// A step of one thread on its own stream.
enum Did {
    Op(Vec<(usize, bool)>),
    Recorded(usize),
    Waited(usize),
}

/// Threads that hand each other events. Of two conflicting accesses that were both accepted, one
/// has to be ordered before the other. Only program order counts, and the edges from a recorded
/// event to a wait for it.
#[test]
fn threads_that_pass_events_are_only_accepted_along_the_edges_they_stated() {
    use std::sync::Mutex;
    const THREADS: usize = 3;
    let (mut accepted, mut refused) = (0, 0);
    for round in 0..400_u64 {
        let (_runtime, device, []) = crate::support::streams([]);
        let owner = device.new_stream().unwrap();
        let buffers: Vec<Buffer<u8>> = (0..3).map(|_| owner.alloc(8).unwrap()).collect();
        owner.synchronize().blocking_wait().unwrap();
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
                                        stream.copy_buffer(&buffers[to], &buffers[from])
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

        // Each step is a point after the previous step of its thread. A wait is also after the
        // recording of its event.
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
            graph.add_edge(recorded[&event], point);
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
