//! Several `Pending`s joined into one, and views of a joined one.

use crate::support::{block_on, refusal, says, streams};
use tokio_test::{assert_pending, assert_ready_ok, task};
use warpline::prelude::*;

#[test]
fn a_join_resolves_when_its_last_part_has_finished() {
    let (_runtime, device, [a, b]) = streams(["a", "b"]);
    let x = device.alloc_zeroed::<f32>(4).unwrap();
    let y = device.alloc_zeroed::<f32>(4).unwrap();
    block_on(device.synchronize()).unwrap();
    let gates = [a.hold().unwrap(), b.hold().unwrap()];
    let parts = [a.fill(&x, 1.0), b.fill(&y, 2.0)];
    let mut joined = task::spawn(Pending::join_all(parts));
    assert_pending!(joined.poll());
    for (gate, stream) in gates.into_iter().zip([&a, &b]) {
        assert_pending!(joined.poll());
        gate.open();
        block_on(stream.synchronize().unobserved()).unwrap();
    }
    assert_ready_ok!(joined.poll());
    // Both are observed, so a third stream needs no edge.
    let read = [&x, &y].map(|buffer| block_on(device.new_stream().unwrap().read(buffer)).unwrap()[0]);
    assert_eq!(read, [1.0, 2.0]);
    assert!(block_on(Pending::join_all::<()>([])).is_ok(), "nothing to wait for");
}

#[test]
fn a_join_with_a_refused_part_is_refused_and_the_other_parts_run() {
    let (_runtime, device, [a, b]) = streams(["a", "b"]);
    let (x, y) = (a.alloc::<f32>(4).unwrap(), a.alloc::<f32>(4).unwrap());
    a.fill(&x, 1.0).queued().unwrap();
    let joined = Pending::join_all([a.fill(&y, 2.0), b.fill(&x, 3.0)]);
    let error = joined.queued().unwrap_err();
    says(&error, ErrorKind::Unordered, &["fill on stream \"b\""]);
    assert_eq!(block_on(a.read(&y)).unwrap(), [2.0; 4]);
    [&x, &y].into_iter().for_each(|buffer| a.fill(buffer, 4.0).queued().unwrap());
    // Of two refused parts, the join returns the first error, and the other is reported.
    let error = refusal(Pending::join_all([b.fill(&x, 3.0), b.fill(&y, 3.0)]));
    assert_eq!(error.kind(), ErrorKind::Unordered);
    assert!(block_on(b.synchronize()).is_err(), "the second error");
    assert!(block_on(device.synchronize()).is_ok());
}

#[test]
fn a_join_keeps_what_its_parts_check_and_drops_their_values() {
    let (_runtime, _device, [a]) = streams(["a"]);
    let error = refusal(Pending::join_all([a.call(|| panic!("on purpose"))]));
    says(&error, ErrorKind::Panicked, &["on purpose"]);
}

#[test]
fn a_view_of_a_joined_tensor_waits_for_all_of_its_parts() {
    let (_runtime, device, [a]) = streams(["a"]);
    let x = a.enter(|| Tensor::zeros([2, 3], &device)).queued().unwrap();
    let gate = a.hold().unwrap();
    let halves = a.enter(|| [0, 1].map(|row| x.narrow(0, row, 1).fill_(row as f32 + 1.0)));
    let whole = Pending::join_all(halves).with(x);
    let mut flat = task::spawn((&whole).reshape([6]));
    assert_pending!(flat.poll());
    gate.open();
    block_on(a.synchronize().unobserved()).unwrap();
    let flat = assert_ready_ok!(flat.poll());
    assert_eq!(block_on(flat.to_vec::<f32>()).unwrap(), [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
    assert!(block_on(whole).is_ok());
}

#[test]
fn in_a_capture_a_join_cannot_be_awaited() {
    let (_runtime, _device, [a]) = streams(["a"]);
    let x = a.alloc_zeroed::<f32>(4).unwrap();
    let (_graph, ()) = a
        .capture(|stream| {
            let error = refusal(Pending::join_all([stream.fill(&x, 1.0), stream.fill(&x, 2.0)]));
            assert_eq!(error.kind(), ErrorKind::Captured);
            Pending::join_all([stream.fill(&x, 1.0)])
        })
        .unwrap();
}
