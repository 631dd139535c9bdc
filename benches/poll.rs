//! The cost of polling a `Pending` whose op has finished: after the host has observed it, and for
//! the first time, with clock entries to observe.
//!
//! The figure includes releasing the stream that the `Pending` holds (one reference count). It does
//! not include making the `Pending`.

mod support;

use std::future::Future;
use std::hint::black_box;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use support::{Figure, ONE, Options, Table, counting, instructions, interleave, ns, null_driver, touch_none};
use warpline::prelude::*;

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;

const BATCH: usize = 1_000;

fn poll_all(pendings: &mut [Pending<()>]) {
    let mut cx = Context::from_waker(Waker::noop());
    for pending in pendings {
        assert!(matches!(Pin::new(pending).poll(&mut cx), Poll::Ready(Ok(()))));
    }
}

/// Returns a batch of ops that have finished. If `observed`, the host has observed the last op, and
/// so all of them.
fn batch(stream: &Stream, observed: bool) -> Vec<Pending<()>> {
    let batch = (0..BATCH).map(|_| stream.launch(touch_none(black_box(0.5)), ONE)).collect();
    if observed {
        stream.synchronize().blocking_wait().expect("it is done");
    }
    batch
}

fn observed(stream: &Stream, repeat: usize) -> f64 {
    let mut total = 0.0;
    for _ in 0..repeat {
        let mut batch = batch(stream, true);
        total += ns(BATCH, || poll_all(&mut batch));
    }
    total / repeat as f64
}

/// Returns the time of the first poll of an op that is ordered after work on `entries` other
/// streams. The host has not observed that work.
fn first(device: &Device, entries: usize, repeat: usize) -> f64 {
    let stream = device.new_stream().expect("a stream");
    let others: Vec<_> = (0..entries).map(|_| device.new_stream().expect("a stream")).collect();
    let mut total = 0.0;
    for _ in 0..repeat {
        let mut batch: Vec<_> = (0..100)
            .map(|_| {
                for other in &others {
                    other.launch(touch_none(black_box(0.5)), ONE).detach();
                    stream.wait_stream(other);
                }
                stream.launch(touch_none(black_box(0.5)), ONE)
            })
            .collect();
        total += ns(batch.len(), || poll_all(&mut batch));
    }
    total / repeat as f64
}

fn main() {
    let options = Options::from_command_line();
    let (_runtime, device, _) = null_driver::runtime(false, true);
    let stream = device.new_stream().expect("a stream");
    if let Some((name, times)) = &options.only {
        let batches = *times as usize / BATCH;
        let polls = name == "polls";
        for _ in 0..batches {
            let mut batch = batch(&stream, true);
            if polls {
                poll_all(&mut batch);
            } else {
                // This loop drops the batch unpolled, so the difference of the two loops is the
                // poll.
                drop(batch);
            }
        }
        return;
    }

    let table = Table::new("poll: a `Pending` that is done (ns)");
    let repeat = options.scaled(100);
    let [seen, none, some, many] = interleave(
        options.rounds(31),
        [
            &mut || observed(&stream, repeat),
            &mut || first(&device, 0, repeat),
            &mut || first(&device, 8, repeat),
            &mut || first(&device, 64, repeat.div_ceil(10)),
        ],
    );
    table.row("poll, done and observed", "ns", &seen, "≤ 20", None, Some(seen.median() <= 20.0));
    let mut ready = batch(&stream, true);
    let before = counting::calls();
    poll_all(&mut ready);
    let allocations = counting::calls() - before;
    let (what, made) = ("poll, done and observed: allocations", Figure::count(allocations));
    table.row(what, "", made, "0", None, Some(allocations == 0));
    table.report("poll, first time, with an empty clock", "ns", &none);
    for (entries, sample) in [(8.0, &some), (64.0, &many)] {
        let each = support::Sample(
            sample.0.iter().zip(&none.0).map(|(with, without)| (with - without) / entries).collect(),
        );
        let what = format!("poll, first time, each of {entries} clock entries");
        table.row(&what, "ns", &each, "≤ 5", None, Some(each.median() <= 5.0));
    }
    if let (Some(polls), Some(drops)) = (instructions::count("polls"), instructions::count("drops")) {
        let what = "poll, done and observed: instructions more than dropping it";
        table.report(what, "", polls.total - drops.total);
        let locks = polls.within(&["raw_mutex", "parking_lot"]) - drops.within(&["raw_mutex", "parking_lot"]);
        let what = "poll, done and observed: instructions in locks";
        table.row(what, "", locks, "0", None, Some(locks.abs() < 0.1));
    }
}
