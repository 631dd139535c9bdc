//! An answer that is no result: a status, and the reason as JSON.

use crate::service::Unanswered;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use warpline::serve::ServeError;

/// The most characters of a reason. Longer ones repeat what the client sent.
const LONGEST: usize = 1000;

/// A refused request. Its body is `{"error": "<the reason>"}`, as the protocol says.
#[derive(Debug, PartialEq)]
pub(crate) struct Refused {
    pub(crate) status: StatusCode,
    pub(crate) reason: String,
    /// The seconds after which the client may try again.
    pub(crate) retry_after: Option<u64>,
}

impl Refused {
    pub(crate) fn new(status: StatusCode, reason: impl Into<String>) -> Self {
        let mut reason = reason.into();
        if let Some((end, _)) = reason.char_indices().nth(LONGEST) {
            reason.truncate(end);
            reason.push('…');
        }
        Refused { status, reason, retry_after: None }
    }

    /// A mistake of the client.
    pub(crate) fn bad(reason: impl Into<String>) -> Self {
        Refused::new(StatusCode::BAD_REQUEST, reason)
    }

    pub(crate) fn not_found(reason: impl Into<String>) -> Self {
        Refused::new(StatusCode::NOT_FOUND, reason)
    }

    /// A part of the protocol, or an extension of it, that this service does not have.
    pub(crate) fn not_implemented(reason: impl Into<String>) -> Self {
        Refused::new(StatusCode::NOT_IMPLEMENTED, reason)
    }
}

impl From<Unanswered> for Refused {
    fn from(unanswered: Unanswered) -> Self {
        let (status, retry_after) = match &unanswered {
            Unanswered::Swapped { .. } => (StatusCode::SERVICE_UNAVAILABLE, Some(1)),
            Unanswered::Serve(error) => {
                let status = StatusCode::from_u16(error.http_status()).expect("it is a status");
                (status, matches!(error, ServeError::Full { .. }).then_some(1))
            }
        };
        Refused { status, reason: unanswered.to_string(), retry_after }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let body = serde_json::json!({ "error": self.reason }).to_string();
        let mut response = (self.status, [(header::CONTENT_TYPE, "application/json")], body).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
