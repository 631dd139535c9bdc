//! A thread per device that asks CUDA whether the device lives and whether its streams are
//! stalled or idle.
//!
//! The thread also asks by itself, twice a second, while its device may have unfinished work. So a
//! fault becomes known within a second even if nobody waits for that work.
//!
//! These queries do not wait for work, and still may not return soon. A launch that waits for room
//! in CUDA's queue can hold the locks of its context for as long as a kernel runs, or for as
//! long as a gate is closed. A thread that queries the context would wait with it. So the reactor
//! leaves its questions here and continues reading words. A device's thread queries its own device.
//! It queries another device's stream only if that stream waits for a device that died.

use crate::completion::track::Track;
use crate::context::Context;
use parking_lot::{Condvar, Mutex};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use warpline_driver::timeline::Timeline;

/// With the time that CUDA takes to answer, this is within the second that the documentation
/// of health promises.
const LOOKED_AT_EVERY: Duration = Duration::from_millis(500);

/// The pending questions about a context, each at most once. Not a channel: a thread that receives
/// from one spins for a while before it sleeps, which would cost more here than the questions.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    questions: Mutex<Questions>,
    bell: Condvar,
}

#[derive(Debug, Default)]
struct Questions {
    /// True if the context is to be checked.
    lives: bool,
    /// A stalled stream to query for errors.
    stalled: Option<Arc<Track>>,
    /// Streams that have made no progress for long, to be checked for being idle.
    idle: Vec<(Arc<Track>, Arc<Timeline>)>,
}

impl Checks {
    /// Starts the thread that answers. Called once per context.
    pub(crate) fn start(&'static self, context: &'static Context) -> std::io::Result<()> {
        let name = format!("warpline-cuda{}", context.ordinal);
        std::thread::Builder::new().name(name).spawn(move || self.answer(context))?;
        Ok(())
    }

    /// Requests a check of the context, and the handling of streams that wait for it if it is dead.
    /// `stalled` is one of its streams, to be queried as well: a fault may show only there.
    pub(crate) fn lives(&self, stalled: Option<Arc<Track>>) {
        let mut questions = self.questions.lock();
        questions.lives = true;
        if stalled.is_some() {
            questions.stalled = stalled;
        }
        drop(questions);
        self.bell.notify_one();
    }

    /// Requests a check of a stream that has made no progress for long.
    pub(crate) fn idle(&self, track: &Arc<Track>, timeline: &Arc<Timeline>) {
        let mut questions = self.questions.lock();
        if !questions.idle.iter().any(|(asked, _)| Arc::ptr_eq(asked, track)) {
            questions.idle.push((track.clone(), timeline.clone()));
        }
        drop(questions);
        self.bell.notify_one();
    }

    /// Waits for questions. Returns none if it is time to look at the device unasked.
    fn next(&self) -> Option<Questions> {
        let mut questions = self.questions.lock();
        while !questions.lives && questions.idle.is_empty() {
            if self.bell.wait_for(&mut questions, LOOKED_AT_EVERY).timed_out() {
                return None;
            }
        }
        Some(std::mem::take(&mut *questions))
    }

    fn answer(&self, context: &'static Context) {
        // Blocking frees must run on another thread: this one drops values kept for tickets.
        crate::completion::thread::become_reactor();
        loop {
            let questions = self.next();
            let Some(_inside) = warpline_driver::process::enter_driver() else { return };
            let Some(Questions { lives, stalled, idle }) = questions else {
                let _ = catch_unwind(AssertUnwindSafe(|| look_unasked(context)));
                continue;
            };
            // A tracing subscriber that is notified of a finding may panic.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                if lives && context.look_after().is_err() {
                    context.settle_dependents();
                }
                stalled.iter().for_each(|track| track.ask_stalled());
                idle.iter().for_each(|(track, timeline)| look_at(context, track, timeline));
            }));
        }
    }
}

/// Asks whether the context lives, if one of its streams may have unfinished work.
fn look_unasked(context: &'static Context) {
    let busy: Vec<_> =
        context.completion.live_tracks().into_iter().filter(|track| track.may_be_busy()).collect();
    // An answer that may mean a fault is asked for again until it is clear.
    if busy.is_empty() || context.ask().is_err_and(|failed| context.is_killed_by(failed, None)) {
        return;
    }
    for track in busy {
        if let Err(failed) = track.find_idle() {
            context.note_failure(failed);
        }
    }
}

fn look_at(context: &'static Context, track: &Track, timeline: &Timeline) {
    if track.borrowed {
        // A caller that polls finds a lost write. If the stream was abandoned, the values kept for
        // it stay.
        return;
    }
    let looked = if timeline.fault().is_some() {
        // No more work is enqueued on the stream.
        track.is_idle().map(|idle| {
            if idle {
                timeline.abandon();
            }
        })
    } else {
        track.heal_if_idle().map(|healed| {
            if healed {
                crate::report::completion_word_lost(track.label());
            }
        })
    };
    if let Err(failed) = looked {
        context.note_failure(failed);
    }
}
