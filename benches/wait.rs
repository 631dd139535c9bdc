//! The cost of `wait_stream` where the order is implied already: by an earlier call of the same
//! wait, and by an edge through a third stream. For comparison, the cost of a wait that is a driver
//! call.

mod support;

use std::sync::atomic::Ordering;
use support::{Figure, ONE, Options, Table, instructions, interleave, ns, null_driver, touch_none};

fn main() {
    let options = Options::from_command_line();
    // Nothing completes on this driver, so no wait is elided because its target has finished.
    let (_runtime, device, calls) = null_driver::runtime(true, false);
    let [a, b, c] = [(); 3].map(|()| device.new_stream().expect("a stream"));
    a.launch(touch_none(1.0), ONE).detach();
    b.wait_stream(&a);
    b.launch(touch_none(1.0), ONE).detach();
    c.wait_stream(&b);
    let again = |times: usize| (0..times).for_each(|_| drop(c.wait_stream(&b)));
    let through = |times: usize| (0..times).for_each(|_| drop(c.wait_stream(&a)));
    through(1);
    if let Some((_, times)) = &options.only {
        return again(*times as usize);
    }
    let table = Table::new("wait: `wait_stream` that is implied already (ns)");
    let times = options.scaled(400_000);
    let made = || calls.others.load(Ordering::Relaxed) + calls.submits.load(Ordering::Relaxed);
    let before = made();
    let [same, other] = interleave(
        options.rounds(31),
        [&mut || ns(times, || again(times)), &mut || ns(times, || through(times))],
    );
    let made = made() - before;
    for (name, sample) in [("asked for before", &same), ("implied by an edge through a third stream", &other)]
    {
        let met = Some(sample.median() <= 40.0);
        table.row(&format!("wait_stream, {name}"), "ns", sample, "≤ 40", None, met);
    }
    let what = "wait_stream, implied already: driver calls";
    table.row(what, "", Figure::count(made), "0", None, Some(made == 0));
    if let Some(counted) = instructions::count("again") {
        table.report("wait_stream, asked for before: instructions", "", counted.total);
    }
    let each = options.scaled(20_000);
    let [new] = interleave(
        options.rounds(9),
        [&mut || {
            ns(each, || {
                for _ in 0..each {
                    a.launch(touch_none(1.0), ONE).detach();
                    b.wait_stream(&a);
                }
            })
        }],
    );
    table.report("an op and a wait for it that is a driver call, together", "ns", &new);
}
