//! The share of the possible overlap that the training of `examples/digits` reaches: its time per
//! step, compared with the times of its parts alone.
//!
//! Each round first measures loading, copying and computing alone, and then trains as the example
//! does. All of them therefore run under the same load on the machine. The share is (sum −
//! overlapped) / (sum − bound). The sum is that of the three parts. The bound is the larger of
//! loading plus copying and computing.
//!
//! Only cores that do not slow each other down can reach the bound. Each round therefore also reads
//! the same epochs on one thread while another thread runs the same steps, on batches that are on
//! the device already. No batch passes between the two. The time to load measured there, in place
//! of that of loading alone, gives the bound that these cores allow. The second row shows the share
//! at that bound.

mod support;

#[allow(dead_code, reason = "the example uses all of it")]
#[path = "../examples/digits/measure.rs"]
mod measure;
#[allow(dead_code, reason = "the example uses all of it")]
#[path = "../examples/digits/model.rs"]
mod model;
#[allow(dead_code, reason = "the example uses all of it")]
#[path = "../examples/digits/steps.rs"]
mod steps;
#[allow(dead_code, reason = "the example uses all of it")]
#[path = "../examples/digits/train.rs"]
mod train;

use futures::TryStreamExt;
use measure::Alone;
use std::time::{Duration, Instant};
use support::{Options, Sample, Table};
use train::{Settings, Training};
use warpline::{Result, Tensor};

/// Returns the time to read a batch while another thread runs the steps of as many epochs, on the
/// batches of the first epoch.
async fn loading_beside_steps(training: &Training, settings: &Settings) -> Result<Duration> {
    let Training { copy, compute, model } = training;
    let mut first = settings.training(copy)?;
    let mut batches: Vec<(Tensor, Tensor)> = Vec::new();
    while let Some(batch) = first.try_next().await? {
        batches.push(batch.tensors());
    }
    copy.synchronize().await?;

    // One message per epoch that the reader begins.
    let (begins, begun) = std::sync::mpsc::channel();
    let read = move || {
        let mut reading = settings.training(copy)?.epochs(0..settings.epochs);
        // Outside a tokio runtime this thread does the reading itself.
        futures::executor::block_on(async {
            let mut newest = None;
            while let Some(batch) = reading.try_next().await? {
                if newest.replace(batch.epoch) != Some(batch.epoch) {
                    let _ = begins.send(());
                }
            }
            Result::Ok(())
        })?;
        Ok(reading.stats().reading / reading.stats().batches.max(1) as u32)
    };
    std::thread::scope(|threads| {
        let reader = threads.spawn(read);
        let mut steps = steps::Steps::new(model, compute, settings);
        for () in begun {
            for (x, labels) in &batches {
                compute.enter(|| steps.step(x, labels))?;
            }
            futures::executor::block_on(compute.synchronize())?;
        }
        reader.join().expect("the reader does not panic")
    })
}

fn main() -> Result<()> {
    let options = Options::from_command_line();
    if options.only.is_some() {
        return Ok(());
    }
    let (_runtime, device) = support::cpu();
    let tokio = tokio::runtime::Runtime::new().expect("a tokio runtime");
    let [mut load, mut beside, mut copy, mut compute, mut overlapped, mut gained, mut allowed] =
        [(); 7].map(|()| Sample::default());
    tokio.block_on(async {
        for round in 0..=options.rounds(31) {
            let mut settings = Settings::default();
            settings.epochs = options.scaled(settings.epochs as usize) as u64;
            let training = Training::new(&device, &settings)?;
            let alone = Alone::measure(&training, &settings).await?;
            let load_beside = loading_beside_steps(&Training::new(&device, &settings)?, &settings).await?;
            let began = Instant::now();
            let steps = training.run(&settings, |_| {}).await?;
            let together = began.elapsed() / steps as u32;
            if round == 0 {
                continue;
            }
            let micros = |time: Duration| time.as_secs_f64() * 1e6;
            for (sample, time) in [
                (&mut load, alone.load),
                (&mut beside, load_beside),
                (&mut copy, alone.copy),
                (&mut compute, alone.compute),
                (&mut overlapped, together),
            ] {
                sample.0.push(micros(time));
            }
            gained.0.push(alone.gained(together));
            allowed.0.push(alone.gained(Alone { load: load_beside, ..alone }.bound()));
        }
        Result::Ok(())
    })?;
    let table = Table::new("overlap: a training step while its data is read and copied (µs)");
    for (part, sample) in [("load", &load), ("copy", &copy), ("compute", &compute)] {
        table.report(&format!("digits, {part} of a step, alone"), "µs", sample);
    }
    table.report("digits, an overlapped step", "µs", &overlapped);
    table.row(
        "digits, share gained of the gap between the parts one after the other and the bound",
        "%",
        &gained,
        "≥ 80",
        None,
        // A share outside 0 to 100 shows load that changed within a round, and no overlap.
        (0.0..=100.0).contains(&gained.median()).then(|| gained.median() >= 80.0),
    );
    table.report("digits, load beside steps that share no batches", "µs", &beside);
    table.report("digits, share of the gap that this leaves to be gained", "%", &allowed);
    Ok(())
}
