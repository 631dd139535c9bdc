//! How much of the time that loading and computing can share they do share: the training of `examples/digits`, against its parts
//! alone, in turn.
//!
//! Each round measures loading, copying and computing alone and then trains as the example does, so that all meet the same machine. The
//! share gained is (sum − overlapped) / (sum − bound), where the sum is that of the three and the bound the larger of loading
//! and copying together and computing.
//!
//! The bound is reached only by cores that take nothing from each other. So each round also reads the same epochs on one thread
//! while the same steps, on batches that are there, go on from another, with nothing handed from one to the other: loading as it
//! is then, in place of loading alone, gives the bound that these cores allow, and the share that it leaves to be gained.

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
use support::measure::short;
use support::{Options, Sample, Table};
use train::{Settings, Training};
use warpline::{Result, Tensor};

/// What reading a batch takes while the same epochs' steps go on from another thread, on batches of the first.
async fn loading_beside_steps(training: &Training, settings: &Settings) -> Result<Duration> {
    let Training { copy, compute, model } = training;
    let mut first = settings.training(copy)?;
    let mut batches: Vec<(Tensor, Tensor)> = Vec::new();
    while let Some(batch) = first.try_next().await? {
        batches.push((batch.x, batch.labels));
    }
    copy.synchronize().await?;

    // A word for each epoch that is begun.
    let (begins, begun) = std::sync::mpsc::channel();
    let read = move || {
        let mut reading = settings.training(copy)?.epochs(0..settings.epochs);
        // Not in a tokio runtime, so that this thread does the reading.
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
            let (sum, bound) =
                (alone.load + alone.copy + alone.compute, (alone.load + alone.copy).max(alone.compute));
            let share = |time: Duration| 100.0 * (micros(sum) - micros(time)) / (micros(sum) - micros(bound));
            gained.0.push(share(together));
            allowed.0.push(share((load_beside + alone.copy).max(alone.compute)));
        }
        Result::Ok(())
    })?;
    let table = Table::new("overlap: a training step while its data is read and copied (µs)");
    table.row(
        "a step overlapped, µs",
        &short(overlapped.median()),
        &format!(
            "alone: load {}, copy {}, compute {}",
            short(load.median()),
            short(copy.median()),
            short(compute.median())
        ),
        &format!("{} % of the gap", short(gained.median())),
        &gained.spread(),
        "≥ 80 %",
        Some(gained.median() >= 80.0),
    );
    table.row(
        "the same, reading and steps on two threads with nothing between them, µs",
        &format!("load {}", short(beside.median())),
        "",
        &format!("{} % of the gap", short(allowed.median())),
        &allowed.spread(),
        "",
        None,
    );
    Ok(())
}
