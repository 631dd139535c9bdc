//! The parts of a request that handlers take.
//!
//! A part that is wrong is refused with a reason in JSON, as the protocol says. Axum's own
//! extractors would answer in plain text.

use crate::headers::{header, number};
use crate::network::PIXELS;
use crate::protocol::MODEL;
use crate::refused::Refused;
use crate::service::Service;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use serde::Deserialize;
use std::sync::Arc;
use tokio::time::timeout;

/// The model and the version of a path. The model is the one that is served, and so is the version
/// at the time of the request.
#[derive(Deserialize)]
pub(crate) struct Named {
    model: String,
    version: Option<String>,
}

impl FromRequestParts<Arc<Service>> for Named {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, service: &Arc<Service>) -> Result<Self, Refused> {
        let path = Path::<Named>::from_request_parts(parts, service).await;
        let Path(named) = path.map_err(|rejection| Refused::bad(rejection.body_text()))?;
        if named.model != MODEL {
            let reason = format!("there is no model \"{}\"; this service has \"{MODEL}\"", named.model);
            return Err(Refused::not_found(reason));
        }
        named.check_version(service.version())?;
        Ok(named)
    }
}

impl Named {
    /// Checks that a request for a version gets that one.
    pub(crate) fn check_version(&self, served: u64) -> Result<(), Refused> {
        match &self.version {
            Some(version) if *version != served.to_string() => Err(Refused::not_found(format!(
                "version \"{version}\" of \"{MODEL}\" is not served; the current one is {served}"
            ))),
            _ => Ok(()),
        }
    }
}

/// A request that no page of another site has sent: it has the service's own origin, or none, as
/// those of programs.
///
/// A browser sends such requests from any page, without the consent of the service. The page does
/// not see the answer, but the load or the computation has happened.
///
/// A proxy that rewrites the header Host makes the service refuse its own page.
///
/// A page whose own name resolves to the address of the service passes. A proxy that accepts only
/// the names of the service refuses it.
pub(crate) struct OwnOrigin;

impl<S: Sync> FromRequestParts<S> for OwnOrigin {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refused> {
        let Some(origin) = header(&parts.headers, header::ORIGIN.as_str())? else { return Ok(OwnOrigin) };
        let host = header(&parts.headers, header::HOST.as_str())?;
        // The scheme may differ, behind a proxy that ends TLS.
        let site = origin.to_str().ok().and_then(|origin| Some(origin.split_once("://")?.1));
        match (site, host) {
            (Some(site), Some(host)) if host.as_bytes().eq_ignore_ascii_case(site.as_bytes()) => {
                Ok(OwnOrigin)
            }
            _ => {
                let host = host.map_or_else(|| "no host".to_owned(), |host| format!("the host {host:?}"));
                let reason = format!(
                    "a page of the origin {origin:?} sent this request to {host}; use the page of the \
                     service, or a client that sends no Origin; a proxy must pass the Host header on"
                );
                Err(Refused::new(StatusCode::FORBIDDEN, reason))
            }
        }
    }
}

/// A body that was read completely.
pub(crate) struct Whole(pub(crate) Bytes);

impl FromRequest<Arc<Service>> for Whole {
    type Rejection = Refused;

    async fn from_request(request: Request, service: &Arc<Service>) -> Result<Self, Refused> {
        refuse_compression(request.headers())?;
        let len = number(request.headers(), "content-length", "a number of bytes")?;
        let time = service.settings.client_time;
        let body = timeout(time, Bytes::from_request(request, service)).await.map_err(|_| {
            let reason =
                format!("the body was not sent within {time:?}; send it faster, or split the request");
            Refused::new(StatusCode::REQUEST_TIMEOUT, reason)
        })?;
        body.map(Whole).map_err(|rejection| not_whole(service, len, &rejection))
    }
}

fn refuse_compression(headers: &HeaderMap) -> Result<(), Refused> {
    match header(headers, header::CONTENT_ENCODING.as_str())? {
        Some(encoding) if !encoding.as_bytes().eq_ignore_ascii_case(b"identity") => Err(Refused::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            format!(
                "Content-Encoding is {encoding:?}, and compressed requests are not supported; send the body \
                 uncompressed"
            ),
        )),
        _ => Ok(()),
    }
}

/// Returns the largest body that is read: as many rows as a request may have, in JSON of up to 32
/// bytes a number, and 64 KiB for the rest.
pub(crate) fn body_limit(service: &Service) -> usize {
    service.settings.max_queued.saturating_mul(PIXELS * 32).saturating_add(64 << 10)
}

fn not_whole(service: &Service, len: Option<u64>, rejection: &BytesRejection) -> Refused {
    let status = rejection.status();
    if status != StatusCode::PAYLOAD_TOO_LARGE {
        return Refused::new(status, format!("the body was not read: {}", rejection.body_text()));
    }
    let (limit, rows) = (body_limit(service), service.settings.max_queued);
    let len = len.map_or_else(|| format!("more than {limit}"), |len| len.to_string());
    let reason = format!(
        "the body has {len} bytes, and at most {limit} are accepted; split the request, which may have \
         {rows} rows"
    );
    Refused::new(status, reason)
}
