//! Asking a device whether it lives and where its streams are: each from a thread of its own.
//!
//! Such questions do not wait for work, and still may not come back soon: a launch that waits for room in the driver's queue can
//! hold the locks of its context for as long as a kernel takes, or for as long as a gate is closed. Whoever asked would wait with
//! it. So the reactor does not ask: it leaves the question here and goes on reading words. A device's thread asks about its own device, and
//! about a stream of another's only where that waits for work of one that died.

use crate::completion::track::Track;
use crate::context::Context;
use parking_lot::{Condvar, Mutex};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use warpline_driver::timeline::Timeline;

/// Where a context's questions are left, each once. Not a channel: whoever listens to one spins for a while before it sleeps, and
/// here that would cost more than the questions.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    questions: Mutex<Questions>,
    bell: Condvar,
}

#[derive(Debug, Default)]
struct Questions {
    /// Does the context live?
    lives: bool,
    /// Does this stream, which stands still, answer properly?
    stalled: Option<Arc<Track>>,
    /// Are these streams, of whose work nothing has been seen to end for long, idle?
    idle: Vec<(Arc<Track>, Arc<Timeline>)>,
}

impl Checks {
    /// Starts the thread that answers. Once a context.
    pub(crate) fn start(&'static self, context: &'static Context) -> std::io::Result<()> {
        let name = format!("warpline-cuda{}", context.ordinal);
        std::thread::Builder::new().name(name).spawn(move || self.answer(context))?;
        Ok(())
    }

    /// Asks the context, and handles the streams that wait for it if it is dead. `stalled`:
    /// one of its streams, to be asked as well; a fault may show there alone.
    pub(crate) fn lives(&self, stalled: Option<Arc<Track>>) {
        let mut questions = self.questions.lock();
        questions.lives = true;
        if stalled.is_some() {
            questions.stalled = stalled;
        }
        drop(questions);
        self.bell.notify_one();
    }

    /// Has a stream looked after that stands still.
    pub(crate) fn idle(&self, track: &Arc<Track>, timeline: &Arc<Timeline>) {
        let mut questions = self.questions.lock();
        if !questions.idle.iter().any(|(asked, _)| Arc::ptr_eq(asked, track)) {
            questions.idle.push((track.clone(), timeline.clone()));
        }
        drop(questions);
        self.bell.notify_one();
    }

    fn next(&self) -> Questions {
        let mut questions = self.questions.lock();
        while !questions.lives && questions.idle.is_empty() {
            self.bell.wait(&mut questions);
        }
        std::mem::take(&mut *questions)
    }

    fn answer(&self, context: &'static Context) {
        // It lets go of what tickets kept, and frees are calls that block.
        crate::completion::thread::become_reactor();
        loop {
            let Questions { lives, stalled, idle } = self.next();
            let Some(_inside) = warpline_driver::process::enter_driver() else { return };
            // A subscriber who is told of what was found may panic.
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

fn look_at(context: &'static Context, track: &Track, timeline: &Timeline) {
    if track.borrowed {
        // A lost write is found by who polls; what it keeps if it was given up stays kept.
        return;
    }
    let looked = if timeline.fault().is_some() {
        // Nothing is put on it any more.
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
