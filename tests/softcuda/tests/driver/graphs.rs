//! Graphs: the effects of a launch and their order, and calls while a launch is in flight.

use crate::raw::*;
use crate::support::in_child;
use crate::twins::{ADD, ADD_PARAMS, add, register};
use cudarc::driver::sys::{self, CUstreamCaptureMode as Mode};
use std::ffi::c_void;
use std::sync::Mutex;

/// The arguments with which `log` was called.
static LOG: Mutex<Vec<usize>> = Mutex::new(Vec::new());

extern "C" fn log(data: *mut c_void) {
    LOG.lock().unwrap().push(data as usize);
}

/// Enqueues a host function that logs a number.
fn logged(stream: sys::CUstream, number: usize) {
    ok!(cuLaunchHostFunc(stream, Some(log), number as *mut c_void));
}

/// Waits for the stream, and returns the numbers that were logged since the last call.
fn log_of(stream: sys::CUstream) -> Vec<usize> {
    ok!(cuStreamSynchronize(stream));
    std::mem::take(&mut *LOG.lock().unwrap())
}

/// Makes `to` wait for all work on `from` so far.
fn wait(to: sys::CUstream, from: sys::CUstream) {
    let event = event();
    ok!(cuEventRecord(event, from));
    ok!(cuStreamWaitEvent(to, event, 0));
    ok!(cuEventDestroy_v2(event));
}

/// Returns the graph of the work that `body` enqueues on the stream.
fn captured(stream: sys::CUstream, body: impl FnOnce()) -> sys::CUgraph {
    ok!(cuStreamBeginCapture_v2(stream, Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    body();
    let mut graph = std::ptr::null_mut();
    ok!(cuStreamEndCapture(stream, &mut graph));
    graph
}

fn instantiated(graph: sys::CUgraph) -> sys::CUgraphExec {
    let mut exec = std::ptr::null_mut();
    ok!(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    exec
}

/// Returns the executable graph of the work that `body` enqueues on the stream.
pub(crate) fn executable(stream: sys::CUstream, body: impl FnOnce()) -> sys::CUgraphExec {
    let graph = captured(stream, body);
    let exec = instantiated(graph);
    ok!(cuGraphDestroy(graph));
    exec
}

fn node_count(graph: sys::CUgraph) -> usize {
    let mut count = 0;
    ok!(cuGraphGetNodes(graph, std::ptr::null_mut(), &mut count));
    count
}

/// Registers the twin of the kernel `add`, and returns the kernel.
pub(crate) fn add_kernel() -> sys::CUfunction {
    assert_eq!(register("add", &ADD_PARAMS, 0, add), 0);
    function(ADD, "add").unwrap()
}

/// A float in page-locked memory.
#[derive(Clone, Copy)]
struct Pinned(*mut f32);

impl Pinned {
    fn of(value: f32) -> Self {
        let it = Pinned(pinned(4).cast());
        it.set(value);
        it
    }

    fn set(self, value: f32) {
        // SAFETY: four bytes of page-locked memory, which no work uses now.
        unsafe { self.0.write_volatile(value) };
    }

    fn get(self) -> f32 {
        // SAFETY: four bytes of page-locked memory, which no work uses now.
        unsafe { self.0.read_volatile() }
    }
}

#[test]
fn each_launch_does_again_what_was_captured() {
    in_child(&[], || {
        start();
        let (kernel, stream, x) = (add_kernel(), stream(), alloc(4));
        let (input, output) = (Pinned::of(0.0), Pinned::of(-1.0));
        let exec = executable(stream, || {
            ok!(cuMemcpyHtoDAsync_v2(x, input.0.cast(), 4, stream));
            assert_eq!(launch_add(kernel, stream, x, 0.5, 1), 0);
            assert_eq!(launch_add(kernel, stream, x, 0.25, 1), 0);
            ok!(cuMemcpyDtoHAsync_v2(output.0.cast(), x, 4, stream));
        });
        ok!(cuStreamSynchronize(stream));
        assert_eq!(output.get(), -1.0, "nothing has run");
        ok!(cuGraphUpload(exec, stream));
        for round in 0..20 {
            input.set(round as f32);
            ok!(cuGraphLaunch(exec, stream));
            ok!(cuStreamSynchronize(stream));
            assert_eq!(output.get(), round as f32 + 0.75);
        }
        ok!(cuGraphExecDestroy(exec));
    });
}

#[test]
fn a_launch_is_one_piece_of_its_streams_work() {
    in_child(&[], || {
        start();
        let (main, side) = (stream(), stream());
        let exec = executable(main, || {
            logged(main, 1);
            wait(side, main);
            logged(side, 2);
            logged(main, 3);
            wait(main, side);
        });
        for _ in 0..10 {
            logged(main, 0);
            ok!(cuGraphLaunch(exec, main));
            logged(main, 4);
            let seen = log_of(main);
            assert_eq!((seen[0], seen[1], seen[4]), (0, 1, 4), "{seen:?}");
        }
    });
}

#[test]
fn arguments_are_those_of_the_capture() {
    in_child(&[], || {
        start();
        let (kernel, stream) = (add_kernel(), stream());
        let (mut x, mut a, mut n) = (upload(&[0.0]), 1f32, 1u32);
        let exec = executable(stream, || {
            let mut args = [(&raw mut x).cast(), (&raw mut a).cast(), (&raw mut n).cast()];
            assert_eq!(launch(kernel, stream, &mut args), 0);
        });
        let kept = x;
        (x, a, n) = std::hint::black_box((0, 7.0, 100));
        ok!(cuGraphLaunch(exec, stream));
        ok!(cuGraphLaunch(exec, stream));
        ok!(cuStreamSynchronize(stream));
        assert_eq!(floats::<1>(kept), [2.0]);
        assert_eq!((x, a, n), (0, 7.0, 100));
    });
}

#[test]
fn a_side_stream_is_forked_and_joined() {
    in_child(&[], || {
        start();
        let (kernel, main, side) = (add_kernel(), stream(), stream());
        let (x, y, sum) = (upload(&[0.0; 2]), upload(&[0.0; 2]), alloc(16));
        let exec = executable(main, || {
            assert_eq!(launch_add(kernel, main, x, 1.0, 2), 0);
            wait(side, main);
            // Neither side writes memory that the other uses, and each reads the result from before
            // the fork.
            ok!(cuMemcpyDtoDAsync_v2(y, x, 8, side));
            assert_eq!(launch_add(kernel, side, y, 10.0, 2), 0);
            ok!(cuMemcpyDtoDAsync_v2(sum, x, 8, main));
            wait(main, side);
            ok!(cuMemcpyDtoDAsync_v2(sum + 8, y, 8, main));
            ok!(cuMemsetD32Async(y, 0, 2, main));
        });
        for round in 1..=10 {
            ok!(cuGraphLaunch(exec, main));
            let value = round as f32;
            ok!(cuStreamSynchronize(main));
            assert_eq!(floats::<4>(sum), [value, value, value + 10.0, value + 10.0]);
            assert_eq!(floats::<2>(y), [0.0; 2]);
        }
    });
}

#[test]
fn branches_are_seen_in_both_orders_and_edges_hold() {
    in_child(&[], || {
        start();
        let (main, side) = (stream(), stream());
        let exec = executable(main, || {
            logged(main, 0);
            wait(side, main);
            for step in [1, 2, 3] {
                logged(main, step);
                logged(side, 10 * step);
            }
            wait(main, side);
            logged(main, 4);
        });
        let mut orders = Vec::new();
        for _ in 0..20 {
            ok!(cuGraphLaunch(exec, main));
            let order = log_of(main);
            let place = |number| order.iter().position(|logged| *logged == number).unwrap();
            for (before, after) in [(0, 1), (1, 2), (2, 3), (3, 4), (0, 10), (10, 20), (20, 30), (30, 4)] {
                assert!(place(before) < place(after), "{order:?}");
            }
            orders.push(order);
        }
        assert_eq!(orders[0], [0, 10, 20, 30, 1, 2, 3, 4], "the side stream goes first");
        assert_eq!(orders[1], [0, 1, 2, 3, 10, 20, 30, 4], "the side stream goes last");
        orders.sort();
        orders.dedup();
        assert!(orders.len() > 4, "further launches mix them: {orders:?}");
    });
}

#[test]
fn priorities_decide_where_the_graph_was_made_to_use_them() {
    in_child(&[], || {
        start();
        let main = stream();
        let sides = [0, -5, -1].map(|priority| {
            let mut side = std::ptr::null_mut();
            ok!(cuStreamCreateWithPriority(&mut side, 1, priority));
            side
        });
        let graph = captured(main, || {
            sides.iter().for_each(|side| wait(*side, main));
            sides.iter().enumerate().for_each(|(number, side)| logged(*side, number));
            sides.iter().for_each(|side| wait(main, *side));
        });
        for (flags, ordered) in [(0, false), (8, true)] {
            let mut exec = std::ptr::null_mut();
            ok!(cuGraphInstantiateWithFlags(&mut exec, graph, flags));
            let orders = (0..8).map(|_| {
                ok!(cuGraphLaunch(exec, main));
                log_of(main)
            });
            assert_eq!(orders.collect::<Vec<_>>().iter().all(|order| order == &[1, 2, 0]), ordered);
        }
    });
}

#[test]
fn a_seed_chooses_the_orders() {
    fn orders() -> Vec<Vec<usize>> {
        start();
        let (main, sides) = (stream(), [stream(), stream(), stream(), stream()]);
        let exec = executable(main, || {
            sides.iter().for_each(|side| wait(*side, main));
            sides.iter().enumerate().for_each(|(number, side)| logged(*side, number));
            sides.iter().for_each(|side| wait(main, *side));
        });
        let launched = (0..8).map(|_| {
            ok!(cuGraphLaunch(exec, main));
            log_of(main)
        });
        launched.collect()
    }
    let said = in_child(&[("SOFTCUDA_GRAPH_SEED", "3")], || {
        let first = orders();
        assert_eq!(first, orders(), "another graph of the same shape has the same ones");
        eprintln!("{first:?}");
    });
    assert!(said.contains("[3, 2, 1, 0], [0, 1, 2, 3]"), "{said}");
}

#[test]
fn a_missing_edge_shows() {
    in_child(&[], || {
        start();
        let (main, side, word) = (stream(), stream(), Word::new());
        let exec = executable(main, || {
            wait(side, main);
            word.written_by(main, 1);
            word.written_by(side, 2);
            wait(main, side);
        });
        let mut seen = [0; 2];
        for seen in &mut seen {
            ok!(cuGraphLaunch(exec, main));
            ok!(cuStreamSynchronize(main));
            *seen = word.load();
        }
        assert_eq!(seen, [1, 2]);
    });
}

#[test]
fn launches_of_one_executable_graph_take_turns_on_two_streams() {
    extern "C" fn note(data: *mut c_void) {
        log(Word::at(data).load() as usize as *mut c_void);
    }
    in_child(&[], || {
        start();
        let (first, second, third) = (stream(), stream(), stream());
        let (held, done) = (Word::new(), Word::new());
        let exec = executable(first, || ok!(cuLaunchHostFunc(first, Some(note), held.host())));
        ok!(cuStreamWaitValue64_v2(first, held.address(), 1, 0));
        ok!(cuGraphLaunch(exec, first));
        ok!(cuGraphLaunch(exec, second));
        ok!(cuGraphLaunch(exec, second));
        // Leaves time for the launches of the second stream to run wrongly.
        for round in 1..=100 {
            done.written_by(third, round);
            ok!(cuStreamSynchronize(third));
        }
        assert_eq!(cu!(cuStreamQuery(second)), NOT_READY);
        held.store(1);
        assert_eq!(log_of(second), [1, 1, 1], "each launch ran when the word was there");
        ok!(cuStreamQuery(first));
    });
}

#[test]
fn launches_from_many_threads_take_turns_too() {
    in_child(&[("SOFTCUDA_COPY_DELAY_US", "1")], || {
        const THREADS: usize = 4;
        const ROUNDS: usize = 200;
        let context = start() as usize;
        let (kernel, main, side) = (add_kernel(), stream(), stream());
        let (x, y) = (upload(&[0.0]), upload(&[0.0]));
        // Each launch reads the result of the one before, with other operations in between.
        let exec = executable(main, || {
            wait(side, main);
            assert_eq!(launch_add(kernel, side, x, 1.0, 1), 0);
            ok!(cuMemcpyDtoDAsync_v2(y, x, 4, side));
            ok!(cuMemsetD32Async(x, 0, 1, side));
            ok!(cuMemcpyDtoDAsync_v2(x, y, 4, side));
            wait(main, side);
        }) as usize;
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(move || {
                    ok!(cuCtxSetCurrent(context as sys::CUcontext));
                    let stream = stream();
                    for _ in 0..ROUNDS {
                        ok!(cuGraphLaunch(exec as sys::CUgraphExec, stream));
                    }
                    ok!(cuStreamSynchronize(stream));
                });
            }
        });
        assert_eq!(floats::<1>(x), [(THREADS * ROUNDS) as f32]);
    });
}

#[test]
fn two_executable_graphs_do_not_wait_for_each_other() {
    in_child(&[], || {
        start();
        let (kernel, first, second) = (add_kernel(), stream(), stream());
        let (x, y) = (upload(&[0.0]), upload(&[0.0]));
        let graph = captured(first, || assert_eq!(launch_add(kernel, first, x, 1.0, 1), 0));
        let (one, same) = (instantiated(graph), instantiated(graph));
        let other = executable(first, || assert_eq!(launch_add(kernel, first, y, 1.0, 1), 0));
        let gate = Gate::on(first);
        ok!(cuGraphLaunch(one, first));
        ok!(cuGraphLaunch(other, first));
        ok!(cuGraphLaunch(same, second));
        ok!(cuStreamSynchronize(second));
        assert_eq!(cu!(cuStreamQuery(first)), NOT_READY);
        gate.open();
        ok!(cuStreamSynchronize(first));
        assert_eq!((floats::<1>(x), floats::<1>(y)), ([2.0], [1.0]));
    });
}

#[test]
fn an_executable_graph_may_be_destroyed_in_flight() {
    let said = in_child(&[], || {
        start();
        let (kernel, stream, x) = (add_kernel(), stream(), upload(&[0.0]));
        let graph = captured(stream, || assert_eq!(launch_add(kernel, stream, x, 1.0, 1), 0));
        let exec = instantiated(graph);
        let gate = Gate::on(stream);
        ok!(cuGraphLaunch(exec, stream));
        ok!(cuGraphLaunch(exec, stream));
        ok!(cuGraphDestroy(graph));
        ok!(cuGraphExecDestroy(exec));
        assert_eq!(cu!(cuGraphLaunch(exec, stream)), INVALID_VALUE);
        assert_eq!(cu!(cuGraphUpload(exec, stream)), INVALID_VALUE);
        assert_eq!(cu!(cuGraphExecDestroy(exec)), INVALID_VALUE);
        gate.open();
        ok!(cuStreamSynchronize(stream));
        assert_eq!(floats::<1>(x), [2.0]);
    });
    assert!(said.contains("the executable graph is destroyed"), "{said}");
}

#[test]
fn pageable_memory_is_read_and_written_at_the_launch() {
    in_child(&[], || {
        start();
        let (stream, x) = (stream(), alloc(8));
        let (mut input, mut output) = (Box::new(1u64), Box::new(0u64));
        let (from, to) = (&raw mut *input, &raw mut *output);
        let exec = executable(stream, || {
            ok!(cuMemcpyHtoDAsync_v2(x, from.cast(), 8, stream));
            ok!(cuMemcpyDtoHAsync_v2(to.cast(), x, 8, stream));
        });
        for value in 2..5 {
            // SAFETY: no work uses the box now.
            unsafe { from.write_volatile(value) };
            ok!(cuGraphLaunch(exec, stream));
            ok!(cuStreamSynchronize(stream));
            // SAFETY: the launch has finished, so no work uses the box.
            assert_eq!(unsafe { to.read_volatile() }, value);
        }
    });
}

#[test]
fn rows_peers_and_fills_are_captured() {
    in_child(&[("SOFTCUDA_DEVICES", "2")], || {
        let there = start_on(1);
        let far = alloc(16);
        let here = start_on(0);
        let (stream, near, back) = (stream(), alloc(16), pinned(16).cast::<u32>());
        let exec = executable(stream, || {
            ok!(cuMemsetD8Async(near, 1, 16, stream));
            ok!(cuMemsetD2D32Async(near, 8, 7, 1, 2, stream));
            ok!(cuMemcpyPeerAsync(far, there, near, here, 16, stream));
            ok!(cuMemsetD16Async(near, 9, 8, stream));
            ok!(cuMemcpyPeerAsync(near + 8, here, far, there, 8, stream));
            ok!(cuMemcpyDtoHAsync_v2(back.cast(), near, 16, stream));
        });
        for _ in 0..3 {
            ok!(cuMemsetD8Async(near, 0, 16, stream));
            ok!(cuGraphLaunch(exec, stream));
            ok!(cuStreamSynchronize(stream));
            // SAFETY: 16 bytes of page-locked memory, which no work uses now.
            let seen = unsafe { back.cast::<[u32; 4]>().read_volatile() };
            assert_eq!(seen, [0x9_0009, 0x9_0009, 7, 0x101_0101]);
        }
    });
}

#[test]
fn who_waits_for_a_word_lets_other_branches_pass() {
    in_child(&[], || {
        start();
        let (main, side, word, after) = (stream(), stream(), Word::new(), Word::new());
        let exec = executable(main, || {
            wait(side, main);
            word.written_by(main, 5);
            ok!(cuStreamWaitValue64_v2(side, word.address(), 5, 1));
            after.written_by(side, 1);
            wait(main, side);
        });
        for _ in 0..5 {
            word.store(0);
            after.store(0);
            ok!(cuGraphLaunch(exec, main));
            ok!(cuStreamSynchronize(main));
            assert_eq!(after.load(), 1);
        }
        word.store(0);
        let held = Word::new();
        let gated = executable(main, || {
            ok!(cuStreamWaitValue64_v2(main, held.address(), 1, 0));
            after.written_by(main, 2);
        });
        ok!(cuGraphLaunch(gated, main));
        assert_eq!(cu!(cuStreamQuery(main)), NOT_READY);
        assert_eq!(after.load(), 1);
        held.store(1);
        ok!(cuStreamSynchronize(main));
        assert_eq!(after.load(), 2);
    });
}

#[test]
fn an_empty_graph_is_fine() {
    in_child(&[], || {
        start();
        let stream = stream();
        let graph = captured(stream, || ());
        assert_eq!(node_count(graph), 0);
        let exec = instantiated(graph);
        logged(stream, 1);
        ok!(cuGraphLaunch(exec, stream));
        ok!(cuGraphLaunch(exec, stream));
        logged(stream, 2);
        assert_eq!(log_of(stream), [1, 2]);
    });
}

#[test]
fn a_graph_is_held_back_by_the_null_stream() {
    in_child(&[], || {
        start();
        let (mut blocking, null, word) = (std::ptr::null_mut(), std::ptr::null_mut(), Word::new());
        ok!(cuStreamCreate(&mut blocking, 0));
        let exec = executable(blocking, || word.written_by(blocking, 1));
        let gate = Gate::on(null);
        ok!(cuGraphLaunch(exec, blocking));
        assert_eq!(cu!(cuStreamQuery(blocking)), NOT_READY);
        assert_eq!(word.load(), 0);
        gate.open();
        ok!(cuGraphLaunch(exec, null));
        ok!(cuStreamSynchronize(null));
        assert_eq!(word.load(), 1);
    });
}

#[test]
fn a_capture_tells_its_graph_and_what_comes_next_runs_after() {
    in_child(&[], || {
        start();
        let (main, side) = (stream(), stream());
        let info = |stream| {
            let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
            let (mut id, mut graph) = (0, std::ptr::null_mut());
            let (mut after, mut count) = (std::ptr::null(), 0);
            ok!(cuStreamGetCaptureInfo_v2(stream, &mut status, &mut id, &mut graph, &mut after, &mut count));
            let after: Vec<usize> = match count {
                0 => Vec::new(),
                // SAFETY: the driver returned `count` nodes, which are valid until the next call on
                // this stream.
                _ => unsafe { std::slice::from_raw_parts(after, count) }
                    .iter()
                    .map(|node| *node as usize)
                    .collect(),
            };
            (status as u32, id, graph, after)
        };
        assert_eq!(info(main), (0, 0, std::ptr::null_mut(), vec![]));
        let graph = captured(main, || {
            assert!(info(main).3.is_empty());
            logged(main, 1);
            wait(side, main);
            assert_eq!(info(main), info(side));
            logged(main, 2);
            logged(side, 3);
            let (first, second) = (info(main), info(side));
            assert_eq!((first.1, first.2, first.3.len()), (second.1, second.2, 1));
            assert_ne!(first.3, second.3);
            assert_eq!(cu!(cuGraphDestroy(first.2)), INVALID_VALUE, "it still grows");
            let mut early = std::ptr::null_mut();
            assert_eq!(cu!(cuGraphInstantiateWithFlags(&mut early, first.2, 0)), INVALID_VALUE);
            wait(main, side);
            assert_eq!(info(main).3, [first.3, second.3].concat());
        });
        let mut nodes = [std::ptr::null_mut(); 5];
        let mut count = 5;
        ok!(cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count));
        assert_eq!(count, 3);
        assert!(
            nodes[..3].iter().all(|node| !node.is_null()) && nodes[3..].iter().all(|node| node.is_null())
        );
    });
}

#[test]
fn where_nothing_runs_a_launch_stores_words_and_calls_the_host() {
    in_child(&[("SOFTCUDA_IMMEDIATE", "1")], || {
        start();
        let (kernel, main, side, word) = (add_kernel(), stream(), stream(), Word::new());
        let exec = executable(main, || {
            assert_eq!(launch_add(kernel, main, 0xdead, 1.0, 1), 0, "its twin will not run");
            wait(side, main);
            word.written_by(side, 1);
            logged(side, 1);
            wait(main, side);
        });
        assert_eq!(word.load(), 0);
        ok!(cuGraphLaunch(exec, main));
        assert_eq!(word.load(), 1);
        assert_eq!(log_of(main), [1]);
    });
}

#[test]
fn an_update_changes_what_the_next_launch_does() {
    in_child(&[], || {
        start();
        let (kernel, stream) = (add_kernel(), stream());
        let adding = |x: u64, a: f32| {
            captured(stream, || {
                assert_eq!(launch_add(kernel, stream, x, a, 1), 0);
                ok!(cuMemsetD32Async(x + 4, 0, 1, stream));
            })
        };
        let (x, y) = (upload(&[0.0, 7.0]), upload(&[0.0, 7.0]));
        let exec = instantiated(adding(x, 1.0));
        let update = |graph| {
            let none = std::ptr::null_mut();
            let mut info = sys::CUgraphExecUpdateResultInfo {
                result: sys::CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR,
                errorNode: none,
                errorFromNode: none,
            };
            (cu!(cuGraphExecUpdate_v2(exec, graph, &mut info)), info.result as u32)
        };
        let gate = Gate::on(stream);
        ok!(cuGraphLaunch(exec, stream));
        assert_eq!(update(adding(y, 5.0)), (0, 0));
        ok!(cuGraphLaunch(exec, stream));
        gate.open();
        ok!(cuStreamSynchronize(stream));
        assert_eq!((floats::<2>(x), floats::<2>(y)), ([1.0, 0.0], [5.0, 0.0]), "what is in flight stays");

        assert_eq!(update(captured(stream, || logged(stream, 1))), (910, 2), "other edges");
        let swapped = captured(stream, || {
            ok!(cuMemsetD32Async(x, 0, 1, stream));
            assert_eq!(launch_add(kernel, stream, x, 1.0, 1), 0);
        });
        assert_eq!(update(swapped), (910, 3), "other kinds of nodes");
        let host = pinned(4) as u64;
        let on_the_host = captured(stream, || {
            assert_eq!(launch_add(kernel, stream, x, 1.0, 1), 0);
            ok!(cuMemsetD32Async(host, 0, 1, stream));
        });
        assert_eq!(update(on_the_host), (910, 5), "a fill of other memory");
        ok!(cuGraphLaunch(exec, stream));
        ok!(cuStreamSynchronize(stream));
        assert_eq!(floats::<1>(y), [10.0], "refused updates change nothing");
    });
}
