//! The reasons for which a call gets no answer.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use warpline_runtime::{Error, ErrorKind};

/// The error of a writer: any error, or a text. The operator `?` converts to it.
///
/// Like `Box<dyn Error>`, it does not implement [`std::error::Error`] itself.
pub struct WriterError(Box<dyn StdError + Send + Sync>);

impl WriterError {
    /// Returns the error that the writer returned.
    pub fn into_inner(self) -> Box<dyn StdError + Send + Sync> {
        self.0
    }
}

impl<E: Into<Box<dyn StdError + Send + Sync>>> From<E> for WriterError {
    fn from(error: E) -> Self {
        WriterError(error.into())
    }
}

impl fmt::Display for WriterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for WriterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The reason for which a call got no answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum ServeError {
    /// The rows that `max_queued` allows are queued. The caller may try again later.
    Full {
        /// The number of rows that may be queued.
        max_queued: usize,
    },
    /// The row was given a length that no row of this batcher can have.
    Length {
        /// The length that the row was given.
        given: usize,
        /// The most that it may be; at least 1 is needed. `None` if rows have one length.
        longest: Option<usize>,
    },
    /// The deadline passed, or no batch could have met it.
    Late,
    /// The caller's own writer failed. No other call notices.
    Writer(WriterError),
    /// The model failed for the whole batch, or its outputs are not those that the batcher was
    /// built for.
    Model(Error),
    /// The model panicked, with this message. It fails the batch, and no other.
    Panicked(Arc<str>),
    /// The batcher drains, and takes no more calls.
    Draining,
    /// The device accepts no more work, so the batcher answers no call any more.
    Failed(Error),
    /// The tokio runtime in which the batcher was built has ended, and its tasks with it, or one
    /// of these has panicked.
    Stopped,
}

impl ServeError {
    /// Returns the status with which a service over HTTP answers: 400 for a mistake of the caller,
    /// 500 if the model failed, 503 if the batcher is full or has ended, 504 past the deadline.
    pub fn http_status(&self) -> u16 {
        match self {
            ServeError::Writer(_) | ServeError::Length { .. } => 400,
            ServeError::Model(_) | ServeError::Panicked(_) => 500,
            ServeError::Full { .. } | ServeError::Draining | ServeError::Failed(_) | ServeError::Stopped => {
                503
            }
            ServeError::Late => 504,
        }
    }

    /// Returns the error of a batch. One of a device that accepts no more work ends the batcher.
    pub(crate) fn of_batch(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::Fault | ErrorKind::ShutDown | ErrorKind::Forked => ServeError::Failed(error.clone()),
            _ => ServeError::Model(error.clone()),
        }
    }
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServeError::Full { max_queued } => write!(
                f,
                "the batcher is full, with {max_queued} rows queued; try again later, or raise max_queued"
            ),
            ServeError::Length { given, longest: Some(longest) } => write!(
                f,
                "the row was given the length {given}, and 1 to {longest} are possible; correct it, or the \
                 shape of the inputs in the builder"
            ),
            ServeError::Length { given, longest: None } => write!(
                f,
                "the row was given the length {given}, and all rows of this batcher have one length; build \
                 it with build_packed for rows of different lengths"
            ),
            ServeError::Late => f.write_str("there is no answer before the deadline"),
            ServeError::Writer(error) => write!(f, "the row was not written: {error}"),
            ServeError::Model(error) => write!(f, "the model failed for the whole batch: {error}"),
            ServeError::Panicked(message) => write!(f, "the model panicked for the whole batch: {message}"),
            ServeError::Draining => f.write_str("the batcher drains, and takes no more calls"),
            ServeError::Failed(error) => write!(f, "the batcher has failed with its device: {error}"),
            ServeError::Stopped => f.write_str(
                "a task of the batcher has ended with its tokio runtime, or by a panic; build the batcher in \
                 a runtime that outlives its calls",
            ),
        }
    }
}

impl StdError for ServeError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        // The text has that of the error itself.
        match self {
            ServeError::Writer(error) => error.0.source(),
            ServeError::Model(error) | ServeError::Failed(error) => error.source(),
            _ => None,
        }
    }
}
