//! Small kernels, launched one by one and as a graph.

use crate::support::gpu_kernels::add_one;
use crate::support::process::Usage;
use crate::support::software::Counts;
use crate::support::{Figure, Sample, interleave, ns};
use crate::{Bench, WAKE_UPS, open};
use futures::executor::block_on;
use std::cell::RefCell;
use warpline::Result;
use warpline::prelude::*;

const KERNELS: usize = 20;
const RIVAL: &str = "one by one";
/// The number of elements of each kernel.
const LEN: usize = 1024;

/// Measures 20 small kernels and the wake-up after them: 20 launches against one launch of a graph.
pub(crate) fn against_launches(bench: &Bench) {
    let times = bench.options.scaled(500);
    for (wake_up, name) in WAKE_UPS {
        let (_runtime, device, _) = open(wake_up);
        let stream = device.new_stream().expect("a stream");
        let x = stream.alloc::<f32>(LEN).expect("memory");
        stream.fill(&x, 0.0).blocking_wait().expect("it runs");
        let launches = |stream: &Stream| -> Result<Pending<()>> {
            let launch = || stream.launch(add_one(LEN as u64, 1, &x), LaunchConfig::for_elements(LEN as u64));
            (1..KERNELS).try_for_each(|_| launch().queued())?;
            Ok(launch())
        };
        let (graph, ()) = stream.capture(|s| launches(s)?.queued()).expect("it is captured");
        let one_by_one = || block_on(launches(&stream).expect("it is taken")).expect("it runs");
        let as_graph = || block_on(graph.launch(&stream)).expect("it runs");
        let cpu = RefCell::new([Sample::default(), Sample::default()]);
        let timed = |at: usize, work: &dyn Fn()| {
            let before = Usage::now();
            let took = ns(times, || (0..times).for_each(|_| work()));
            cpu.borrow_mut()[at].0.push(Usage::now().since(&before).cpu.as_nanos() as f64 / times as f64);
            took / 1e3
        };
        let [graphs, eager] = interleave(
            bench.options.rounds(11),
            [&mut || timed(0, &as_graph), &mut || timed(1, &one_by_one)],
        );
        let what = format!("{KERNELS} small kernels as a graph, awaited, {name}");
        row(bench, &what, &graphs, &eager);
        let [graphs, eager] = cpu.into_inner().map(|cpu| Sample(cpu.0.iter().map(|ns| ns / 1e3).collect()));
        row(bench, &format!("{what}: CPU time"), &graphs, &eager);

        let counts = Counts::new();
        if counts.are_kept() {
            let markers = |work: &dyn Fn()| counts.during([c"cuStreamWriteValue64_v2"], work)[0];
            let [graphs, eager] = [&as_graph as &dyn Fn(), &one_by_one].map(|w| Figure::count(markers(w)));
            bench.table.row(&format!("{what}: markers"), "", graphs, "", Some((RIVAL, eager)), None);
        }
    }
}

fn row(bench: &Bench, what: &str, graphs: &Sample, eager: &Sample) {
    let met = |ratio| bench.verdict(ratio <= 0.5);
    bench.table.compare(what, "µs", graphs, (RIVAL, eager), "ratio ≤ 0.5", met);
}
