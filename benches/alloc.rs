//! The host cost of allocating and freeing 4 KiB that the cache serves, over a driver that counts
//! its calls.

mod support;

use std::sync::atomic::Ordering;
use support::{Figure, Options, Table, instructions, interleave, ns, null_driver};

fn main() {
    let options = Options::from_command_line();
    let (_runtime, device, calls) = null_driver::runtime(true, true);
    let stream = device.new_stream().expect("a stream");
    let pair = |times: usize| (0..times).for_each(|_| drop(stream.alloc::<u8>(4096).expect("null memory")));
    pair(1);
    if let Some((_, times)) = &options.only {
        return pair(*times as usize);
    }
    let table = Table::new("alloc: 4 KiB allocated and freed, cache hit (ns)");
    let times = options.scaled(400_000);
    let before = calls.others.load(Ordering::Relaxed) + calls.submits.load(Ordering::Relaxed);
    let mut system =
        || ns(times, || (0..times).for_each(|_| drop(std::hint::black_box(Vec::<u8>::with_capacity(4096)))));
    let [ours, malloc] = interleave(options.rounds(31), [&mut || ns(times, || pair(times)), &mut system]);
    let made = calls.others.load(Ordering::Relaxed) + calls.submits.load(Ordering::Relaxed) - before;
    let what = "alloc and free 4 KiB, cache hit";
    let rival = ("malloc and free", (&malloc).into());
    table.row(what, "ns", &ours, "≤ 60", Some(rival), Some(ours.median() <= 60.0));
    let what = "alloc and free 4 KiB, cache hit: driver calls";
    table.row(what, "", Figure::count(made), "0", None, Some(made == 0));
    if let Some(counted) = instructions::count("pair") {
        table.report("alloc and free 4 KiB, cache hit: instructions", "", counted.total);
    }
    let budget = device.blocking_budget(64 << 20).expect("null memory");
    let in_budget = |len: usize| drop(budget.enter(|| stream.alloc::<u8>(len)).expect("null memory"));
    let times = options.scaled(50_000);
    let [beside, short, long] = interleave(
        options.rounds(31),
        [
            &mut || ns(times, || pair(times)),
            &mut || ns(times, || (0..times).for_each(|_| in_budget(4096))),
            &mut || ns(times, || (0..times).for_each(|_| in_budget(4 << 20))),
        ],
    );
    table.report("the same while there is a budget", "ns", &beside);
    table.report("the same in the scope of a budget", "ns", &short);
    table.report("4 MiB in the scope of a budget", "ns", &long);
}
