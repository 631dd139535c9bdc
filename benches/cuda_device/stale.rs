//! Stale bytes after a word that reports the end of a copy to the host. The `Pending` of such a
//! copy relies on there being none.
//!
//! `cuStreamWriteValue64` writes the word after a device-to-host copy. The header of the CUDA
//! Driver API promises a fence before the write. The bench looks for a byte of the previous round,
//! read by a host thread that has already read the word of this round.

use crate::support::Figure;
use crate::support::by_hand::Raw;
use crate::{Bench, open};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use warpline::WakeUp;

/// The number of comparing threads, each with its own stream, memory and word.
const THREADS: usize = 4;
const SIZES: [(usize, &str); 3] = [(64, "64 B"), (4 << 10, "4 KiB"), (256 << 10, "256 KiB")];

/// The number of rounds compared, the number of stale ones, and the first stale one.
#[derive(Default)]
struct Seen {
    rounds: AtomicU64,
    stale: AtomicU64,
    first: AtomicU64,
}

/// Compares copies of three sizes, while the copy engine for the other direction is idle and while
/// it is busy.
pub(crate) fn words_behind_copies(bench: &Bench) {
    let (_runtime, _device, raw) = open(WakeUp::Balanced);
    let time = Duration::from_millis(if bench.options.quick { 200 } else { 15_000 });
    let (mut all_rounds, mut all_stale) = (0, 0);
    for (len_bytes, size) in SIZES {
        for (other_way, with) in [(false, "nothing else"), (true, "copies to the device")] {
            let seen = Seen::default();
            compare(raw, len_bytes, time, other_way, &seen);
            let [rounds, stale, first] =
                [&seen.rounds, &seen.stale, &seen.first].map(|count| count.load(Ordering::Relaxed));
            (all_rounds, all_stale) = (all_rounds + rounds, all_stale + stale);
            let what = format!("copies of {size} to the host beside {with}: stale behind the word");
            let met = bench.verdict(stale == 0);
            bench.table.row(&what, "rounds", Figure::count(stale), "0", None, met);
            let compared = format!("copies of {size} to the host beside {with}: rounds compared");
            bench.table.report(&compared, "rounds", Figure::count(rounds));
            if stale > 0 {
                bench.table.note(&format!("{what}: first in round {first} of its thread"));
            }
        }
    }
    println!("key: {all_stale} of {all_rounds} rounds were stale");
    if all_stale > 0 {
        std::process::exit(1);
    }
}

/// Compares on all threads until `time` is over. If `other_way`, another thread keeps the other
/// copy engine busy meanwhile.
fn compare(raw: Raw, len_bytes: usize, time: Duration, other_way: bool, seen: &Seen) {
    let (until, over) = (Instant::now() + time, AtomicBool::new(false));
    std::thread::scope(|scope| {
        let comparing: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(move || {
                    raw.bind();
                    rounds(raw, len_bytes, until, seen);
                })
            })
            .collect();
        if other_way {
            let over = &over;
            scope.spawn(move || {
                raw.bind();
                let (stream, to, from) = (raw.stream(), raw.memory(1 << 20), raw.pinned(1 << 20));
                while !over.load(Ordering::Relaxed) {
                    // SAFETY: both live as long as the process.
                    (0..16).for_each(|_| unsafe { stream.copy_in(to, from) });
                    stream.synchronize();
                }
            });
        }
        comparing.into_iter().for_each(|thread| thread.join().expect("it ends"));
        over.store(true, Ordering::Relaxed);
    });
}

/// Runs rounds until `until`: fill, copy, write the word, compare.
fn rounds(raw: Raw, len_bytes: usize, until: Instant, seen: &Seen) {
    let (stream, memory, word) = (raw.stream(), raw.memory(len_bytes), raw.word());
    let host = raw.pinned(len_bytes);
    let mut round = 0u64;
    while Instant::now() < until {
        round += 1;
        stream.fill(memory, round as u32, len_bytes / 4);
        // SAFETY: both live as long as the process, and the host reads only after the word reports
        // the end of the copy.
        unsafe { stream.begin_copy_out(host, memory) };
        assert_eq!(stream.write(word, round), 0);
        while word.host.load(Ordering::Acquire) != round {
            std::hint::spin_loop();
        }
        let fresh = (round as u32).to_ne_bytes();
        // The read is volatile, because the compiler does not know that the device writes this
        // memory.
        let stale = host.chunks_exact(4).any(|bytes| {
            // SAFETY: the pointer is to four bytes of live memory, and `[u8; 4]` needs no
            // alignment.
            unsafe { bytes.as_ptr().cast::<[u8; 4]>().read_volatile() != fresh }
        });
        if stale {
            seen.stale.fetch_add(1, Ordering::Relaxed);
            let _ = seen.first.compare_exchange(0, round, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
    stream.synchronize();
    seen.rounds.fetch_add(round, Ordering::Relaxed);
}
