//! The service: the batcher of the network, its versions, and its state.

use crate::figures::Figures;
use crate::network::{DIGITS, Network, PIXELS};
use crate::protocol::Pixels;
use anyhow::anyhow;
use futures::future::try_join_all;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, OwnedMutexGuard, watch};
use tokio::time::{Instant, timeout, timeout_at};
use warpline::HealthState;
use warpline::ops::Shape;
use warpline::prelude::*;
use warpline::serve::{Answer, Batcher, ServeError};

/// From the scaled pixels of an image to a logit for each digit, and the digit.
pub(crate) type Digits = Batcher<(f32,), (f32, i64)>;
/// The answer to the call for an image.
type Row = Answer<(f32, i64)>;

/// The number of times that rows of an older version are computed again for one request.
pub(crate) const RECOMPUTATIONS: usize = 3;

/// The settings of the service.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The file of the weights.
    pub(crate) model: PathBuf,
    pub(crate) max_rows: usize,
    pub(crate) max_wait: Duration,
    pub(crate) max_queued: usize,
    pub(crate) in_flight: usize,
    /// The time in which a file is loaded.
    pub(crate) load_time: Duration,
    pub(crate) max_connections: usize,
    /// The time in which a client sends the next part of a request, or takes one of an answer.
    pub(crate) client_time: Duration,
}

/// The parts that requests share.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) device: Device,
    pub(crate) batcher: Digits,
    pub(crate) settings: Settings,
    /// Weights are written on it.
    pub(crate) loader: Stream,
    /// One load at a time.
    loading: Arc<Mutex<()>>,
    pub(crate) figures: Figures,
    open: watch::Sender<Open>,
}

/// The requests that a stop waits for.
#[derive(Debug, Default)]
struct Open {
    /// Set once. No request and no version begins after it.
    is_stopping: bool,
    /// The version at which each open request of several rows began.
    began: Vec<u64>,
}

/// An open request. Dropping it ends it.
struct Begun<'a>(&'a watch::Sender<Open>, Option<u64>);

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        let Some(version) = self.1 else { return };
        self.0.send_modify(|open| {
            let at = open.began.iter().position(|&began| began == version);
            open.began.swap_remove(at.expect("it is open"));
        });
    }
}

/// The reason for which a request has no answer.
#[derive(Debug)]
pub(crate) enum Unanswered {
    Serve(ServeError),
    /// The model was replaced so often that the rows never had one version.
    Swapped {
        rows: usize,
    },
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unanswered::Serve(error) => error.fmt(f),
            Unanswered::Swapped { rows } => write!(
                f,
                "the model was replaced during each of {} computations, so the {rows} rows have no version \
                 in common; try again later",
                RECOMPUTATIONS + 1
            ),
        }
    }
}

impl From<ServeError> for Unanswered {
    fn from(error: ServeError) -> Self {
        Unanswered::Serve(error)
    }
}

/// The reason for which a model was not replaced.
#[derive(Debug)]
pub(crate) enum NotLoaded {
    /// The file is not one of the network.
    Wrong(String),
    /// The time was over.
    Slow(String),
    /// The service stops, or its device has failed.
    Unready(String),
}

impl Service {
    /// Loads the network and starts the batcher.
    pub(crate) async fn start(device: Device, settings: Settings) -> anyhow::Result<Self> {
        let loader = device.stream().label("loader").build()?;
        let network = timeout(settings.load_time, Network::load(&settings.model, &loader)).await;
        let network = network.map_err(|_| anyhow!(too_slow(&settings)))??;
        let network = Arc::new(network);
        let figures = Figures::new(settings.max_rows)?;
        let batcher = Digits::builder(&device, [Shape::from([PIXELS])], [[DIGITS].into(), [].into()])
            .label("digits")
            .max_rows(settings.max_rows)
            .max_wait(settings.max_wait)
            .max_queued(settings.max_queued)
            .in_flight(settings.in_flight)
            .build(move |_stream, (pixels,), _rows| {
                let network = network.clone();
                async move { network.forward(&pixels) }
            });
        let batcher = figures.record(batcher).await?;
        Ok(Service {
            device,
            batcher,
            settings,
            loader,
            loading: Arc::default(),
            figures,
            open: watch::Sender::default(),
        })
    }

    /// Computes the answers to all images, by one version of the model. Returns this version too.
    ///
    /// If the model was replaced meanwhile, the rows of the older version are computed again, at
    /// most [`RECOMPUTATIONS`] times.
    pub(crate) async fn infer(
        &self,
        pixels: &Pixels,
        deadline: Option<Instant>,
    ) -> Result<(u64, Vec<Row>), Unanswered> {
        let _open = self.begin(pixels.rows())?;
        let mut rows = self.submit(pixels, 0..pixels.rows(), deadline).await?;
        for computed_again in 0.. {
            let newest = rows.iter().map(Row::version).max().unwrap_or_default();
            let old: Vec<_> = (0..rows.len()).filter(|&at| rows[at].version() < newest).collect();
            if old.is_empty() {
                return Ok((version_of(newest), rows));
            }
            if computed_again == RECOMPUTATIONS {
                break;
            }
            let again = self.submit(pixels, old.iter().copied(), deadline).await?;
            for (at, row) in old.into_iter().zip(again) {
                rows[at] = row;
            }
        }
        Err(Unanswered::Swapped { rows: rows.len() })
    }

    /// Begins a request, unless the service stops. A single row never has two versions.
    fn begin(&self, rows: usize) -> Result<Begun<'_>, ServeError> {
        let mut begun = Err(ServeError::Draining);
        self.open.send_if_modified(|open| {
            if !open.is_stopping {
                let version = (rows > 1).then(|| self.batcher.version());
                open.began.extend(version);
                begun = Ok(Begun(&self.open, version));
            }
            false
        });
        begun
    }

    /// Submits some of the images. If one gets no answer, the others leave the batcher.
    async fn submit(
        &self,
        pixels: &Pixels,
        images: impl Iterator<Item = usize>,
        deadline: Option<Instant>,
    ) -> Result<Vec<Row>, ServeError> {
        try_join_all(images.map(|image| {
            let call = self.batcher.submit(move |(row,)| {
                pixels.write(image, row);
                Ok(())
            });
            match deadline {
                Some(deadline) => call.deadline(deadline),
                None => call,
            }
        }))
        .await
    }

    /// Reads the file again, and replaces the model. Returns the new version.
    ///
    /// # Errors
    /// The model before stays, and [`NotLoaded`] says why.
    pub(crate) async fn load(&self) -> Result<u64, NotLoaded> {
        let deadline = Instant::now() + self.settings.load_time;
        let one = timeout_at(deadline, self.loading.clone().lock_owned()).await;
        let one = one.map_err(|_| NotLoaded::Slow(still_loading(&self.settings)))?;
        let loaded = timeout_at(deadline, self.load_file(one)).await;
        let loaded = loaded.map_err(|_| NotLoaded::Slow(too_slow(&self.settings)))?;
        let (_one, network) = loaded.map_err(|error| self.not_loaded(&error))?;
        // While this is borrowed, no stop begins.
        let open = self.open.borrow();
        if let Some(why) = self.why_unready(open.is_stopping) {
            return Err(NotLoaded::Unready(why));
        }
        let swapped = self.batcher.swap(move |_stream, (pixels,), _rows| {
            let network = network.clone();
            async move { network.forward(&pixels) }
        });
        drop(open);
        swapped.map(version_of).map_err(|error| self.not_loaded(&error.into()))
    }

    /// Loads the file. The guard keeps later loads waiting.
    ///
    /// If the caller leaves, the load still runs to its end. Otherwise each call could leave
    /// another thread in a read that never returns.
    async fn load_file(
        &self,
        one: OwnedMutexGuard<()>,
    ) -> anyhow::Result<(OwnedMutexGuard<()>, Arc<Network>)> {
        let (model, loader) = (self.settings.model.clone(), self.loader.clone());
        let loading =
            async move { Network::load(&model, &loader).await.map(|network| (one, network.into())) };
        tokio::spawn(loading).await?
    }

    fn not_loaded(&self, error: &anyhow::Error) -> NotLoaded {
        match self.why_not_ready() {
            Some(why) => NotLoaded::Unready(why),
            None => NotLoaded::Wrong(format!("{error:#}")),
        }
    }

    /// Returns the version of the model that the next batch is computed with.
    pub(crate) fn version(&self) -> u64 {
        version_of(self.batcher.version())
    }

    /// Returns the reason for which no request would be answered, if there is one.
    pub(crate) fn why_not_ready(&self) -> Option<String> {
        let is_stopping = self.open.borrow().is_stopping;
        self.why_unready(is_stopping)
    }

    fn why_unready(&self, is_stopping: bool) -> Option<String> {
        match self.device.health() {
            HealthState::Failing(fault) => Some(format!("{} has failed: {fault}", self.device.id())),
            HealthState::Ready if !is_stopping => {
                let closed = || "the batcher accepts no more rows; restart the service".to_owned();
                (!self.batcher.is_open()).then(closed)
            }
            _ => Some("the service is stopping".to_owned()),
        }
    }

    /// Makes the service unready, before its batcher is drained.
    pub(crate) fn begin_to_stop(&self) {
        self.open.send_modify(|open| open.is_stopping = true);
    }

    /// Waits, after [`begin_to_stop`](Self::begin_to_stop), until no open request can have rows of
    /// two versions. A batcher that drains would refuse to compute them again.
    ///
    /// It does not wait for other requests: their rows may wait for a full batch, which only the
    /// drain ends early.
    pub(crate) async fn settled(&self) {
        let (newest, mut open) = (self.batcher.version(), self.open.subscribe());
        let _ = open.wait_for(|open| open.began.iter().all(|&began| began == newest)).await;
    }
}

fn too_slow(settings: &Settings) -> String {
    let (file, time) = (settings.model.display(), settings.load_time);
    format!("{file} was not loaded within {time:?}, which --load-seconds sets")
}

fn still_loading(settings: &Settings) -> String {
    let file = settings.model.display();
    format!("an earlier load of {file} has not ended; restart the service if it never does")
}

/// Returns the version that clients see. It counts the loads, and the one at the start is 1.
fn version_of(of_batcher: u64) -> u64 {
    of_batcher + 1
}
