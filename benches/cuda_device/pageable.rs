//! Copies between the device and pageable memory. Warpline stages them, and so does the driver.

use crate::support::{interleave, ns};
use crate::{Bench, open};
use warpline::WakeUp;

/// Measures copies of a slice to the device and back to a `Vec`, each awaited, against driver calls
/// on the same kind of memory.
pub(crate) fn both_ways(bench: &Bench) {
    let (_runtime, device, raw) = open(WakeUp::Balanced);
    let stream = device.new_stream().expect("a stream");
    for mib in if bench.options.quick { [1, 4] } else { [1, 64] } {
        let len_bytes = mib << 20;
        let times = if mib < 8 { bench.options.scaled(200) } else { bench.options.scaled(20) };
        let buffer = stream.alloc::<u8>(len_bytes).expect("memory");
        stream.fill(&buffer, 1).blocking_wait().expect("it runs");
        let (theirs, memory) = (raw.stream(), raw.memory(len_bytes));
        let (host, mut back) = (vec![1u8; len_bytes], vec![0u8; len_bytes]);
        let gigabytes = |ns: f64| len_bytes as f64 / ns;
        let repeat = |copy: &mut dyn FnMut()| gigabytes(ns(times, || (0..times).for_each(|_| copy())));
        let [to_device, to_device_by_hand, to_host, to_host_by_hand] = interleave(
            bench.options.rounds(11),
            [
                &mut || repeat(&mut || stream.write(&buffer, &host).blocking_wait().expect("it runs")),
                &mut || {
                    repeat(&mut || {
                        // SAFETY: both are live until the stream has been synchronized, and nothing
                        // else uses them.
                        unsafe { theirs.copy_in(memory, &host) };
                        theirs.synchronize();
                    })
                },
                &mut || {
                    repeat(&mut || {
                        std::hint::black_box(stream.read(&buffer).blocking_wait().expect("it runs"));
                    })
                },
                &mut || repeat(&mut || theirs.copy_out(&mut back, memory)),
            ],
        );
        for (way, ours, by_hand) in [
            ("slice to device", to_device, to_device_by_hand),
            ("device to a new Vec", to_host, to_host_by_hand),
        ] {
            bench.table.compare(
                &format!("{way}, pageable, {mib} MiB, awaited each"),
                "GB/s",
                &ours,
                ("by the driver's calls", &by_hand),
                "",
                |_| None,
            );
        }
    }
}
