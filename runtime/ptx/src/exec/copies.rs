//! Copies from global to shared memory that run later: `cp.async`. PTX ISA 9.7.9.25.
//!
//! A thread's copy runs when the thread waits for its group, which is as late as the ISA allows. So
//! code that reads the copied memory without waiting gets the wrong values here, as it may on a
//! GPU. Addresses are checked when the copy is issued. Copies of a thread that exits without
//! waiting never run.

use super::access::{Base, Window, addresses};
use super::context::Context;
use super::effect::Effect;
use super::memory::{Access, Element};
use super::op::{Flow, Op};
use super::registers::{LANES, Mask, for_each_lane};
use super::warp::Lanes;

/// The copies that the lanes of a warp have issued.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    issued: Vec<Copy>,
    /// The number of groups that each lane has committed.
    groups: [u32; LANES],
}

/// One copy of several lanes.
#[derive(Debug)]
struct Copy {
    /// The lanes that have not run it.
    left: Mask,
    /// The number of the group that it belongs to, in each lane.
    group: [u32; LANES],
    /// Addresses of the host.
    from: [u64; LANES],
    to: [u64; LANES],
    /// The bytes that are read. The others up to `bytes` become 0.
    read: [u64; LANES],
    bytes: u64,
}

impl Copies {
    pub(crate) fn clear(&mut self) {
        self.issued.clear();
        self.groups = [0; LANES];
    }

    /// Runs the copies of the lanes of `mask`, but for those of their newest `kept` groups. Copies
    /// that are in no group run if `kept` is `None`. Calls `before` for the lanes of each copy that
    /// runs.
    fn run(&mut self, mask: Mask, kept: Option<u32>, mut before: impl FnMut(&Copy, Mask)) {
        for copy in &mut self.issued {
            let mut due: Mask = 0;
            for_each_lane(copy.left & mask, |lane| {
                let is_due =
                    kept.is_none_or(|kept| copy.group[lane].saturating_add(kept) < self.groups[lane]);
                due |= Mask::from(is_due) << lane;
            });
            before(copy, due);
            for_each_lane(due, |lane| copy.run(lane));
            copy.left &= !due;
        }
        self.issued.retain(|copy| copy.left != 0);
    }
}

impl Copy {
    fn run(&self, lane: usize) {
        let (from, to, read) = (self.from[lane], self.to[lane], self.read[lane]);
        for at in (0..self.bytes).step_by(4) {
            let mut word = 0;
            if at + 4 <= read {
                // SAFETY: load needs an aligned address in memory that is valid for reads.
                // `issue` has checked all bytes up to `read`. They stay valid during the launch,
                // and at a multiple of the copy's size, which is one of 4.
                word = unsafe { u32::load(from + at) };
            } else {
                for byte in at..read.max(at) {
                    // SAFETY: as above.
                    word |= u32::from(unsafe { u8::load(from + byte) }) << (8 * (byte - at));
                }
            }
            // SAFETY: as above, for writes: `issue` has checked `bytes` bytes.
            unsafe { word.store(to + at) };
        }
    }
}

/// `cp.async`: `extra` bytes to the address in the wide row `a` of shared memory from that in the
/// wide row `b` of global memory. The narrow row `c` has the number of bytes to read. `e` is a wide
/// row for addresses.
pub(crate) fn issue(lanes: &mut Lanes, op: &Op, mask: Mask, context: &Context<'_>) -> Flow {
    let bytes = op.extra;
    let to = Op { a: op.a, base: Base::Wide, window: Window::Shared, extra: 0, ..*op };
    let Some(to) = addresses(lanes, &to, mask, context, bytes, Access::Write) else {
        return Flow::Fault;
    };
    if let Some(checker) = context.checker
        && let Some((lane, kind)) =
            checker.borrow_mut().part(lanes, &Op::new(issue), (mask, &to), bytes, Effect::Later, context)
    {
        return lanes.fail(lane, kind);
    }
    let read = lanes.registers.get::<u32>(op.c).map(|read| u64::from(read).min(bytes));
    let starts = lanes.registers.get::<u64>(op.b);
    let mut from = [0; LANES];
    // The bytes that all lanes read alike are checked at once, which is the usual case.
    let mut left = mask;
    while left != 0 {
        let len = read[left.trailing_zeros() as usize & 31];
        let same = (0..LANES).filter(|lane| read[*lane] == len).fold(0, |same, lane| same | 1 << lane) & left;
        left &= !same;
        let step = if len == bytes { bytes } else { 1 };
        for at in (0..len).step_by(step.max(1) as usize) {
            *lanes.registers.wide[op.e as usize] = starts.map(|start| start.wrapping_add(at));
            let piece = Op { a: op.e, base: Base::Wide, window: Window::Global, extra: 0, ..*op };
            let Some(found) = addresses(lanes, &piece, same, context, step, Access::Read) else {
                return Flow::Fault;
            };
            if at == 0 {
                for_each_lane(same, |lane| from[lane] = found[lane]);
            }
        }
    }
    let group = lanes.copies.groups;
    lanes.copies.issued.push(Copy { left: mask, group, from, to, read, bytes });
    Flow::Next
}

/// `cp.async.commit_group`
pub(crate) fn commit(lanes: &mut Lanes, _: &Op, mask: Mask, _: &Context<'_>) -> Flow {
    for_each_lane(mask, |lane| lanes.copies.groups[lane] += 1);
    Flow::Next
}

/// `cp.async.wait_group`: for all groups but the newest `extra`.
pub(crate) fn wait_group(lanes: &mut Lanes, op: &Op, mask: Mask, context: &Context<'_>) -> Flow {
    wait(lanes, mask, Some(op.extra as u32), context)
}

/// `cp.async.wait_all`
pub(crate) fn wait_all(lanes: &mut Lanes, _: &Op, mask: Mask, context: &Context<'_>) -> Flow {
    wait(lanes, mask, None, context)
}

/// Runs copies that are due. For the checks, a copy is a read and a write when it runs. It may
/// write as soon as it is issued, so it is compared with earlier accesses then.
fn wait(lanes: &mut Lanes, mask: Mask, kept: Option<u32>, context: &Context<'_>) -> Flow {
    let mut copies = std::mem::take(&mut lanes.copies);
    let mut failure = None;
    copies.run(mask, kept, |copy, due| {
        let Some(checker) = context.checker else { return };
        let (mut checker, any) = (checker.borrow_mut(), Op::new(wait_all));
        let mut left = due;
        while left != 0 && failure.is_none() {
            let lane = left & left.wrapping_neg();
            left &= !lane;
            let read = copy.read[lane.trailing_zeros() as usize];
            if read > 0 {
                failure = checker.part(lanes, &any, (lane, &copy.from), read, Effect::Load, context);
            }
        }
        if due != 0 && failure.is_none() {
            failure = checker.part(lanes, &any, (due, &copy.to), copy.bytes, Effect::Part, context);
        }
    });
    lanes.copies = copies;
    match failure {
        None => Flow::Next,
        Some((lane, kind)) => lanes.fail(lane, kind),
    }
}
