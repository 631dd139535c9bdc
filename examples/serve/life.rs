//! The life of the service: it serves until it is asked to stop or its device fails.

use crate::connections::{Connections, CutOff};
use crate::log::warn;
use crate::routes::routes;
use crate::service::Service;
use clap::ValueEnum;
use std::convert::Infallible;
use std::future::{Future, pending};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep, timeout_at};
use warpline::{Error, HealthState};

/// The time in which open connections get their answers once all calls have theirs.
const GRACE: Duration = Duration::from_secs(2);

/// The time between two upkeeps of the figures.
const UPKEEP: Duration = Duration::from_secs(5);

/// The reaction to a failed device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnFault {
    /// Answers open requests, and ends the process.
    Exit,
    /// Stays, unready, so that the failure can be examined.
    Stay,
}

/// The end of the service.
#[derive(Debug)]
pub(crate) enum Ending {
    /// It was asked to stop, and answered all requests that it had accepted.
    Drained,
    /// It was asked to stop, and requests had no answer at the deadline. Both numbers are 0 if
    /// these had rows of two versions, and none was queued or running at that moment.
    Left {
        /// Queued rows, which were refused.
        refused: usize,
        /// Rows whose batch was running.
        running: usize,
    },
    /// The device has failed.
    Fault(Error),
}

/// Serves until `stop` resolves or, with [`OnFault::Exit`], the device fails.
///
/// After `stop` the service is unready and refuses new requests, but answers those that it has
/// accepted, for at most `drain`. Then the listener closes, and open connections end.
pub(crate) async fn serve(
    service: Arc<Service>,
    mut listener: TcpListener,
    stop: impl Future<Output = ()>,
    drain: Duration,
    on_fault: OnFault,
) -> Ending {
    let settings = &service.settings;
    let (most, time) = (settings.max_connections, settings.client_time);
    let mut connections = Connections::new(routes(service.clone()), most, time);
    let ending = tokio::select! {
        ending = ending(&service, stop, drain, on_fault) => ending,
        never = connections.accept(&mut listener) => match never {},
        never = keep_up(&service) => match never {},
    };
    drop(listener);
    let CutOff { stalled, open } = connections.close(GRACE).await;
    if stalled > 0 {
        warn(format_args!("connections cut off because their clients stalled: {stalled}"));
    }
    if open > 0 {
        warn(format_args!("connections cut off because they were open {GRACE:?} after the drain: {open}"));
    }
    ending
}

async fn ending(
    service: &Service,
    stop: impl Future<Output = ()>,
    drain: Duration,
    on_fault: OnFault,
) -> Ending {
    tokio::select! {
        () = stop => drained(service, drain).await,
        error = fault(service, on_fault) => Ending::Fault(error),
    }
}

async fn drained(service: &Service, drain: Duration) -> Ending {
    service.begin_to_stop();
    let deadline = Instant::now() + drain;
    let settled = timeout_at(deadline, service.settled()).await;
    let left = service.batcher.drain(deadline).await;
    match service.device.health() {
        HealthState::Failing(error) => Ending::Fault(error),
        _ if settled.is_ok() && left.refused + left.running == 0 => Ending::Drained,
        _ => Ending::Left { refused: left.refused, running: left.running },
    }
}

/// Sums up the samples of histograms, which pile up until somebody reads the figures.
async fn keep_up(service: &Service) -> Infallible {
    loop {
        sleep(UPKEEP).await;
        service.figures.keep_up();
    }
}

/// Resolves when the device has failed, if the service ends then.
async fn fault(service: &Service, on_fault: OnFault) -> Error {
    let state = service.device.watch_health().unready().await;
    if let HealthState::Failing(error) = state {
        warn(format_args!("{} has failed: {error}", service.device.id()));
        if on_fault == OnFault::Exit {
            return error;
        }
    }
    pending().await
}
