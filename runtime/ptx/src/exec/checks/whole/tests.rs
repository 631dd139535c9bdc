//! Accesses of whole warps against the same accesses lane by lane.

use super::super::super::effect::Scope;
use super::super::bits::Bits;
use super::super::order::Thread;
use super::*;
use proptest::prelude::*;

/// The words of the memory: enough for two runs of the largest accesses.
const WORDS: usize = FIRST + 2 * 4 * RUN;
/// The most words before the first run: few, so that accesses meet.
const FIRST: usize = 24;
const START: u64 = 0x1000;
const BLOCK: u32 = 1;

#[derive(Clone, Debug)]
struct Step {
    /// The first word of each run.
    starts: [usize; 2],
    is_same: bool,
    /// The words of a lane, as a power of two.
    words: u32,
    is_load: bool,
    warp: u32,
    block: u32,
    /// The time since the step before, and whether a barrier is passed there.
    later: u32,
    is_barrier: bool,
    /// A strong access of a lane of another warp before: its word, and whether it is a load.
    strong: Option<(usize, bool)>,
}

fn step() -> impl Strategy<Value = Step> {
    let of = (0..FIRST, 0..FIRST, any::<bool>(), 0..3u32, any::<bool>());
    let by = (0..2u32, prop_oneof![4 => Just(BLOCK), 1 => Just(0)], 0..2u32, prop::bool::weighted(0.3));
    let strong = prop::option::weighted(0.3, (0..FIRST, any::<bool>()));
    // The second run starts anywhere, behind the first one, or with it.
    (of, by, 0..3u32, strong).prop_map(|((first, second, is_same, words, is_load), by, position, strong)| {
        let (warp, block, later, is_barrier) = by;
        let lane = 1 << words;
        let run = if is_same { lane } else { lane * RUN };
        let aligned = |start: usize| start / lane * lane;
        let second = [second, aligned(first) + run, first][position as usize];
        let starts = [first, second].map(aligned);
        Step { starts, is_same, words, is_load, warp, block, later, is_barrier, strong }
    })
}

/// Makes the access one lane after the other. Returns whether none of them may be reported.
fn lane_by_lane(
    step: &Step,
    by: Record,
    floor: Time,
    is_own: bool,
    words: &mut Words,
    defined: &mut Bits,
) -> bool {
    let mut is_fine = true;
    let len = 1 << step.words;
    for lane in 0..LANES {
        let place = if step.is_same { 0 } else { lane % RUN * len };
        let first = step.starts[lane / RUN] + place;
        let by = by.at(lane, 0xf);
        let is_before = |earlier: Record| {
            let is_of_block = earlier.block() == by.block();
            let is_known = if is_of_block { earlier.time() < floor } else { is_own };
            is_known || earlier.is_of_thread(by)
        };
        let (from, to) = (4 * first as u64, 4 * (first + len) as u64);
        if step.is_load {
            is_fine &= defined.are_set(from, to);
        } else {
            defined.set_all(from, to);
        }
        for at in first..first + len {
            is_fine &= match step.is_load {
                true => words.read(at, by, is_before).is_none(),
                false => {
                    let race = words.racing(at, by, is_before, |_| false, is_before);
                    words.note_write(at, by);
                    race.is_none()
                }
            };
        }
    }
    is_fine
}

proptest! {
    /// An access is noted as a whole only if none of its lanes may be reported, and then leaves
    /// what the lanes leave one by one. Otherwise it leaves everything as it was.
    #[test]
    fn a_whole_access_leaves_what_its_lanes_leave(
        steps in prop::collection::vec(step(), 1..40),
        is_own in any::<bool>(),
        is_init in any::<bool>(),
    ) {
        let mut words = Words::new(WORDS);
        let mut defined = Bits::new(4 * WORDS as u64);
        if !is_init {
            defined.set_all(0, 4 * WORDS as u64);
        }
        let (mut time, mut floor) = (1, 0);
        for (place, step) in steps.iter().enumerate() {
            time += step.later;
            floor = if step.is_barrier { time } else { floor };
            if let Some((at, is_load)) = step.strong {
                let thread = Thread { block: step.block, number: 2 * LANES as u32 };
                let by = Record::new(thread, time, Some(Scope::Device), place as u32).at(3, 0xf);
                match is_load {
                    true => drop(words.read(at, by, |_| true)),
                    false => words.note_write(at, by),
                }
            }
            let thread = Thread { block: step.block, number: step.warp * LANES as u32 };
            let by = Record::new(thread, time, None, place as u32);
            let starts = step.starts.map(|word| START + 4 * word as u64);
            let runs = Runs { starts, is_same: step.is_same };
            let blocks = step.block..step.block + 1;
            let weak = Weak { runs, bytes: 4 << step.words, is_load: step.is_load, by, floor, blocks };
            let (mut own_words, mut own_defined) = (words.clone(), defined.clone());
            let is_noted = weak.note(&mut Known {
                start: START,
                words: &mut own_words,
                defined: is_init.then_some(&mut own_defined),
                is_own,
            });
            let (before, defined_before) = (words.clone(), defined.clone());
            let is_fine = lane_by_lane(step, by, floor, is_own, &mut words, &mut defined);
            if is_noted {
                prop_assert!(is_fine);
                prop_assert_eq!(&own_words, &words);
                prop_assert_eq!(&own_defined, &defined);
            } else {
                prop_assert_eq!(&own_words, &before);
                prop_assert_eq!(&own_defined, &defined_before);
            }
        }
    }
}
