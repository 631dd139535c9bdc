//! Training steps of a small network a second: op by op, and by a graph.

use crate::support::interleave;
use crate::support::measure::{ratio, short};
use crate::support::perceptron::Perceptron;
use crate::{Bench, open, products_by};
use warpline::WakeUp;

/// The model of `examples/digits` on batches that are in the device's memory; `benches/pytorch_step.py --cuda` does the same.
pub(crate) fn training(bench: &Bench) {
    let (_runtime, device, _) = open(WakeUp::Balanced);
    let stream = device.new_stream().expect("a stream");
    let [op_by_op, by_graph] = [false, true].map(|graph| Perceptron::new(&stream, graph).expect("memory"));
    let steps = bench.options.scaled(5_000) / 100 * 100;
    for (look, often) in [(100, "every 100"), (1, "every step")] {
        let rate = |model: &Perceptron| model.rate(steps, look).expect("it runs");
        let [graphs, eager] =
            interleave(bench.options.rounds(9), [&mut || rate(&by_graph), &mut || rate(&op_by_op)]);
        let against = ratio(&graphs, &eager);
        bench.table.row(
            &format!(
                "training steps a second by a graph, 64-128-10, batch 32, products by {}, loss read {often}",
                products_by()
            ),
            &short(graphs.median()),
            &format!("{} op by op", short(eager.median())),
            &short(against.median()),
            &against.spread(),
            "",
            None,
        );
    }
}
