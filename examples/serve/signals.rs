//! SIGTERM and Ctrl-C: the first one stops the service, and a second one ends the process.

use crate::log::{say, warn};
use std::future::Future;
use std::io;
use std::time::Duration;
use tokio::time::timeout;

/// The exit status after a second signal.
const EXIT_AT_ONCE: i32 = 5;

/// The time in which further signals belong to the first one. The program `timeout`, for example,
/// sends its signal to the process and to its group.
const SAME: Duration = Duration::from_millis(250);

/// Resolves at the first signal. The signals are caught from this call on.
///
/// A second signal ends the process immediately, also if the drain or the shutdown of the runtime
/// hangs.
pub(crate) fn asked_to_stop() -> io::Result<impl Future<Output = ()>> {
    let mut signals = Signals::new()?;
    Ok(async move {
        signals.next().await;
        say("stopping: accepted requests are answered");
        tokio::spawn(async move {
            let _ = timeout(SAME, signals.ignored()).await;
            signals.next().await;
            warn("stopped by a second signal: requests may have no answer");
            std::process::exit(EXIT_AT_ONCE);
        });
    })
}

impl Signals {
    async fn ignored(&mut self) {
        loop {
            self.next().await;
        }
    }
}

#[cfg(unix)]
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let terminate = signal(SignalKind::terminate())?;
        Ok(Signals { terminate, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Signals)
    }

    async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
