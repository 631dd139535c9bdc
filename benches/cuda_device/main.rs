//! Measurements that need a GPU: the latency and CPU time of wake-ups, the answers of a batcher,
//! the cost of markers, the effects of faults, the throughput of copies, and the quality of the
//! kernels. Most figures stand next to those of direct driver calls, cudarc or direct cuBLAS
//! calls, in the same rounds.
//!
//! `cuda_device [--quick] [PART …]` runs the given parts, or all of them. It asserts nothing about
//! figures. Without an NVIDIA driver it runs on the software one, which only shows that the bench
//! runs: its figures mean nothing.

#[path = "../support/mod.rs"]
mod support;

mod batcher;
mod context;
mod copies;
mod digits;
mod exits;
mod faults;
mod graph;
mod kernels;
mod latency;
mod markers;
mod matmul;
mod pageable;
mod peers;
mod stale;
mod tasks;
mod timed;

use support::by_hand::Raw;
use support::software::{self, Counts, argument};
use support::{Options, Table};
use warpline::WakeUp;
use warpline::prelude::*;

/// The shared state of all parts.
struct Bench {
    options: Options,
    table: Table,
    /// True if the driver is a real one. Targets mean nothing on the software driver.
    on_gpu: bool,
}

impl Bench {
    /// Returns whether a target is met, or `None` on the software driver.
    fn verdict(&self, met: bool) -> Option<bool> {
        self.on_gpu.then_some(met)
    }
}

/// Returns a new runtime, its device, and the same context for direct driver calls.
fn open(wake_up: WakeUp) -> (Runtime, Device, Raw) {
    open_with(Runtime::builder().wake_up(wake_up))
}

fn open_with(builder: warpline::RuntimeBuilder) -> (Runtime, Device, Raw) {
    let runtime = builder.build().expect("a runtime");
    let device = runtime.device(DeviceId::Cuda(0)).expect("a CUDA device");
    // A call leaves the context of its device current on a thread that had none.
    device.new_stream().expect("a stream").synchronize().blocking_wait().expect("it lives");
    (runtime, device, Raw::of_this_thread())
}

/// Returns whether cuBLAS runs the products of this process. The caller has enqueued one.
fn by_cublas() -> bool {
    warpline::kernels::libraries::products().by_cublas > 0
}

fn products_by() -> &'static str {
    if by_cublas() { "cuBLAS" } else { "our kernel" }
}

const WAKE_UPS: [(WakeUp, &str); 2] = [(WakeUp::LowLatency, "low latency"), (WakeUp::Balanced, "balanced")];

type Part = (&'static str, fn(&Bench));

const PARTS: [Part; 20] = [
    ("await", latency::launch_and_await),
    ("wake", latency::kernel_end_to_wake),
    ("long", latency::a_long_kernel),
    ("tasks", tasks::a_thousand),
    ("batcher", batcher::against_cudarc),
    ("enqueue", markers::enqueue),
    ("gap", markers::gap),
    ("bandwidth", copies::bandwidth),
    ("pageable", pageable::both_ways),
    ("peers", peers::copies),
    ("pipeline", copies::pipeline),
    ("alloc", copies::alloc),
    ("kernels", kernels::against_a_copy),
    ("matmul", matmul::against_cublas),
    ("graph", graph::against_launches),
    ("digits", digits::training),
    ("context", context::set_and_restored),
    ("stale", stale::words_behind_copies),
    ("exits", exits::with_a_live_reactor),
    ("faults", faults::all),
];

fn main() {
    // SAFETY: this loads and unloads libraries by the names of the driver library, and trusts one
    // of these names to be the driver.
    let present = unsafe { cudarc::driver::sys::is_culib_present() };
    if !present || argument("--device").as_deref() == Some("software") {
        software::find_it(&[("SOFTCUDA_DEVICES", "2")]);
    }
    if let Some(case) = argument("--fault") {
        return faults::child(&case);
    }
    if let Some(way) = argument("--exit") {
        return exits::child(&way);
    }
    let options = Options::from_command_line();
    let asked: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let asked = |name: &str| asked.iter().any(|arg| arg == name);
    let some = PARTS.iter().any(|(name, _)| asked(name));
    let (_runtime, device, _) = open(WakeUp::Balanced);
    let on_gpu = !Counts::new().are_kept();
    let properties = device.properties();
    let words = if properties.completion_words { "completion words" } else { "no completion words" };
    let table = Table::new(&format!("cuda_device: {}, {words}", properties.name));
    let bench = Bench { options, table, on_gpu };
    if !on_gpu {
        bench.table.note("on the software CUDA driver: these figures say only that the bench runs");
    }
    for (name, run) in PARTS {
        if !some || asked(name) {
            run(&bench);
        }
    }
}
