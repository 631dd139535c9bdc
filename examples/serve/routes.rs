//! The routes of the KServe v2 protocol, of the figures and of the page.
//!
//! A model of another name and a version that is not current are answered with 404. Extensions
//! that NVIDIA's client knows and this service does not have are answered with 501 and a reason.

use crate::extract::{Named, OwnOrigin, Whole, body_limit};
use crate::headers::number;
use crate::network::PIXELS;
use crate::protocol::{self, INPUT, JSON_LENGTH, MODEL, Output, Row};
use crate::refused::Refused;
use crate::service::{NotLoaded, Service};
use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{any, get, post};
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

async fn model_ready(State(service): Served, _: Named) -> Result<StatusCode, Refused> {
    check_ready(&service).map(|()| StatusCode::OK)
}

async fn model_metadata(State(service): Served, _: Named) -> Answered {
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
    _: OwnOrigin,
    headers: HeaderMap,
    Whole(body): Whole,
) -> Answered {
    let request = protocol::decode(&headers, body, service.settings.max_queued)?;
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

/// Returns the earlier one of the deadlines that the header and the parameter `timeout` set.
fn deadline(headers: &HeaderMap, timeout: Option<Duration>) -> Result<Option<Instant>, Refused> {
    let header = number(headers, DEADLINE, "a number of milliseconds")?.map(Duration::from_millis);
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

async fn load(State(service): Served, _: Named, _: OwnOrigin, Whole(body): Whole) -> Answered {
    protocol::check_load(&body)?;
    check_ready(&service)?;
    let version = service.load().await.map_err(|why| {
        let (status, why) = match why {
            NotLoaded::Wrong(why) => (StatusCode::BAD_REQUEST, why),
            NotLoaded::Slow(why) => (StatusCode::GATEWAY_TIMEOUT, why),
            NotLoaded::Unready(why) => (StatusCode::SERVICE_UNAVAILABLE, why),
        };
        let still = service.version();
        Refused::new(status, format!("\"{MODEL}\" was not loaded, and version {still} stays: {why}"))
    })?;
    Ok(as_json(&json!({ "name": MODEL, "version": version.to_string() })))
}

async fn unload(_: Named) -> Answered {
    Err(Refused::bad(format!(
        "\"{MODEL}\" is the only model of this service, and is not unloaded; stop the service instead"
    )))
}
