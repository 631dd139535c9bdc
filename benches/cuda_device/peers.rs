//! Copies between two GPUs.

use crate::support::{interleave, ns};
use crate::{Bench, open};
use warpline::WakeUp;
use warpline::prelude::*;

/// Measures copies from the first GPU to the second, each awaited, against the driver call and
/// `cuStreamSynchronize`.
pub(crate) fn copies(bench: &Bench) {
    let (runtime, device, raw) = open(WakeUp::Balanced);
    let Ok(other) = runtime.device(DeviceId::Cuda(1)) else {
        return bench.table.note("copies between two GPUs: not measured, because there is one GPU");
    };
    let (stream, there) = (device.new_stream().expect("a stream"), other.new_stream().expect("a stream"));
    let their_raw = raw.of_device(1);
    for mib in if bench.options.quick { [1, 4] } else { [1, 64] } {
        let len_bytes = mib << 20;
        let times = if mib < 8 { bench.options.scaled(200) } else { bench.options.scaled(20) };
        let source = stream.alloc::<u8>(len_bytes).expect("memory");
        let destination = there.alloc::<u8>(len_bytes).expect("memory");
        drop(stream.fill(&source, 1));
        stream.wait_stream(&there);
        // The first copy enables peer access, if the devices support it.
        stream.copy_buffer_peer(&destination, &source).blocking_wait().expect("it runs");
        let (theirs, from, to) = (raw.stream(), raw.memory(len_bytes), their_raw.memory_there(len_bytes));
        let gigabytes = |ns: f64| len_bytes as f64 / ns;
        let [ours, by_hand] = interleave(
            bench.options.rounds(11),
            [
                &mut || {
                    gigabytes(ns(times, || {
                        for _ in 0..times {
                            stream.copy_buffer_peer(&destination, &source).blocking_wait().expect("it runs");
                        }
                    }))
                },
                &mut || {
                    gigabytes(ns(times, || {
                        for _ in 0..times {
                            theirs.copy_across((to, their_raw), (from, raw), len_bytes);
                            theirs.synchronize();
                        }
                    }))
                },
            ],
        );
        bench.table.compare(
            &format!("the first GPU to the second, {mib} MiB, awaited each"),
            "GB/s",
            &ours,
            ("by the driver's calls", &by_hand),
            "",
            |_| None,
        );
    }
}
