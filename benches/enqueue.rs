//! What an op costs from enqueue to done, sustained on one stream of the CPU device, against a bare channel to one worker.
//!
//! Ours: a launch with three buffers and a scalar, `deny`, tracing compiled in and listened to by nobody; most `Pending`s
//! are dropped. The rival: a boxed closure with the same captures through an unbounded crossbeam channel to one thread. Both
//! submit a batch and wait for its end; a batch is long, so the figure is that of a busy stream.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use support::{ONE, Options, Table, drain, interleave, measure::short, ns, ratio, touch_three};

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
        let ratio = ratio(&ours, &rival);
        let met = ratio.median() <= 2.0;
        table.row(
            &format!("enqueue to done, {name}, ns an op"),
            &short(ours.median()),
            &format!("{} crossbeam channel of boxed closures", short(rival.median())),
            &short(ratio.median()),
            &ratio.spread(),
            "ratio ≤ 2",
            Some(met),
        );
    }
    drop(send);
    worker.join().expect("the worker ends");
    if let Some(counted) = support::instructions::count("enqueue") {
        table.note("enqueue to done, instructions on both threads (waiting included)", &short(counted.total));
    }
}
