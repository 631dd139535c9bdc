//! The plan of a loader: its validated options, its stream, and its dataset with the order of
//! samples.

use super::collate::Collate;
use super::indexed::Indexed;
use super::sample::Sample;
use super::sequential::Sequential;
use super::supply::Memory;
use std::sync::Arc;
use warpline_runtime::trace::HostTrack;
use warpline_runtime::{Site, Stream};

/// A dataset and the order of its samples.
pub(super) type Ordered<S> = Source<Arc<Sequential<S>>, Arc<Indexed<S>>>;

/// One thing for sequential datasets, and another one for datasets that are read by index.
#[derive(Clone)]
pub(super) enum Source<A, B> {
    Sequential(A),
    Indexed(B),
}

/// A loader whose options have been validated, and its stream.
pub(super) struct Plan<S: Sample> {
    pub(super) source: Ordered<S>,
    pub(super) shapes: S::Shapes,
    pub(super) widths: S::Widths,
    pub(super) sample_bytes: usize,
    pub(super) batch_size: usize,
    pub(super) prefetch: usize,
    pub(super) workers: usize,
    pub(super) collate: Option<Arc<dyn Collate<S>>>,
    pub(super) drop_last: bool,
    pub(super) stream: Stream,
    /// The line that built the loader, which errors about its copies name.
    pub(super) site: Site,
    /// The track on which a single reader records its work.
    pub(super) loading: HostTrack,
    /// A track for each of several workers.
    pub(super) worker_tracks: Vec<HostTrack>,
    pub(super) memory: Arc<Memory<S>>,
}
