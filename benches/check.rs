//! The host cost of an op (order check, ticket and `Pending`) over a driver that runs nothing.
//!
//! *Included*: shape rules, the lock of the stream, the locks of the ledgers, check and commit,
//! ticket, and making and dropping the `Pending`. *Subtracted*: the cost of handing the same launch
//! directly to the driver, which is building the call (`touch_three(..)`), packing it, and the
//! driver call. The driver call completes the ticket with one store and one fence. It is timed in
//! the same rounds. The table shows the cost of the whole launch next to the difference.

mod support;

use std::hint::black_box;
use std::sync::Arc;
use support::measure::difference;
use support::{
    ONE, Options, Table, TwoThreads, instructions, interleave, ns, null_driver, touch_none, touch_three,
};
use warpline::Ticket;
use warpline::backend::Site;
use warpline::backend::{Command, DriverStream, Launch, Submission};
use warpline::kernel::Args;
use warpline::prelude::*;

const STREAMS: usize = 8;
const RANGE: usize = 64;

/// A stream, and the operands of its op.
struct Op {
    stream: Stream,
    a: Buffer<f32>,
    b: Buffer<f32>,
    c: Buffer<f32>,
}

impl Op {
    #[inline]
    fn launch(&self) {
        self.stream.launch(touch_three(0.5, &self.a, &self.b, &self.c), ONE).detach();
    }
}

/// A stream of the driver, without a runtime.
struct Bare {
    stream: Arc<dyn DriverStream>,
    issued: Ticket,
}

impl Bare {
    #[inline]
    fn launch(&mut self, op: &Op) {
        let call = touch_three(0.5, &op.a, &op.b, &op.c);
        self.issued += 1;
        let launch = Launch {
            kernel: call.kernel(),
            config: black_box(ONE),
            args: Args::from_slice(call.args()),
            extras: None,
        };
        let (site, command) = (Site::here(&call.kernel().name), Command::Launch(launch));
        // SAFETY: `submit` needs addresses that are valid while the work runs, and this driver runs
        // nothing.
        let _ = unsafe {
            self.stream.submit(Submission { ticket: self.issued, site, command, claims: None, caller: None })
        };
    }
}

/// Makes streams that each own three buffers and use a range of each.
fn private(device: &Device) -> Vec<Op> {
    (0..STREAMS)
        .map(|_| {
            let stream = device.new_stream().expect("a stream");
            let part = |offset: usize| {
                let buffer = stream.alloc::<f32>(4 * RANGE).expect("null memory");
                buffer.slice(offset..offset + RANGE).expect("a part")
            };
            let (a, b, c) = (part(0), part(RANGE), part(2 * RANGE));
            Op { stream, a, b, c }
        })
        .collect()
}

/// Makes streams that read the same two weights and write to disjoint ranges of one buffer.
fn shared(device: &Device) -> Vec<Op> {
    let owner = device.new_stream().expect("a stream");
    let [a, b, c] = [(); 3].map(|()| owner.alloc::<f32>(STREAMS * RANGE).expect("null memory"));
    owner.fill(&a, 1.0).detach();
    owner.fill(&b, 2.0).detach();
    (0..STREAMS)
        .map(|at| {
            let stream = device.new_stream().expect("a stream");
            stream.wait_stream(&owner);
            let part = |buffer: &Buffer<f32>| buffer.slice(at * RANGE..(at + 1) * RANGE).expect("a part");
            let (a, b, c) = (a.slice(..RANGE).expect("a part"), b.slice(..).expect("all"), part(&c));
            Op { stream, a, b, c }
        })
        .collect()
}

/// Makes streams that read the same two weights and write to a buffer of their own.
fn weights(device: &Device) -> Vec<Op> {
    let owner = device.new_stream().expect("a stream");
    let [a, b] = [(); 2].map(|()| owner.alloc::<f32>(4 * RANGE).expect("null memory"));
    (0..STREAMS)
        .map(|_| {
            let stream = device.new_stream().expect("a stream");
            stream.wait_stream(&owner);
            let c = stream.alloc::<f32>(4 * RANGE).expect("null memory");
            let part = |buffer: &Buffer<f32>| buffer.slice(..RANGE).expect("a part");
            Op { stream, a: part(&a), b: part(&b), c: part(&c) }
        })
        .collect()
}

fn rounds_of(ops: &[Op], times: usize) {
    for _ in 0..times / ops.len() {
        for op in ops {
            op.launch();
        }
    }
}

fn main() {
    let options = Options::from_command_line();
    let (_runtime, device, _) = null_driver::runtime(false, true);
    let cases = [
        ("three private buffers", private(&device)),
        ("two shared weights, one private", weights(&device)),
        ("three shared buffers, ranges apart", shared(&device)),
    ];
    if let Some((name, times)) = &options.only {
        let times = *times as usize;
        match name.as_str() {
            "bare" => {
                let mut bare = Bare { stream: null_driver::stream(), issued: 0 };
                (0..times).for_each(|_| bare.launch(&cases[0].1[0]));
            }
            "none" => (0..times).for_each(|_| {
                cases[0].1[0].stream.launch(touch_none(black_box(0.5)), ONE).detach();
            }),
            at => rounds_of(&cases[at.parse::<usize>().expect("a case")].1, times),
        }
        return;
    }

    let table = Table::new("check: the host's side of an op, over a driver that runs nothing (ns)");
    let times = options.scaled(400_000);
    let mut bare = Bare { stream: null_driver::stream(), issued: 0 };
    let mut bare = |ops: &[Op]| {
        for _ in 0..times / ops.len() {
            for op in ops {
                bare.launch(op);
            }
        }
    };
    let none = |ops: &[Op]| {
        for _ in 0..times / ops.len() {
            for op in ops {
                op.stream.launch(touch_none(black_box(0.5)), ONE).detach();
            }
        }
    };
    let without = instructions::count("bare").map(|counted| counted.total);
    for (at, (name, ops)) in cases.iter().enumerate() {
        let [whole, part, empty] = interleave(
            options.rounds(31),
            [&mut || ns(times, || rounds_of(ops, times)), &mut || ns(times, || bare(ops)), &mut || {
                ns(times, || none(ops))
            }],
        );
        let alone = difference(&whole, &part);
        let counted =
            instructions::count(&at.to_string()).zip(without).map(|(counted, bare)| counted.total - bare);
        let what = format!("check and ticket, {STREAMS} streams, {name}");
        let met = (at < 2).then(|| alone.median() <= 80.0);
        table.row(&what, "ns", &alone, if at < 2 { "≤ 80" } else { "" }, None, met);
        table.report(&format!("{what}: the whole launch"), "ns", &whole);
        table.report(&format!("{what}: the launch handed directly to the driver"), "ns", &part);
        table.report(&format!("{what}: an op without operands"), "ns", &empty);
        if let Some(counted) = counted {
            table.report(&format!("check and ticket, {name}: instructions"), "", counted);
        }
    }
    for (name, ops, reach) in
        [("reading the same two weights", weights(&device), 1.5), ("private buffers", private(&device), 1.7)]
    {
        let rounds = options.rounds(9);
        let step = |op: &&Op| (0..1_000).for_each(|_| op.launch());
        TwoThreads::measure(rounds, 1_000, |thread| &ops[thread], step).print(
            &table,
            &format!("two threads on two streams, {name}"),
            reach,
        );
    }
}
