//! The cost of making a context current for a call and of restoring the previous one: two driver
//! calls per op.

use crate::support::by_hand::Raw;
use crate::support::gpu_kernels::{NOTHING, nothing};
use crate::support::{ONE, Sample, ns};
use crate::{Bench, open};
use warpline::WakeUp;

/// The number of calls between two synchronizations, so that no queue fills.
const AT_A_TIME: usize = 256;

/// Measures reading the current context, and setting and restoring it, alone and around a launch.
pub(crate) fn set_and_restored(bench: &Bench) {
    let (_runtime, device, raw) = open(WakeUp::Balanced);
    // Makes the kernel known to the software driver.
    device.new_stream().expect("a stream").launch(nothing(), ONE).blocking_wait().expect("it runs");
    let (stream, kernel) = (raw.stream(), raw.kernel(NOTHING, "nothing"));
    let times = bench.options.scaled(20_480).next_multiple_of(AT_A_TIME);
    let launch = || stream.launch(kernel, &mut []);
    let around = |work: &dyn Fn()| {
        raw.bind();
        work();
        Raw::none();
    };
    let each: [(&str, bool, &dyn Fn()); 5] = [
        ("cuCtxGetCurrent", true, &|| _ = Raw::current()),
        ("cuCtxSetCurrent to the one that is current", true, &|| raw.bind()),
        ("the context set and null put back", false, &|| around(&|| ())),
        ("a launch, asking what is current", true, &|| {
            let _ = Raw::current();
            launch();
        }),
        ("a launch, the context set and null put back", false, &|| {
            let _ = Raw::current();
            around(&launch);
        }),
    ];
    let mut samples = each.map(|_| Sample::default());
    for _ in 0..bench.options.rounds(15) {
        for (sample, (_, current, work)) in samples.iter_mut().zip(each) {
            let mut total = 0.0;
            for _ in 0..times / AT_A_TIME {
                if current {
                    raw.bind()
                } else {
                    Raw::none()
                }
                total += ns(times, || (0..AT_A_TIME).for_each(|_| work()));
                raw.bind();
                stream.synchronize();
            }
            sample.0.push(total);
        }
    }
    for (sample, (what, ..)) in samples.iter().zip(each) {
        bench.table.report(what, "ns", sample);
    }
}
