//! The cost of tracing per op without a subscriber: the instructions, counted by callgrind, in the
//! lines that check for a subscriber.

mod support;

use std::hint::black_box;
use support::{ONE, Options, Table, drain, instructions, null_driver, touch_three};

fn main() {
    let options = Options::from_command_line();
    if let Some((name, times)) = &options.only {
        let times = *times as usize;
        let (_runtime, device) = match name.as_str() {
            "host" => {
                let (runtime, device, _) = null_driver::runtime(false, true);
                (runtime, device)
            }
            _ => support::cpu(),
        };
        let stream = device.new_stream().expect("a stream");
        let [a, b, c] = [(); 3].map(|()| stream.alloc::<f32>(64).expect("memory"));
        for _ in 0..times {
            stream.launch(touch_three(black_box(0.5), &a, &b, &c), ONE).detach();
        }
        drain(&stream);
        return;
    }
    let table = Table::new("trace_cost: tracing with nobody listening (instructions an op)");
    let own = ["trace/event.rs", "tracing_core", "tracing-core", "tracing-0"];
    let Some(host) = instructions::count("host") else {
        return table.note("trace_cost: not measured, because callgrind is not installed");
    };
    let cost = host.within(&own);
    let what = "tracing without a subscriber, at the enqueue";
    let rival = ("the whole op on the host", host.total.into());
    table.row(what, "instructions", cost, "one load, one branch", Some(rival), Some(cost <= 6.0));
    if let Some(both) = instructions::count("both") {
        let what = "tracing without a subscriber, at enqueue, start and end";
        table.report(what, "instructions", both.within(&own));
    }
}
