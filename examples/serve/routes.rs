//! The routes of the KServe v2 protocol, of the figures and of the page.
//!
//! A model of another name and a version that is not current are answered with 404. Extensions
//! that NVIDIA's client knows and this service does not have are answered with 501 and a reason.

use crate::network::PIXELS;
use crate::protocol::{self, INPUT, JSON_LENGTH, MODEL, Output, Row};
use crate::refused::Refused;
use crate::service::Service;
use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{any, get, post};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use warpline::serve::Answer;

type Answered = Result<Response, Refused>;
type Served = State<Arc<Service>>;

/// The header with the number of milliseconds within which the client needs the answer.
const DEADLINE: &str = "deadline-ms";
/// A deadline further away counts as this one.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// Returns the router of a service.
pub(crate) fn routes(service: Arc<Service>) -> Router {
    let limit = body_limit(&service);
    let mut router = Router::new()
        .route("/", get(async || Html(include_str!("page.html"))))
        .route("/metrics", get(metrics))
        .route("/v2", get(server_metadata))
        .route("/v2/health/live", get(async || StatusCode::OK))
        .route("/v2/health/ready", get(ready))
        .route("/v2/repository/index", post(index))
        .route("/v2/repository/models/{model}/load", post(load))
        .route("/v2/repository/models/{model}/unload", post(unload));
    for model in ["/v2/models/{model}", "/v2/models/{model}/versions/{version}"] {
        router = router
            .route(model, get(model_metadata))
            .route(&format!("{model}/ready"), get(model_ready))
            .route(&format!("{model}/infer"), post(infer));
    }
    for (path, reason) in NOT_IMPLEMENTED {
        router = router.route(path, any(move || async move { Refused::not_implemented(reason) }));
    }
    router
        .fallback(async |uri: Uri| {
            Refused::not_found(format!("there is nothing at {}; see GET /v2", uri.path()))
        })
        .method_not_allowed_fallback(async |uri: Uri| {
            let reason = format!("{} does not accept this method; see the Allow header", uri.path());
            Refused::new(StatusCode::METHOD_NOT_ALLOWED, reason)
        })
        .layer(DefaultBodyLimit::max(limit))
        .with_state(service)
}

const NO_CONFIG: &str = "the service has no model configuration; GET /v2/models/digits has the metadata";
const NO_STATISTICS: &str = "the service keeps no statistics of a model; GET /metrics has its figures";
const NO_TRACE: &str = "the service has no trace settings";
const NO_LOGGING: &str = "the service has no log settings";
const NO_SHARED_MEMORY: &str = "the service has no shared memory; send tensors in the body";
const NO_GENERATE: &str = "the model generates no text; POST to infer";

/// The extensions that this service does not have.
const NOT_IMPLEMENTED: [(&str, &str); 14] = [
    ("/v2/models/{model}/config", NO_CONFIG),
    ("/v2/models/{model}/versions/{version}/config", NO_CONFIG),
    ("/v2/models/stats", NO_STATISTICS),
    ("/v2/models/{model}/stats", NO_STATISTICS),
    ("/v2/models/{model}/versions/{version}/stats", NO_STATISTICS),
    ("/v2/trace/setting", NO_TRACE),
    ("/v2/models/{model}/trace/setting", NO_TRACE),
    ("/v2/logging", NO_LOGGING),
    ("/v2/systemsharedmemory/{*rest}", NO_SHARED_MEMORY),
    ("/v2/cudasharedmemory/{*rest}", NO_SHARED_MEMORY),
    ("/v2/models/{model}/generate", NO_GENERATE),
    ("/v2/models/{model}/generate_stream", NO_GENERATE),
    ("/v2/models/{model}/versions/{version}/generate", NO_GENERATE),
    ("/v2/models/{model}/versions/{version}/generate_stream", NO_GENERATE),
];

/// Returns the largest body that is read: as many rows as a request may have, in JSON of up to 32
/// bytes a number, and 64 KiB for the rest.
pub(crate) fn body_limit(service: &Service) -> usize {
    service.settings.max_queued.saturating_mul(PIXELS * 32).saturating_add(64 << 10)
}

/// The model and the version of a path.
#[derive(Deserialize)]
struct Named {
    model: String,
    version: Option<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refused> {
        let path = Path::from_request_parts(parts, state).await;
        path.map(|Path(names)| names).map_err(|rejection| Refused::bad(rejection.body_text()))
    }
}

impl Named {
    /// Checks that this is the model, and no version but the current one.
    fn check(&self, service: &Service) -> Result<(), Refused> {
        if self.model != MODEL {
            let reason = format!("there is no model \"{}\"; this service has \"{MODEL}\"", self.model);
            return Err(Refused::not_found(reason));
        }
        self.check_version(service.version())
    }

    /// Checks that a request for a version gets that one.
    fn check_version(&self, served: u64) -> Result<(), Refused> {
        match &self.version {
            Some(version) if *version != served.to_string() => Err(Refused::not_found(format!(
                "version \"{version}\" of \"{MODEL}\" is not served; the current one is {served}"
            ))),
            _ => Ok(()),
        }
    }
}

fn as_json(value: &Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

async fn metrics(State(service): Served) -> Response {
    let text = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, text)], service.figures.render(&service)).into_response()
}

async fn server_metadata() -> Response {
    as_json(&json!({
        "name": "warpline-digits",
        "version": env!("CARGO_PKG_VERSION"),
        "extensions": ["binary_tensor_data", "model_repository"],
    }))
}

/// Checks that the service answers requests.
fn check_ready(service: &Service) -> Result<(), Refused> {
    match service.why_not_ready() {
        None => Ok(()),
        Some(why) => Err(Refused::new(StatusCode::SERVICE_UNAVAILABLE, why)),
    }
}

async fn ready(State(service): Served) -> Result<StatusCode, Refused> {
    check_ready(&service).map(|()| StatusCode::OK)
}

async fn model_ready(State(service): Served, named: Named) -> Result<StatusCode, Refused> {
    named.check(&service)?;
    check_ready(&service).map(|()| StatusCode::OK)
}

async fn model_metadata(State(service): Served, named: Named) -> Answered {
    named.check(&service)?;
    let outputs = Output::ALL.map(|output| {
        // The protocol writes any number of rows as -1.
        let shape: Vec<_> =
            [json!(-1)].into_iter().chain(output.row_shape().iter().map(|n| json!(n))).collect();
        json!({ "name": output.name(), "datatype": output.datatype(), "shape": shape })
    });
    Ok(as_json(&json!({
        "name": MODEL,
        "versions": [service.version().to_string()],
        "platform": "warpline",
        "inputs": [{ "name": INPUT, "datatype": "FP32", "shape": [-1, PIXELS as i64] }],
        "outputs": outputs,
    })))
}

async fn infer(
    State(service): Served,
    named: Named,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Answered {
    named.check(&service)?;
    let request = protocol::decode(&headers, whole(&service, body)?, service.settings.max_queued)?;
    let deadline = deadline(&headers, request.timeout)?;
    let (version, answers) = service.infer(&request.pixels, deadline).await?;
    named.check_version(version)?;
    let rows: Vec<_> = answers.iter().map(row).collect();
    let encoded = protocol::encode(&request, version, &rows)?;
    let mut response = encoded.body.into_response();
    let kind = if encoded.json_len.is_some() { "application/octet-stream" } else { "application/json" };
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    if let Some(len) = encoded.json_len {
        response.headers_mut().insert(JSON_LENGTH, HeaderValue::from(len));
    }
    Ok(response)
}

fn row(answer: &Answer<(f32, i64)>) -> Row<'_> {
    let (logits, digit) = answer.outputs();
    Row { logits, digit: digit[0], batch_rows: answer.batch_rows() }
}

/// Returns a body that was read completely.
fn whole(service: &Service, body: Result<Bytes, BytesRejection>) -> Result<Bytes, Refused> {
    body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Refused::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!(
                "the body has more than the {} bytes that are accepted; split the request, which may have {} \
                 rows",
                body_limit(service),
                service.settings.max_queued
            ),
        ),
        status => Refused::new(status, rejection.body_text()),
    })
}

/// Returns the earlier one of the deadlines that the header and the parameter `timeout` set.
fn deadline(headers: &HeaderMap, timeout: Option<Duration>) -> Result<Option<Instant>, Refused> {
    let header = match headers.get(DEADLINE) {
        None => None,
        Some(value) => {
            let millis = value.to_str().ok().and_then(|text| text.parse().ok()).ok_or_else(|| {
                Refused::bad(format!("{DEADLINE} is {value:?}; expected a number of milliseconds"))
            })?;
            Some(Duration::from_millis(millis))
        }
    };
    let earlier = header.into_iter().chain(timeout).min();
    Ok(earlier.map(|time| Instant::now() + time.min(LONGEST)))
}

async fn index(State(service): Served) -> Response {
    let why = service.why_not_ready();
    as_json(&json!([{
        "name": MODEL,
        "version": service.version().to_string(),
        "state": if why.is_none() { "READY" } else { "UNAVAILABLE" },
        "reason": why.unwrap_or_default(),
    }]))
}

async fn load(State(service): Served, named: Named, body: Result<Bytes, BytesRejection>) -> Answered {
    named.check(&service)?;
    refuse_parameters(&whole(&service, body)?)?;
    check_ready(&service)?;
    let version = service.load().await.map_err(|error| {
        let still = service.version();
        Refused::bad(format!("\"{MODEL}\" was not loaded, and version {still} stays: {error:#}"))
    })?;
    Ok(as_json(&json!({ "name": MODEL, "version": version.to_string() })))
}

/// Checks that a request to load has no configuration and no files.
fn refuse_parameters(body: &[u8]) -> Result<(), Refused> {
    if body.is_empty() {
        return Ok(());
    }
    let request: Value = serde_json::from_slice(body)
        .map_err(|error| Refused::bad(format!("the request to load is not JSON: {error}")))?;
    match request.get("parameters").and_then(Value::as_object).and_then(|all| all.keys().next()) {
        None => Ok(()),
        Some(name) => Err(Refused::bad(format!(
            "parameter \"{name}\" is not supported: the service reads its own file again; leave it out"
        ))),
    }
}

async fn unload(State(service): Served, named: Named) -> Answered {
    named.check(&service)?;
    Err(Refused::bad(format!(
        "\"{MODEL}\" is the only model of this service, and is not unloaded; stop the service instead"
    )))
}
