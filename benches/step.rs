//! Training steps per second of a small multi-layer perceptron on one stream of the CPU device, op
//! by op and by a graph.
//!
//! The model and its batches, which are in device memory from the start, are those of
//! `support/perceptron.rs`. The host enqueues ahead and waits for the loss of every hundredth step.
//! A second row waits for the loss of every step, as a synchronous program would.
//! `benches/versus_pytorch` runs the same steps in PyTorch.

mod support;

use support::perceptron::Perceptron;
use support::{Options, Table, instructions, interleave};
use warpline::Result;
use warpline::prelude::*;

/// Returns the arguments of `--steps STEPS LOOK`, with which `benches/versus_pytorch` asks for one
/// rate.
fn one_run() -> Option<(usize, usize)> {
    let mut args = std::env::args().skip_while(|arg| arg != "--steps").skip(1);
    let mut number = || args.next().map(|text| text.parse().expect("--steps STEPS LOOK"));
    Some((number()?, number()?))
}

/// Runs the loop for callgrind on a seeded runtime. It has no threads, so none busy-waits and the
/// instructions of host and device both count.
fn counted(name: &str, steps: usize) -> Result<()> {
    let runtime = Runtime::builder().schedule(Schedule::Seeded(1)).build()?;
    let device = runtime.device(DeviceId::Cpu(0))?;
    let stream = device.new_stream()?;
    Perceptron::new(&stream, name == "graph")?.train(steps, 100)?;
    stream.synchronize().blocking_wait()
}

fn main() -> Result<()> {
    let options = Options::from_command_line();
    if let Some((name, times)) = &options.only {
        return counted(name, *times as usize);
    }
    let (_runtime, device) = support::cpu();
    let stream = device.new_stream()?;
    let op_by_op = Perceptron::new(&stream, false)?;
    if let Some((steps, look)) = one_run() {
        let rate = op_by_op.rate(steps, look).and_then(|_| op_by_op.rate(steps, look))?;
        println!("{rate}");
        return Ok(());
    }
    let by_graph = Perceptron::new(&stream, true)?;
    let table = Table::new("step: a 64-128-10 perceptron, batches of 32 (steps a second)");
    let steps = options.scaled(10_000) / 100 * 100;
    for (name, look) in [("loss read every 100", 100), ("loss read every step", 1)] {
        let rate = |model: &Perceptron| model.rate(steps, look).expect("it runs");
        let [rates, graphs] =
            interleave(options.rounds(9), [&mut || rate(&op_by_op), &mut || rate(&by_graph)]);
        let what = format!("training steps by a graph, {name}");
        table.compare(&what, "steps/s", &graphs, ("op by op", &rates), "", |_| None);
    }
    for (name, how) in [("step", "op by op"), ("graph", "by a graph")] {
        if let Some(counted) = instructions::count_between(name, 100, 400) {
            let what = format!("a training step {how}: instructions of both sides");
            table.report(&what, "", counted.total);
        }
    }
    Ok(())
}
