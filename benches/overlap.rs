//! How much of the time that loading and computing can share they do share: the training of `examples/digits`, against its parts
//! alone, in turn.
//!
//! Each round measures loading, copying and computing alone and then trains for some epochs, so that all four meet the same
//! machine. The share gained is (sum − overlapped) / (sum − bound), where the sum is that of the three and the bound the
//! larger of loading and copying together and computing. Two threads are busy all the time, the reader and the worker, and
//! the host's between them for a part of it: with two cores they have nothing to spare, and any other process shows.

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

use measure::Alone;
use std::time::{Duration, Instant};
use support::measure::short;
use support::{Options, Sample, Table};
use train::{Settings, Training};

const EPOCHS: usize = 20;

fn main() -> warpline::Result<()> {
    let options = Options::from_command_line();
    if options.only.is_some() {
        return Ok(());
    }
    let (_runtime, device) = support::cpu();
    let tokio = tokio::runtime::Runtime::new().expect("a tokio runtime");
    let [mut load, mut copy, mut compute, mut overlapped, mut gained] = [(); 5].map(|()| Sample::default());
    tokio.block_on(async {
        for round in 0..=options.rounds(31) {
            let epochs = options.scaled(EPOCHS) as u64;
            let settings = Settings { epochs, ..Settings::default() };
            let training = Training::new(&device, &settings)?;
            let alone = Alone::measure(&training, &settings).await?;
            let began = Instant::now();
            let steps = training.run(&settings, |_| {}).await?;
            let together = began.elapsed() / steps as u32;
            if round == 0 {
                continue;
            }
            let micros = |time: Duration| time.as_secs_f64() * 1e6;
            for (sample, time) in [
                (&mut load, alone.load),
                (&mut copy, alone.copy),
                (&mut compute, alone.compute),
                (&mut overlapped, together),
            ] {
                sample.0.push(micros(time));
            }
            let (sum, bound) =
                (alone.load + alone.copy + alone.compute, (alone.load + alone.copy).max(alone.compute));
            gained.0.push(100.0 * (micros(sum) - micros(together)) / (micros(sum) - micros(bound)));
        }
        warpline::Result::Ok(())
    })?;
    Table::new("overlap: a training step while its data is read and copied (µs)").row(
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
    Ok(())
}
