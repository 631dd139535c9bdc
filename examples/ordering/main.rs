//! Four missing edges: each refused, then allowed in order to show the damage, then corrected.
//!
//! Each file beside this one has a mistake and its correction. With the order check, the mistake is
//! an error. With the check off it runs under 32 seeds, each of which determines one interleaving
//! of the streams, and some results are wrong. The correction is right under all of them.
//!
//! ```sh
//! cargo run -p warpline-examples --example ordering
//! ```
//!
//! Outside this repository it needs:
//!
//! ```toml
//! [dependencies]
//! tokio = { version = "1", features = ["full"] }
//! warpline = { path = "../warpline", features = ["test-util"] }
//! ```

mod early_event;
mod overwritten_slot;
mod read_before_write;
mod reused_memory;

use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use warpline::prelude::*;
use warpline::testing::for_each_seed_on;

const SEEDS: u64 = 32;

#[tokio::main(flavor = "current_thread")]
async fn main() -> warpline::Result<()> {
    show(
        "1. Memory is read before it is written.",
        "call side.wait_stream(&default) before it",
        read_before_write::incorrect,
        read_before_write::correct,
    )
    .await?;
    show(
        "2. A slot is overwritten while it is still read.",
        "call copy.wait_stream(&compute) before it",
        overwritten_slot::incorrect,
        overwritten_slot::correct,
    )
    .await?;
    show(
        "3. An event is recorded too early.",
        "call compute.wait_stream(&copy) before it",
        early_event::incorrect,
        early_event::correct,
    )
    .await?;
    show(
        "4. A block of memory is released by one stream and reused by another.",
        "stream.wait_for(&buffer) waits for every use of the buffer",
        reused_memory::incorrect,
        reused_memory::correct,
    )
    .await?;
    buffers_are_safe_to_drop();
    Ok(())
}

/// Shows one mistake: the refusal, which names `remedy`, wrong results with the check off, and
/// right results with the edge.
async fn show<T: PartialEq + Debug>(
    title: &str,
    remedy: &str,
    incorrect: impl AsyncFn(&Device) -> warpline::Result<T>,
    correct: impl AsyncFn(&Device) -> warpline::Result<T>,
) -> warpline::Result<()> {
    let runtime = Runtime::builder().order(OrderMode::Deny).build()?;
    let device = runtime.device(DeviceId::Cpu(0))?;
    let expected = correct(&device).await?;
    let refused = incorrect(&device).await.expect_err("the edge is missing");
    println!("{title}\n\nThe check refuses it when it is enqueued, and it never runs:\n\n{refused}\n");
    assert_eq!(refused.kind(), ErrorKind::Unordered);
    assert!(refused.to_string().contains(remedy), "the error does not say: {remedy}");

    let wrong = RefCell::new(Vec::new());
    for_each_seed_on(Runtime::builder().order(OrderMode::Off), 0..SEEDS, |devices| {
        let (incorrect, expected, wrong) = (&incorrect, &expected, &wrong);
        async move {
            let result = incorrect(&devices[0]).await?;
            if result != *expected {
                wrong.borrow_mut().push(result);
            }
            Ok(())
        }
    });
    let wrong = wrong.into_inner();
    let (count, first) = (wrong.len(), wrong.first().expect("a seed shows the race"));
    println!(
        "With OrderMode::Off it runs, and is wrong for {count} of {SEEDS} seeds: {first:?} instead of \
         {expected:?}."
    );
    assert!(count < SEEDS as usize, "no seed hides the race: it would be easy to find without a check");

    for_each_seed_on(Runtime::builder().order(OrderMode::Deny), 0..SEEDS, |devices| {
        let (correct, expected) = (&correct, &expected);
        async move {
            assert_eq!(correct(&devices[0]).await?, *expected);
            Ok(())
        }
    });
    println!("With the edge it is right for all {SEEDS} seeds.\n");
    Ok(())
}

/// Shows that a buffer may be dropped while a stream uses it, even with the check off.
fn buffers_are_safe_to_drop() {
    let reused = Cell::new(0);
    for_each_seed_on(Runtime::builder().order(OrderMode::Off), 0..SEEDS, |devices| {
        let reused = &reused;
        async move {
            let (sums, is_reused) = reused_memory::dropped(&devices[0]).await?;
            assert_eq!(sums, [100.0; 2]);
            reused.set(reused.get() + u32::from(is_reused));
            Ok(())
        }
    });
    assert!(reused.get() > 0, "no memory was reused, so this shows nothing");
    println!(
        "Dropping a Buffer cannot make mistake 4: under {} of {SEEDS} seeds its memory was reused before \
         it was summed, with OrderMode::Off, and all sums are right.",
        reused.get()
    );
}
