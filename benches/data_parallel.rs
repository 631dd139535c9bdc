//! A forward of `DataParallel` on two CPU devices, against the same module on one, with one kernel
//! thread per device (batches a second).
//!
//! The module is three fully connected layers, whose products take nearly all of the time. Each
//! forward splits the batch, copies the module to the second device, computes on both, and gathers
//! the output. The second row copies the module once, by `replicate`. Two free cores are needed.

mod support;

use std::time::Instant;
use support::{Options, Table, interleave};
use warpline::nn::{DataParallel, Linear, Relu, Sequential};
use warpline::prelude::*;
use warpline::{DeviceId, Result};

const WIDTH: usize = 512;
const BATCH: usize = 512;

/// Returns the batches a second of `forward`, each awaited.
fn rate(forwards: usize, forward: &dyn Fn() -> Pending<Tensor>) -> f64 {
    let start = Instant::now();
    for _ in 0..forwards {
        forward().blocking_wait().expect("it runs");
    }
    forwards as f64 / start.elapsed().as_secs_f64()
}

fn main() -> Result<()> {
    let options = Options::from_command_line();
    let runtime = Runtime::builder().cpu_devices(2).kernel_threads(1).build()?;
    let devices = [0, 1].map(|n| runtime.device(DeviceId::Cpu(n)).expect("there are two"));
    let layer = || Linear::new(WIDTH, WIDTH, &devices[0]);
    let model = Sequential::new().add(layer()?).add(Relu).add(layer()?).add(Relu).add(layer()?);
    let x = Tensor::randn([BATCH, WIDTH], &devices[0]).queued()?;
    let parallel = DataParallel::new(model.clone(), &devices)?;
    let replicas = parallel.replicate()?;

    let forwards = options.scaled(40);
    let table = Table::new("data_parallel: three layers of 512, batches of 512 (batches a second)");
    let [one, two, replicated] = interleave(
        options.rounds(9),
        [
            &mut || rate(forwards, &|| x.apply(&model)),
            &mut || rate(forwards, &|| x.apply(&parallel)),
            &mut || rate(forwards, &|| replicas.forward(&x)),
        ],
    );
    for (name, two) in [("the module copied each time", &two), ("the module copied once", &replicated)] {
        let what = format!("forwards on two devices, {name}");
        let (rival, met) = (("on one device", &one), |ratio| Some(ratio >= 1.6));
        table.compare(&what, "batches/s", two, rival, "ratio ≥ 1.6", met);
    }
    Ok(())
}
