//! The reactor thread, which reads completion words and wakes the tasks that wait for them.
//!
//! There is one reactor per process.
//!
//! # Rules
//! 1. The reactor watches each stream handed to it until nothing waits on the stream's timeline. It
//!    sleeps while it watches none.
//! 2. It calls CUDA only to query markers that are events, and to report traced ops. All other
//!    questions go to a thread of the device ([`checks`](crate::faults::checks)), because CUDA may
//!    not answer while a launch waits for room.
//! 3. While nothing completes on a device, the reactor has the device checked every two
//!    milliseconds, and after 32 ms less and less often, at last every four. The device's thread
//!    then queries the context and one of the stalled streams, in rotation. Each device has its own
//!    schedule, so traffic on one does not delay the check of another. Devices whose work is
//!    awaited on the device are checked too. After a sticky error the words never change again.
//! 4. A stream without progress for a quarter of a second is checked for being idle. If it is, the
//!    write of its word was lost.
//! 5. An abandoned stream is queried every two milliseconds. Once it is idle, the values kept for
//!    it are released.
//! 6. The reactor and the threads of the devices call CUDA only while the process is not
//!    ending (`exit.rs`).
//! 7. The reactor survives panics in user code: the tracing subscribers and wakers that it calls
//!    may panic.
//!
//! # How long it sleeps
//! After progress or a newly handed-over stream, the reactor spins, then yields, then sleeps. Each
//! sleep is a sixteenth of the time without progress, at most a millisecond. So short work is
//! noticed immediately and long work costs little. A stream's wake-up is late by at most a
//! sixteenth of its own wait, however long other streams have been awaited. Handing over a stream
//! ends a sleep.

use super::track::{IDLE_CHECK_AFTER, Track};
use crate::context::Context;
use crate::faults::diagnosis::ASKED_EVERY;
use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};
use warpline_driver::timeline::{Progress, Timeline};
use warpline_driver::{Health, WakeUp};

const LONGEST_SLEEP: Duration = Duration::from_millis(1);
/// The longest interval of checks of a device. A fault becomes known later by that much.
const LONGEST_INTERVAL: Duration = Duration::from_millis(4);

enum Command {
    Watch(Arc<Track>),
    Died(&'static Context),
    Wake(Arc<Health>),
    WakeTimeline(Arc<Timeline>),
}

/// The way to the reactor: its commands, and its thread, to be unparked after each.
static REACTOR: OnceLock<(Sender<Command>, Thread)> = OnceLock::new();
static STARTING: Mutex<()> = Mutex::new(());

/// Starts the reactor thread, unless it is running.
pub(crate) fn start() -> std::io::Result<()> {
    let _starting = STARTING.lock();
    if REACTOR.get().is_some() {
        return Ok(());
    }
    let (sender, commands) = crossbeam_channel::unbounded();
    let reactor =
        std::thread::Builder::new().name("warpline-reactor".into()).spawn(move || run(&commands))?;
    let _ = REACTOR.set((sender, reactor.thread().clone()));
    Ok(())
}

fn send(command: Command) {
    if let Some((commands, reactor)) = REACTOR.get() {
        let _ = commands.send(command);
        reactor.unpark();
    }
}

/// Hands a stream over to the reactor.
pub(crate) fn watch(track: Arc<Track>) {
    send(Command::Watch(track));
}

/// Asks the reactor to wake the waiters of a context that was noted as dead.
pub(crate) fn bury(context: &'static Context) {
    send(Command::Died(context));
}

/// Asks the reactor to wake the waiters of a device that was noted as failed.
pub(crate) fn wake(health: Arc<Health>) {
    send(Command::Wake(health));
}

/// Asks the reactor to wake the waiters of an abandoned stream.
pub(crate) fn wake_timeline(timeline: Arc<Timeline>) {
    send(Command::WakeTimeline(timeline));
}

struct Watched {
    track: Arc<Track>,
    timeline: Arc<Timeline>,
    /// When the stream last made progress, was handed over, or was checked for being idle.
    quiet_since: Instant,
}

fn run(commands: &Receiver<Command>) {
    crate::completion::thread::become_reactor();
    // After the call above, blocking frees run on another thread: the reactor drops values kept for
    // tickets.
    let (mut watched, mut checks) = (Vec::new(), Checks::default());
    // A waker's panic is caught where the waker is called. It is reported to the tracing
    // subscriber, whose own panic is caught here.
    while catch_unwind(AssertUnwindSafe(|| attend(commands, &mut watched, &mut checks))).is_err() {}
}

fn attend(commands: &Receiver<Command>, watched: &mut Vec<Watched>, checks: &mut Checks) {
    let mut quiet_since = Instant::now();
    let mut looked_at = quiet_since;
    loop {
        let mut next = if watched.is_empty() {
            match commands.recv() {
                Ok(command) => Some(command),
                Err(_) => return,
            }
        } else {
            commands.try_recv().ok()
        };
        while let Some(command) = next {
            quiet_since = Instant::now();
            take(command, watched, checks, quiet_since);
            next = commands.try_recv().ok();
        }
        let now = Instant::now();
        let mut moved = false;
        watched.retain_mut(|each| {
            if each.track.has_event_markers()
                && let Some(_inside) = warpline_driver::process::enter_driver()
                && let Err(failed) = each.track.ask_events()
            {
                each.track.context.note_failure(failed);
            }
            if each.track.has_failed() {
                each.timeline.let_pass(each.track.passed());
            }
            let reached = each.track.reached();
            // Before the tasks are woken, so that a woken task finds the end of its op reported.
            if !each.track.spans.is_empty()
                && let Some(_inside) = warpline_driver::process::enter_driver()
            {
                each.track.tell_spans();
            }
            if reached > each.timeline.completed() {
                each.timeline.complete_shared(reached);
                each.quiet_since = now;
                checks.moved(each.track.context, now);
                moved = true;
            }
            !each.track.rest(&each.timeline)
        });
        if !moved || now.saturating_duration_since(looked_at) >= ASKED_EVERY {
            looked_at = now;
            checks.look(watched, now);
        }
        if moved {
            quiet_since = now;
            continue;
        }
        let eager = watched.iter().map(|each| each.track.wake_up).max().unwrap_or_default();
        match pause(eager, now - quiet_since) {
            Pause::Spin => std::hint::spin_loop(),
            Pause::Yield => std::thread::yield_now(),
            // Receiving with a timeout would spin before each sleep.
            Pause::Sleep(time) => std::thread::park_timeout(time),
        }
    }
}

fn take(command: Command, watched: &mut Vec<Watched>, checks: &mut Checks, now: Instant) {
    match command {
        Command::Watch(track) => {
            // Without a timeline nothing waits. Traced ops that have completed are reported.
            match track.timeline() {
                Some(timeline) => {
                    for context in track.context.devices() {
                        checks.of(context, now).quiet_since = now;
                    }
                    watched.push(Watched { track, timeline, quiet_since: now });
                }
                None => {
                    if let Some(_inside) = warpline_driver::process::enter_driver() {
                        track.tell_spans();
                    }
                }
            }
        }
        Command::Died(context) => context.fail_and_wake(),
        Command::Wake(health) => health.wake_everybody(),
        Command::WakeTimeline(timeline) => timeline.wake_all(),
    }
}

/// The devices whose work is awaited.
#[derive(Default)]
struct Checks(Vec<Checked>);

struct Checked {
    context: &'static Context,
    /// The last time that work on the device completed, or that a stream whose work needs it was
    /// handed over.
    quiet_since: Instant,
    /// The last time that work on the device completed, or that the device was checked.
    checked: Instant,
    /// The number of its streams that have been queried.
    asked: usize,
}

impl Checks {
    fn of(&mut self, context: &'static Context, now: Instant) -> &mut Checked {
        let at = self.0.iter().position(|known| std::ptr::eq(known.context, context));
        let at = at.unwrap_or_else(|| {
            self.0.push(Checked { context, quiet_since: now, checked: now, asked: 0 });
            self.0.len() - 1
        });
        &mut self.0[at]
    }

    fn moved(&mut self, context: &'static Context, now: Instant) {
        let device = self.of(context, now);
        (device.quiet_since, device.checked) = (now, now);
    }

    fn look(&mut self, watched: &mut [Watched], now: Instant) {
        for at in 0..watched.len() {
            for context in watched[at].track.context.devices() {
                let device = self.of(context, now);
                let interval = interval(now.saturating_duration_since(device.quiet_since));
                if now.saturating_duration_since(device.checked) >= interval {
                    device.checked = now;
                    context.faults.checks.lives(device.next_of(watched));
                }
            }
        }
        for each in watched {
            let patience = if each.timeline.fault().is_some() { ASKED_EVERY } else { IDLE_CHECK_AFTER };
            if now.saturating_duration_since(each.quiet_since) >= patience {
                each.quiet_since = now;
                each.track.context.faults.checks.idle(&each.track, &each.timeline);
            }
        }
    }
}

impl Checked {
    /// Returns the next of the device's watched streams, in rotation. Skips borrowed streams: their
    /// owners may have destroyed them.
    fn next_of(&mut self, watched: &[Watched]) -> Option<Arc<Track>> {
        let tracks = || {
            let tracks = watched.iter().map(|each| &each.track);
            tracks.filter(|track| std::ptr::eq(track.context, self.context) && !track.borrowed)
        };
        let track = tracks().nth(self.asked.checked_rem(tracks().count())?).cloned();
        self.asked += 1;
        track
    }
}

/// Returns the interval of checks of a device on which nothing has completed for `quiet`.
fn interval(quiet: Duration) -> Duration {
    (quiet / 16).clamp(ASKED_EVERY, LONGEST_INTERVAL)
}

#[derive(Debug, PartialEq, Eq)]
enum Pause {
    Spin,
    Yield,
    Sleep(Duration),
}

fn pause(eager: WakeUp, quiet: Duration) -> Pause {
    let (spin, hand_on) = match eager {
        WakeUp::LowLatency => (Duration::from_micros(200), Duration::from_micros(500)),
        WakeUp::Balanced => (Duration::from_micros(20), Duration::from_micros(100)),
        WakeUp::LowPower => (Duration::ZERO, Duration::ZERO),
    };
    if quiet < spin {
        Pause::Spin
    } else if quiet < hand_on {
        Pause::Yield
    } else {
        let least = if eager == WakeUp::LowPower { Duration::from_micros(50) } else { Duration::ZERO };
        Pause::Sleep((quiet / 16).clamp(least, LONGEST_SLEEP))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_are_a_sixteenth_of_the_wait_and_end_at_a_millisecond() {
        let pause_after = |micros| pause(WakeUp::Balanced, Duration::from_micros(micros));
        assert_eq!(pause_after(0), Pause::Spin);
        assert_eq!(pause_after(50), Pause::Yield);
        assert_eq!(pause_after(1600), Pause::Sleep(Duration::from_micros(100)));
        assert_eq!(pause_after(1_000_000), Pause::Sleep(LONGEST_SLEEP));
    }

    #[test]
    fn a_device_is_checked_more_rarely_the_longer_nothing_completes() {
        let after = |millis| interval(Duration::from_millis(millis)).as_millis();
        assert_eq!([after(0), after(32), after(48), after(1000)], [2, 2, 3, 4]);
    }

    #[test]
    fn only_low_power_never_spins() {
        assert_eq!(pause(WakeUp::LowPower, Duration::ZERO), Pause::Sleep(Duration::from_micros(50)));
        assert_eq!(pause(WakeUp::LowLatency, Duration::from_micros(150)), Pause::Spin);
    }
}
