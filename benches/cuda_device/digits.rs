//! Training steps per second of a small network, op by op and by a graph.

use crate::support::interleave;
use crate::support::perceptron::Perceptron;
use crate::{Bench, open, products_by};
use warpline::WakeUp;

/// Measures the model of `examples/digits` on batches in device memory. `benches/pytorch_step.py
/// --cuda` does the same in PyTorch.
pub(crate) fn training(bench: &Bench) {
    let (_runtime, device, _) = open(WakeUp::Balanced);
    let stream = device.new_stream().expect("a stream");
    let [op_by_op, by_graph] = [false, true].map(|graph| Perceptron::new(&stream, graph).expect("memory"));
    let steps = bench.options.scaled(5_000) / 100 * 100;
    for (look, often) in [(100, "every 100"), (1, "every step")] {
        let rate = |model: &Perceptron| model.rate(steps, look).expect("it runs");
        let [graphs, eager] =
            interleave(bench.options.rounds(9), [&mut || rate(&by_graph), &mut || rate(&op_by_op)]);
        bench.table.compare(
            &format!(
                "training steps by a graph, 64-128-10, batch 32, products by {}, loss read {often}",
                products_by()
            ),
            "steps/s",
            &graphs,
            ("op by op", &eager),
            "",
            |_| None,
        );
    }
}
