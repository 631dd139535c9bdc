//! A warp: 32 threads that mostly run together, and make progress on their own where they must.
//!
//! # Fragments
//! The lanes of a warp that are at the same place, in the same calls, make a **fragment**. A branch
//! that only some lanes take splits a fragment. Fragments that meet are joined again.
//!
//! # Which fragment runs
//! 1. The one with the most nested calls, and of these the one at the lowest place in the program.
//!    It runs until it reaches the place of another one, or until that rule prefers another one. So
//!    lanes that left a loop, or the shorter side of a branch, wait for the others behind it, which
//!    is where compilers put the code that follows.
//! 2. A fragment that has run for long while another one could run, as in a loop that waits for
//!    another lane, has to let each other one run for as long. So every lane makes progress, as on
//!    Volta and later (CUDA C++ Programming Guide, "Independent Thread Scheduling"). The longer
//!    this goes on, the shorter the turns become.
//! 3. A fragment that waits, at a barrier or for lanes of its warp, does not run. It may be joined
//!    with another one that reaches the same place, and then tries again. The lanes that it waits
//!    for may also wait elsewhere: `meetings` has the rules.
//!
//! In a launch with a seed, fragments are also split at random: `splits` has the rules.

use super::aligned::Aligned;
use super::checks::Suspects;
use super::clusters::Arrived;
use super::code::Code;
use super::context::Context;
use super::control::barrier_of;
use super::copies::Copies;
use super::fault::FaultKind;
use super::fragment::{Barrier, Fragment, Frame, Wait, restore, saved};
use super::op::{Flow, Guard, Op};
use super::registers::{Cells, LANES, Mask, Registers, for_each_lane};
use super::schedule::Order;
use super::splits::Splits;
use super::turns::Pick;

/// The number of ops after which a fragment lets another one run.
pub(super) const LONGEST_TURN: u32 = 4096;
const SHORTEST_TURN: u32 = 64;

/// The state that the instructions of a warp work on.
#[derive(Debug)]
pub(crate) struct Lanes {
    pub(crate) registers: Registers,
    /// The number of the first thread of the warp in its block.
    pub(crate) first_thread: u32,
    /// The place of each lane in its block, in x, y and z.
    pub(crate) thread: [[u32; LANES]; 3],
    /// The lanes that the block does not have.
    pub(crate) missing: Mask,
    /// The local memory of all lanes, one after the other.
    pub(crate) local: Aligned,
    /// The bytes of local memory of a lane, and from the start of one lane's to the next one's.
    pub(crate) local_bytes: u64,
    pub(crate) local_stride: u64,
    /// The offset in local memory of the frame of the running function.
    pub(crate) frame: u64,
    /// The place of each lane that [`Flow::JumpEach`] and [`Flow::CallEach`] go to.
    pub(crate) targets: [u32; LANES],
    /// The lanes that [`Flow::WaitForLanes`] waits for.
    pub(crate) needed: Mask,
    /// The lanes that wait. Others have run the instruction.
    pub(crate) waits: Mask,
    /// The lane and the kind of a fault.
    pub(crate) fault: Option<Box<(usize, FaultKind)>>,
    /// The place of the op that a fault is about, if it is not the one that ran.
    pub(crate) blamed: Option<u32>,
    /// The values that checks follow.
    pub(crate) suspects: Suspects,
    /// Arrivals at barriers of threads that do not wait: the number of the barrier, and of threads.
    pub(crate) arrivals: Vec<(u32, u32)>,
    /// The lanes that are at the barrier of the cluster.
    pub(crate) arrived: Arrived,
    /// The carry flag of each lane, 1 after a subtraction that borrows nothing. PTX ISA 9.7.2,
    /// "CC.CF".
    pub(crate) carry: Mask,
    pub(crate) copies: Copies,
}

impl Lanes {
    /// Notes a fault of a lane.
    #[cold]
    pub(crate) fn fail(&mut self, lane: usize, kind: FaultKind) -> Flow {
        self.fault = Some(Box::new((lane, kind)));
        Flow::Fault
    }

    /// Returns how many threads the lanes of a mask count as at a barrier with a number of threads.
    /// Barriers count whole warps, so the lanes that the block does not have count with the first
    /// one. PTX ISA 9.7.13.1, bar: the number of threads is a multiple of the warp size.
    pub(crate) fn arrivals_of(&self, mask: Mask) -> u32 {
        let with_missing = if mask & 1 == 1 { mask | self.missing } else { mask };
        with_missing.count_ones()
    }

    /// Returns the address of the local memory of a lane.
    #[inline(always)]
    pub(crate) fn local_of(&self, lane: usize) -> u64 {
        self.local.start() + lane as u64 * self.local_stride
    }
}

/// Returns the lanes of a warp that a block of `threads` has.
pub(crate) fn existing(first_thread: u32, threads: u32) -> Mask {
    let exist = (threads - first_thread).min(LANES as u32);
    if exist == LANES as u32 { Mask::MAX } else { (1 << exist) - 1 }
}

/// Why a warp stopped running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// All of its threads have exited.
    Done,
    /// All of its threads wait or have exited.
    Waits,
    /// It has run as many ops as it might.
    Paused,
    /// An op failed, at this place.
    Fault(u32),
}

/// A warp of a block.
#[derive(Debug)]
pub(crate) struct Warp {
    pub(crate) lanes: Lanes,
    pub(super) fragments: Vec<Fragment>,
    turns: u64,
    pub(super) turn_length: u32,
    pub(super) splits: Splits,
}

impl Warp {
    /// Creates a warp whose first thread is `first_thread` of a block of `threads`.
    pub(crate) fn new(code: &Code, first_thread: u32, [x, y, z]: [u32; 3]) -> Self {
        let threads = x * y * z;
        let mask = existing(first_thread, threads);
        let mut registers = Registers::new(code.narrow, code.wide, code.predicates);
        registers.dead = !mask;
        for &(row, value) in &code.narrow_constants {
            registers.narrow[row as usize] = Cells([value; LANES]);
        }
        for &(row, value) in &code.wide_constants {
            registers.wide[row as usize] = Cells([value; LANES]);
        }
        let local_stride = u64::from(code.local_bytes).next_multiple_of(code.local_align);
        let lanes = Lanes {
            registers,
            first_thread,
            thread: [
                std::array::from_fn(|lane| (first_thread + lane as u32) % x),
                std::array::from_fn(|lane| (first_thread + lane as u32) / x % y),
                std::array::from_fn(|lane| (first_thread + lane as u32) / (x * y)),
            ],
            missing: !mask,
            local: Aligned::new(local_stride * LANES as u64, code.local_align),
            local_bytes: code.local_bytes.into(),
            local_stride,
            frame: 0,
            targets: [0; LANES],
            needed: 0,
            waits: 0,
            fault: None,
            blamed: None,
            suspects: Suspects::default(),
            arrivals: Vec::new(),
            arrived: Arrived::default(),
            carry: 0,
            copies: Copies::default(),
        };
        let fragments = vec![Fragment::first(code, mask)];
        Warp { lanes, fragments, turns: 0, turn_length: LONGEST_TURN, splits: Splits::START }
    }

    /// Runs ops that can neither fail nor jump in all lanes.
    pub(crate) fn prepare(&mut self, ops: &[Op], context: &Context<'_>) {
        for op in ops {
            // SAFETY: as in `run_op`.
            unsafe { (op.run)(&mut self.lanes, op, Mask::MAX, context) };
        }
    }

    /// Starts again with the threads of another block. Registers and local memory keep their
    /// contents: what a thread has not written may have any.
    pub(crate) fn restart(&mut self, code: &Code, threads: u32) {
        let mask = existing(self.lanes.first_thread, threads);
        self.lanes.registers.dead = !mask;
        self.lanes.frame = 0;
        self.lanes.carry = 0;
        self.lanes.arrived = Arrived::default();
        self.lanes.copies.clear();
        self.lanes.suspects.clear();
        self.fragments.clear();
        self.fragments.push(Fragment::first(code, mask));
        (self.turns, self.turn_length) = (0, LONGEST_TURN);
        self.splits = Splits::START;
    }

    /// Runs up to about `fuel` ops, and takes them off.
    pub(crate) fn run(&mut self, context: &Context<'_>, order: &mut Order, fuel: &mut u32) -> Stop {
        let is_split = order.is_seeded() && !context.launch.code.is_lockstep;
        while *fuel > 0 {
            let turn = if is_split { self.drawn_turn(order) } else { self.turn() };
            let Some(turn) = turn else {
                return if self.fragments.is_empty() { Stop::Done } else { Stop::Waits };
            };
            let before = *fuel;
            let failed = match context.checker {
                None => self.run_fragment::<false>(turn, context, fuel),
                Some(_) => self.run_fragment::<true>(turn, context, fuel),
            };
            self.splits.pass(before - *fuel);
            if let Some(place) = failed {
                return Stop::Fault(place);
            }
        }
        Stop::Paused
    }

    /// Runs a fragment until it splits, waits, returns, meets another one or has had its turn.
    /// Returns the place of an op that failed. `IS_CHECKED` tells whether the launch has checks.
    fn run_fragment<const IS_CHECKED: bool>(
        &mut self,
        Pick { at, passes, most }: Pick,
        context: &Context<'_>,
        fuel: &mut u32,
    ) -> Option<u32> {
        let code = context.launch.code;
        let Fragment { mut place, mask, frame, ran, .. } = self.fragments[at];
        self.lanes.frame = frame;
        let calls = self.fragments[at].calls.len();
        // The lowest place ahead at which another fragment waits to be met.
        let meeting = self
            .fragments
            .iter()
            .filter(|other| other.calls.len() == calls && other.place > place)
            .map(|other| other.place)
            .min()
            .unwrap_or(u32::MAX);
        let is_alone = self.fragments.len() == 1;
        let turn = if is_alone { u32::MAX } else { self.turn_length.saturating_sub(ran).max(1) };
        let may_run = turn.min(most).min(*fuel);
        let mut left = may_run;
        let ends = loop {
            if left == 0 {
                break Ends::Turn;
            }
            let (first, mut flow, mut mine) = (place, Flow::Next, mask);
            // Up to a guard or another fragment there is nothing to look at between two ops.
            let ahead = if place < meeting { meeting - place } else { u32::MAX };
            let straight = code.unguarded[place as usize].min(ahead).min(left);
            if straight == 0 {
                let op = &code.ops[place as usize];
                mine = op.guard.of(mask, &self.lanes.registers.predicates);
                if IS_CHECKED && self.is_suspected(op.guard, mask, context) {
                    (flow, mine) = (Flow::Fault, mask);
                } else if mine != 0 {
                    flow = self.run_op::<IS_CHECKED>(op, mine, place, context);
                }
                place += u32::from(flow == Flow::Next);
            }
            for op in &code.ops[first as usize..][..straight as usize] {
                flow = self.run_op::<IS_CHECKED>(op, mask, place, context);
                if flow != Flow::Next {
                    break;
                }
                place += 1;
            }
            left -= place - first + u32::from(flow != Flow::Next);
            match flow {
                Flow::Next => {}
                Flow::Jump if mine == mask => place = code.ops[place as usize].extra as u32,
                flow => break Ends::Flow(flow, mine),
            }
            if place >= meeting && !passes || place == meeting {
                break Ends::Meets;
            }
        };
        *fuel -= may_run - left;
        let fragment = &mut self.fragments[at];
        fragment.place = place;
        fragment.ran = if is_alone { 0 } else { ran + (may_run - left) };
        if fragment.ran >= self.turn_length {
            self.turns += 1;
            (fragment.ran, fragment.turn) = (0, self.turns);
            self.turn_length = (self.turn_length / 2).max(SHORTEST_TURN);
        }
        match ends {
            Ends::Meets | Ends::Turn => None,
            Ends::Flow(flow, mine) => self.turn_to(at, flow, mine, context),
        }
    }

    /// Runs an op in some lanes.
    #[inline(always)]
    pub(super) fn run_op<const IS_CHECKED: bool>(
        &mut self,
        op: &Op,
        mask: Mask,
        place: u32,
        context: &Context<'_>,
    ) -> Flow {
        let is_watched = IS_CHECKED && (op.is_watched || !self.lanes.suspects.is_empty());
        let checker = if is_watched { context.checker } else { None };
        if let Some(checker) = checker
            && let Some((lane, kind)) = checker.borrow_mut().before(&mut self.lanes, op, mask, place, context)
        {
            return self.lanes.fail(lane, kind);
        }
        // SAFETY: a function needs the instructions of the level for which it was compiled. The
        // lowering picks functions of the level of this processor.
        let flow = unsafe { (op.run)(&mut self.lanes, op, mask, context) };
        if let Some(checker) = checker {
            checker.borrow_mut().after(&self.lanes, op, mask, place, flow, context);
        }
        flow
    }

    /// Returns whether a guard fails a lane of `mask`, because it depends on a suspected value.
    fn is_suspected(&mut self, guard: Guard, mask: Mask, context: &Context<'_>) -> bool {
        if self.lanes.suspects.is_empty() {
            return false;
        }
        let Some(checker) = context.checker else { return false };
        let Some((lane, kind)) = checker.borrow_mut().guard(&mut self.lanes, guard, mask, context) else {
            return false;
        };
        self.lanes.fail(lane, kind);
        true
    }

    /// Does what an instruction of some lanes asks for. Returns the place of an op that failed.
    fn turn_to(&mut self, at: usize, flow: Flow, mine: Mask, context: &Context<'_>) -> Option<u32> {
        let code = context.launch.code;
        let place = self.fragments[at].place;
        let target = code.ops[place as usize].extra as u32;
        let mine = if flow == Flow::WaitForLanes { self.lanes.waits } else { mine };
        // The other lanes skip the instruction, or have run it.
        let part = self.split(at, mine);
        if part != at {
            self.fragments[at].place = place + 1;
        }
        match flow {
            Flow::Next => unreachable!("the fragment goes on"),
            Flow::Jump => self.fragments[part].place = target,
            Flow::JumpEach => self.jump_each(part),
            Flow::Call => return self.call(part, target, code),
            Flow::CallEach => {
                for part in self.split_by_target(part) {
                    let callee = self.lanes.targets[self.fragments[part].mask.trailing_zeros() as usize];
                    if let Some(place) = self.call(part, callee, code) {
                        return Some(place);
                    }
                }
                return None;
            }
            Flow::Return if !self.fragments[part].calls.is_empty() => self.return_from(part, code),
            Flow::Return | Flow::Exit => {
                self.lanes.registers.dead |= mine;
                self.fragments.swap_remove(part);
                return self.exchange(0..self.fragments.len(), context);
            }
            Flow::WaitAtBarrier => self.wait_at_barriers(part, &code.ops[place as usize]),
            Flow::WaitForLanes => {
                self.fragments[part].wait = Wait::For(self.lanes.needed);
                // The lanes that it needs may wait here already, if it came from behind, or
                // elsewhere.
                let part = self.join(part);
                return self.exchange(part..part + 1, context);
            }
            Flow::Fault => return Some(place),
        }
        None
    }

    /// Lets a fragment wait at the barriers that its lanes name.
    fn wait_at_barriers(&mut self, at: usize, op: &Op) {
        let mut part = at;
        loop {
            let mask = self.fragments[part].mask;
            let (barrier, same) = barrier_of(&self.lanes, op, mask);
            let others = if same == mask { None } else { Some(self.split(part, mask & !same)) };
            self.fragments[part].wait = Wait::At(barrier);
            let Some(others) = others else { return };
            part = others;
        }
    }

    /// Splits a fragment by the targets of its lanes.
    fn split_by_target(&mut self, at: usize) -> Vec<usize> {
        let mut parts = vec![at];
        loop {
            let last = parts[parts.len() - 1];
            let mask = self.fragments[last].mask;
            let target = self.lanes.targets[mask.trailing_zeros() as usize];
            let mut others = 0;
            for_each_lane(mask, |lane| {
                if self.lanes.targets[lane] != target {
                    others |= 1 << lane;
                }
            });
            if others == 0 {
                return parts;
            }
            parts.push(self.split(last, others));
        }
    }

    fn jump_each(&mut self, at: usize) {
        for part in self.split_by_target(at) {
            let lane = self.fragments[part].mask.trailing_zeros() as usize;
            self.fragments[part].place = self.lanes.targets[lane];
        }
    }

    /// Lets a fragment call a function. Returns the place of the call if it fails.
    fn call(&mut self, at: usize, callee: u32, code: &Code) -> Option<u32> {
        let function = &code.functions[callee as usize];
        let Fragment { place, mask, frame, .. } = self.fragments[at];
        let caller = self.fragments[at].calls.last().map_or(0, |call| call.callee);
        let new = frame + u64::from(code.functions[caller as usize].frame_bytes);
        if new + u64::from(function.frame_bytes) > self.lanes.local_bytes {
            let len_bytes = self.lanes.local_bytes;
            let lane = mask.trailing_zeros() as usize;
            self.lanes.fault = Some(Box::new((lane, FaultKind::StackOverflow { len_bytes })));
            return Some(place);
        }
        let saved = function.may_recur.then(|| Box::new(saved(&self.lanes.registers, function)));
        let fragment = &mut self.fragments[at];
        fragment.calls.push(Frame { back: place + 1, frame, callee, saved });
        fragment.place = function.entry;
        fragment.frame = new;
        None
    }

    fn return_from(&mut self, at: usize, code: &Code) {
        let fragment = &mut self.fragments[at];
        let Some(Frame { back, frame, callee, saved }) = fragment.calls.pop() else { return };
        fragment.place = back;
        fragment.frame = frame;
        if let Some(saved) = saved {
            let function = &code.functions[callee as usize];
            restore(&mut self.lanes.registers, function, &saved, fragment.mask);
            self.lanes.suspects.forget(fragment.mask);
        }
    }

    /// Calls `each` with the barriers at which lanes wait.
    pub(crate) fn for_each_waiting(&self, mut each: impl FnMut(Barrier, Mask, u32)) {
        for fragment in &self.fragments {
            if let Wait::At(barrier) = fragment.wait {
                each(barrier, fragment.mask, fragment.place);
            }
        }
    }

    /// Lets the lanes that wait at a barrier go on behind it. Calls `each` for each fragment
    /// before.
    pub(crate) fn release(&mut self, id: u32, mut each: impl FnMut(&mut Lanes, Mask, u32)) {
        for fragment in &mut self.fragments {
            if matches!(fragment.wait, Wait::At(barrier) if barrier.id == id) {
                each(&mut self.lanes, fragment.mask, fragment.place);
                fragment.wait = Wait::Nothing;
                fragment.place += 1;
            }
        }
    }

    /// Returns the number of threads that have not exited.
    pub(crate) fn live(&self) -> u32 {
        self.fragments.iter().map(|fragment| fragment.mask.count_ones()).sum()
    }

    /// Returns a lane that waits, and its place.
    pub(crate) fn any_waiting(&self) -> Option<(usize, u32)> {
        self.fragments.first().map(|fragment| (fragment.mask.trailing_zeros() as usize, fragment.place))
    }
}

/// Why a fragment stopped running.
enum Ends {
    Turn,
    Meets,
    Flow(Flow, Mask),
}
