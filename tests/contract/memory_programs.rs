//! Random programs that allocate, on every backend. Their verdicts are those of arithmetic,
//! however long each op takes: before each one, a copy of random length delays its stream.

use crate::support::programs::Dice;
use crate::support::software::run_cuda_tests;
use crate::{contract, with_settings};
use futures::future::try_join_all;
use std::ops::Range;
use warpline::prelude::*;
use warpline::{Device, DeviceId, Error, MemoryShortage, Result};
use warpline_test_counts::count;

const MIB: usize = 1 << 20;
const STREAMS: usize = 3;
/// The memory that the programs have, beside that for delays.
const ROOM: usize = 64 * MIB;
const DELAYS: usize = STREAMS * 2 * MIB;

/// Streams, each with memory for copies that delay it.
struct Machine {
    _runtime: Runtime,
    device: Device,
    streams: Vec<(Stream, Buffer<u8>, Buffer<u8>)>,
}

impl Machine {
    fn new(device: &Device) -> Result<Machine> {
        let (runtime, device) = with_settings(device, |builder| builder.memory_limit(ROOM + DELAYS))?;
        let stream = |_| {
            let stream = device.new_stream()?;
            let (from, to) = (stream.alloc(MIB)?, stream.alloc(MIB)?);
            stream.fill(&from, 1).queued()?;
            Ok((stream, from, to))
        };
        let streams = (0..STREAMS).map(stream).collect::<Result<_>>()?;
        Ok(Machine { _runtime: runtime, device, streams })
    }

    /// Delays a stream, and returns it.
    fn stream(&self, dice: &mut Dice) -> Result<&Stream> {
        let (stream, from, to) = &self.streams[dice.below(STREAMS)];
        let len = [1, 1 << 12, 1 << 16, MIB][dice.below(4)];
        stream.copy_buffer(&to.slice(..len)?, &from.slice(..len)?).queued()?;
        Ok(stream)
    }

    /// Allocates, with and without a thread.
    async fn alloc(&self, dice: &mut Dice, len: usize) -> Result<Buffer<u8>> {
        let stream = self.stream(dice)?;
        if dice.below(2) == 0 { stream.alloc(len) } else { stream.alloc_async(len).await }
    }

    /// Uses a block on any stream.
    fn touch(&self, dice: &mut Dice, block: &Buffer<u8>) -> Result<()> {
        let stream = self.stream(dice)?;
        stream.wait_for(block).queued()?;
        let len = 1 + dice.below(block.len().min(1 << 12));
        stream.fill(&block.slice(..len)?, 7).queued()
    }

    /// Takes one of the steps other than an allocation.
    async fn step(&self, dice: &mut Dice, live: &mut Vec<(usize, Buffer<u8>)>) -> Result<()> {
        match dice.below(8) {
            0..3 if !live.is_empty() => {
                let at = dice.below(live.len());
                self.touch(dice, &live[at].1)
            }
            3..6 if !live.is_empty() => {
                live.swap_remove(dice.below(live.len()));
                Ok(())
            }
            6 => {
                let (one, other) = (self.stream(dice)?, self.stream(dice)?);
                if one.id() == other.id() { Ok(()) } else { one.wait_stream(other).queued() }
            }
            _ if dice.below(4) == 0 => self.stream(dice)?.synchronize().await,
            _ => Ok(()),
        }
    }
}

/// Runs a program whose blocks have one length.
async fn one_length(device: &Device, number: u64) -> Result<()> {
    let (mut dice, machine) = (Dice::new(number), Machine::new(device)?);
    // A longer block than those that share a segment of fixed length.
    let len = [12, 16, 22, 32, 48][dice.below(5)] * MIB;
    let mut live = Vec::new();
    for at in 0..10 + dice.below(40) {
        if dice.below(2) == 0 {
            let fits = (live.len() + 1) * len <= ROOM;
            match machine.alloc(&mut dice, len).await {
                Ok(block) => live.push((len, block)),
                Err(error) if error.kind() == ErrorKind::OutOfMemory => {
                    assert!(!fits, "program {number}, step {at}: {error}");
                    continue;
                }
                Err(error) => return Err(error),
            }
            assert!(fits, "program {number}, step {at}: {} blocks of {len} bytes", live.len());
        } else {
            machine.step(&mut dice, &mut live).await?;
        }
    }
    machine.device.synchronize().await
}

/// Runs requests with a budget each. Their long blocks get the verdicts of arithmetic, and their
/// short ones are refused by their budget alone.
async fn budgets(device: &Device, number: u64) -> Result<()> {
    let (mut dice, machine) = (Dice::new(number), Machine::new(device)?);
    let machine = &machine;
    let requests = (0..1 + dice.below(5) as u64).map(|task| {
        let mut dice = Dice::new(number * 16 + task);
        async move {
            let granules = |len: usize| len.next_multiple_of(2 * MIB);
            let budget_bytes = [4, 6, 10, 20, 34, 64][dice.below(6)] * MIB;
            let has_short = dice.below(2) == 0;
            let budget = machine.device.budget(budget_bytes).await?;
            let work = budget.scope(|| async {
                let mut live: Vec<(usize, Buffer<u8>)> = Vec::new();
                for at in 0..5 + dice.below(30) {
                    if dice.below(2) == 0 {
                        machine.step(&mut dice, &mut live).await?;
                        continue;
                    }
                    let is_short = has_short && dice.below(2) == 0;
                    let len = if is_short {
                        [1, 5000, 700 << 10][dice.below(3)]
                    } else {
                        MIB + 1 + dice.below(9 * MIB)
                    };
                    let used: usize = live.iter().map(|(counted, _)| counted).sum();
                    let counted = if is_short { 0 } else { granules(len) };
                    match machine.alloc(&mut dice, len).await {
                        Ok(block) => live.push((counted, block)),
                        Err(error) => {
                            let details = error.out_of_memory().ok_or(error.clone())?;
                            let is_spent = matches!(details.shortage, MemoryShortage::Budget { .. });
                            assert!(is_spent, "program {number}, request {task}, step {at}: {error}");
                            assert!(
                                has_short || used + counted > budget_bytes,
                                "{number}, {task}, {at}: {error}"
                            );
                            continue;
                        }
                    }
                    assert!(used + counted <= budget_bytes, "program {number}, request {task}, step {at}");
                }
                Ok::<_, Error>(())
            });
            work.await
        }
    });
    try_join_all(requests).await?;
    let stats = machine.device.memory_stats();
    assert_eq!((stats.budgets, stats.budget_bytes), (0, 0), "program {number}");
    machine.device.synchronize().await
}

/// The variable with the number of a child's first program.
const FIRST: &str = "WARPLINE_TEST_FIRST_PROGRAM";

/// Returns the numbers of a test's programs. With seeds, each program runs under several.
fn programs(device: &Device) -> Range<u64> {
    let first = std::env::var(FIRST).map_or(0, |first| first.parse().expect("a number"));
    let programs = match device.id() {
        // A driver that copies byte by byte.
        DeviceId::Other { .. } => count(8, 50),
        _ if device.runs_in_turns() => count(4, 50),
        _ => count(20, PART),
    };
    first..first + programs
}

contract! {
    async fn programs_of_one_length_get_the_verdicts_of_arithmetic([device]) {
        for number in programs(&device) {
            one_length(&device, number).await?;
        }
    }

    async fn requests_with_budgets_get_the_verdicts_of_arithmetic([device]) {
        for number in programs(&device) {
            budgets(&device, number).await?;
        }
    }
}

/// The number of programs of each kind that a test runs within its minute.
const PART: u64 = 200;

/// In the full size these are 10 000 programs on each of the two devices, together with the tests
/// above. The quick size runs a few.
#[test]
fn further_programs_get_the_verdicts_of_arithmetic() {
    for part in 1..count(2, 25) {
        let first = part * PART;
        run_cuda_tests("memory_programs", &[(FIRST, &first.to_string())]);
        crate::on_threads(move |[device]| async move {
            for number in first..first + count(20, PART) {
                one_length(&device, number).await?;
                budgets(&device, number).await?;
            }
            Ok(())
        });
    }
}
