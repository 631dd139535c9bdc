//! The sustained cost of an op from enqueue to completion, on one stream of the CPU device,
//! compared with a bare channel to one worker.
//!
//! Warpline's op is a launch with three buffers and a scalar, in `deny` mode, with tracing compiled
//! in and no subscriber. Each `Pending` is detached. The rival sends a boxed closure with the same
//! captures through an unbounded crossbeam channel to one thread. Both submit a batch and wait
//! until it has finished. A batch is long, so the figure is that of a busy stream.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use support::{ONE, Options, Table, drain, interleave, ns, touch_three};

fn main() {
    let options = Options::from_command_line();
    let (_runtime, device) = support::cpu();
    let stream = device.new_stream().expect("a stream");
    let [a, b, c] = [(); 3].map(|()| stream.alloc::<f32>(64).expect("256 bytes"));
    let ours = |ops: usize| {
        for _ in 0..ops {
            stream.launch(touch_three(0.5, &a, &b, &c), ONE).detach();
        }
        drain(&stream);
    };
    if let Some((_, times)) = &options.only {
        return ours(*times as usize);
    }

    let (send, receive) = crossbeam_channel::unbounded::<Box<dyn FnOnce() + Send>>();
    let worker = std::thread::spawn(move || {
        for work in receive {
            work();
        }
    });
    let done: &'static AtomicU64 = Box::leak(Box::default());
    let (x, y): (&'static f32, &'static f32) = (Box::leak(Box::new(1.0)), Box::leak(Box::new(2.0)));
    let z: &'static AtomicU64 = Box::leak(Box::default());
    let mut sent = 0;
    let mut rival = |ops: usize| {
        for _ in 0..ops {
            let k = 0.5f32;
            sent += 1;
            let ticket = sent;
            let work = move || {
                z.store(u64::from((x + k * y).to_bits()), Ordering::Relaxed);
                done.store(ticket, Ordering::Release);
            };
            send.send(Box::new(work)).expect("the worker is there");
        }
        while done.load(Ordering::Acquire) < sent {
            std::hint::spin_loop();
        }
    };

    let table =
        Table::new("enqueue: one op with three buffers and a scalar, enqueue to done, sustained (ns)");
    for (name, ops) in [("batches of 100 000", 100_000), ("batches of 1 000", 1_000)] {
        let repeat = if ops > 10_000 { 1 } else { 40 };
        let ops = if options.quick { ops / 10 } else { ops };
        let [ours, rival] = interleave(
            options.rounds(31),
            [&mut || ns(ops * repeat, || (0..repeat).for_each(|_| ours(ops))), &mut || {
                ns(ops * repeat, || (0..repeat).for_each(|_| rival(ops)))
            }],
        );
        table.compare(
            &format!("enqueue to done, {name}"),
            "ns an op",
            &ours,
            ("crossbeam channel of boxed closures", &rival),
            "ratio ≤ 2",
            |ratio| Some(ratio <= 2.0),
        );
    }
    drop(send);
    worker.join().expect("the worker ends");
    if let Some(counted) = support::instructions::count("enqueue") {
        let what = "enqueue to done, on both threads, waiting included";
        table.report(what, "instructions", counted.total);
    }
}
