//! Tests of the service, through its router and in this process.
//!
//! The weights and grey values are small multiples of powers of two, so that every sum of the
//! network is exact in f32 in any order. Answers are compared bit for bit with a computation in
//! plain Rust.

mod allocations;
mod connections;
mod ends;
mod protocol;
mod refusals;
mod serving;
mod swaps;
mod weights;

use crate::network::{DIGITS, Network, PIXELS};
use crate::routes::routes;
use crate::service::{Service, Settings};
use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tower::ServiceExt;
use warpline::RuntimeBuilder;
use warpline::prelude::*;

/// Runs a test inside tokio, and fails it if it hangs.
fn test(body: impl Future<Output = ()>) {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    tokio.block_on(async {
        tokio::time::timeout(Duration::from_secs(60), body).await.expect("the test hangs");
    });
    // Without waiting for tasks that a failed test left.
    tokio.shutdown_background();
}

/// A generator of numbers: SplitMix64.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound
    }

    /// Returns grey values of images.
    fn images(&mut self, rows: usize) -> Vec<f32> {
        (0..rows * PIXELS).map(|_| self.below(17) as f32).collect()
    }
}

/// The names and shapes of the parameters.
const PARAMETERS: [(&str, &[usize]); 4] =
    [("0.weight", &[128, PIXELS]), ("0.bias", &[128]), ("2.weight", &[DIGITS, 128]), ("2.bias", &[DIGITS])];

/// The parameters of a network, and the network in plain Rust.
#[derive(Clone)]
struct Reference([Vec<f32>; 4]);

impl Reference {
    /// Makes a network of multiples of 1/8 within ±1/2.
    fn new(seed: u64) -> Self {
        let mut numbers = Numbers(seed);
        Reference(PARAMETERS.map(|(_, shape)| {
            (0..shape.iter().product()).map(|_| (numbers.below(9) as f32 - 4.0) / 8.0).collect()
        }))
    }

    /// Returns the logits of an image of grey values.
    fn logits(&self, image: &[f32]) -> Vec<f32> {
        let scaled: Vec<_> = image.iter().map(|value| value / 16.0).collect();
        let hidden: Vec<_> = linear(&self.0[0], &self.0[1], &scaled).map(|value| value.max(0.0)).collect();
        linear(&self.0[2], &self.0[3], &hidden).collect()
    }

    /// Returns the index of the first of the largest logits.
    fn digit(&self, image: &[f32]) -> i64 {
        let logits = self.logits(image);
        (0..DIGITS).rev().max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as i64
    }

    fn safetensors(&self) -> Vec<u8> {
        let bytes = self.0.each_ref().map(|values| bytes_of(values));
        let views = PARAMETERS.iter().zip(&bytes).map(|((name, shape), bytes)| {
            (*name, TensorView::new(Dtype::F32, shape.to_vec(), bytes).unwrap())
        });
        safetensors::serialize(views, None).unwrap()
    }
}

fn linear<'a>(weight: &'a [f32], bias: &'a [f32], x: &'a [f32]) -> impl Iterator<Item = f32> + 'a {
    weight
        .chunks(x.len())
        .zip(bias)
        .map(move |(row, bias)| row.iter().zip(x).map(|(w, x)| w * x).sum::<f32>() + bias)
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// A file of weights, which is deleted with the test.
struct File(PathBuf);

impl File {
    fn new(contents: impl AsRef<[u8]>) -> Self {
        static FILES: AtomicU64 = AtomicU64::new(0);
        let number = FILES.fetch_add(1, Ordering::Relaxed);
        let name = format!("warpline-serve-{}-{number}.safetensors", std::process::id());
        let file = File(std::env::temp_dir().join(name));
        file.write(contents);
        file
    }

    fn write(&self, contents: impl AsRef<[u8]>) {
        std::fs::write(&self.0, contents).unwrap();
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A service on a CPU device, with the weights of `reference`.
struct Rig {
    service: Arc<Service>,
    router: Router,
    reference: Reference,
    file: File,
    _runtime: Runtime,
}

impl Rig {
    async fn new() -> Self {
        Rig::with(Runtime::builder(), |_| {}).await
    }

    /// A service whose batches have one row, of which two may wait.
    async fn narrow() -> Self {
        let set = |settings: &mut Settings| {
            (settings.max_rows, settings.in_flight, settings.max_queued) = (1, 1, 2);
        };
        Rig::with(Runtime::builder(), set).await
    }

    async fn with(runtime: RuntimeBuilder, set: impl FnOnce(&mut Settings)) -> Self {
        Rig::try_with(runtime, set).await.unwrap()
    }

    async fn try_with(runtime: RuntimeBuilder, set: impl FnOnce(&mut Settings)) -> anyhow::Result<Self> {
        let reference = Reference::new(1);
        let file = File::new(reference.safetensors());
        let mut settings = Settings {
            model: file.0.clone(),
            max_rows: 8,
            max_wait: Duration::ZERO,
            max_queued: 64,
            in_flight: 2,
            load_time: Duration::from_secs(60),
            max_connections: 64,
            client_time: Duration::from_secs(60),
        };
        set(&mut settings);
        let runtime = runtime.build()?;
        let service = Service::start(runtime.device(DeviceId::Cpu(0))?, settings).await?;
        let service = Arc::new(service);
        Ok(Rig { router: routes(service.clone()), service, reference, file, _runtime: runtime })
    }

    /// Replaces the model by one with these weights that waits for a permit before each batch.
    async fn hold(&self, reference: &Reference) -> Held {
        let file = File::new(reference.safetensors());
        let stream = self.service.device.new_stream().unwrap();
        let network = Arc::new(Network::load(&file.0, &stream).await.unwrap());
        let permits = Arc::new(Semaphore::new(0));
        let (begins, began) = mpsc::unbounded_channel();
        let for_model = permits.clone();
        let batcher = &self.service.batcher;
        batcher
            .swap(move |_stream, (pixels,), _rows| {
                let (network, permits, begins) = (network.clone(), for_model.clone(), begins.clone());
                async move {
                    let _ = begins.send(());
                    permits.acquire().await.expect("it is not closed").forget();
                    network.forward(&pixels)
                }
            })
            .unwrap();
        Held { permits, began }
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Answer {
        ask(&self.router, method, path, headers, body).await
    }

    async fn get(&self, path: &str) -> Answer {
        self.ask(Method::GET, path, &[], Body::empty()).await
    }

    async fn post(&self, path: &str, body: impl Into<Body>) -> Answer {
        self.ask(Method::POST, path, &[], body).await
    }

    async fn infer(&self, body: &Value) -> Answer {
        self.post(INFER, body.to_string()).await
    }

    /// Starts a request for one image, with a batch of its own.
    fn spawn_infer(&self, image: &[f32]) -> tokio::task::JoinHandle<Answer> {
        let (router, body) = (self.router.clone(), in_json(image).to_string());
        tokio::spawn(async move { ask(&router, Method::POST, INFER, &[], body).await })
    }

    /// Waits until this many rows are queued.
    async fn queued(&self, rows: usize) {
        while self.service.batcher.queued() != rows {
            tokio::task::yield_now().await;
        }
    }
}

/// A model that waits.
struct Held {
    permits: Arc<Semaphore>,
    /// A message for each batch that has begun.
    began: mpsc::UnboundedReceiver<()>,
}

const INFER: &str = "/v2/models/digits/infer";

async fn ask(
    router: &Router,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Body>,
) -> Answer {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = router.clone().oneshot(request.body(body.into()).unwrap()).await.unwrap();
    let (head, body) = response.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    Answer { status: head.status, headers: head.headers, body }
}

/// The response to a request.
#[derive(Debug)]
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Answer {
    #[track_caller]
    fn ok(&self) -> &Self {
        assert_eq!(self.status, StatusCode::OK, "{self:?}");
        self
    }

    /// Checks that this is an error with a reason that has these parts.
    #[track_caller]
    fn refuses(&self, status: StatusCode, parts: &[&str]) {
        assert_eq!(self.status, status, "{self:?}");
        let json = self.json();
        let reason = json["error"].as_str().unwrap();
        for part in parts {
            assert!(reason.contains(part), "{part:?} is not in {reason:?}");
        }
        assert_eq!(json.as_object().unwrap().len(), 1, "{json}");
        assert_eq!(self.header("content-type"), "application/json");
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// Returns the JSON of the body, without the tensors that may follow it.
    #[track_caller]
    fn json(&self) -> Value {
        let len = self.header("inference-header-content-length");
        let len = if len.is_empty() { self.body.len() } else { len.parse().unwrap() };
        serde_json::from_slice(&self.body[..len]).unwrap()
    }

    fn version(&self) -> u64 {
        self.json()["model_version"].as_str().unwrap().parse().unwrap()
    }

    /// Checks that this has the logits and digits of all images by this network, in JSON.
    #[track_caller]
    fn is_by(&self, reference: &Reference, images: &[f32]) {
        let json = self.ok().json();
        let images: Vec<_> = images.chunks(PIXELS).collect();
        let logits: Vec<_> = images.iter().flat_map(|image| reference.logits(image)).collect();
        let digits: Vec<_> = images.iter().map(|image| reference.digit(image)).collect();
        assert_eq!(json["outputs"][0]["name"], "logits");
        assert_eq!(json["outputs"][0]["datatype"], "FP32");
        assert_eq!(json["outputs"][0]["shape"], json!([images.len(), DIGITS]));
        assert_eq!(f32s_of(&json["outputs"][0]["data"]), logits);
        assert_eq!(
            json["outputs"][1],
            json!({ "name": "digit", "datatype": "INT64", "shape": [images.len()], "data": digits })
        );
    }
}

/// Returns the numbers of a JSON array, which are exact in f32.
fn f32s_of(data: &Value) -> Vec<f32> {
    data.as_array().unwrap().iter().map(|value| value.as_f64().unwrap() as f32).collect()
}

/// Returns a request with images in JSON.
fn in_json(images: &[f32]) -> Value {
    let shape = [images.len() / PIXELS, PIXELS];
    json!({ "inputs": [{ "name": "pixels", "shape": shape, "datatype": "FP32", "data": images }] })
}

/// Returns a request with images as binary data, and the length of its JSON.
fn in_binary(images: &[f32], with: impl FnOnce(&mut Value)) -> (String, Vec<u8>) {
    let mut request = in_json(images);
    let input = &mut request["inputs"][0];
    input.as_object_mut().unwrap().remove("data");
    input["parameters"] = json!({ "binary_data_size": 4 * images.len() });
    with(&mut request);
    let mut body = request.to_string().into_bytes();
    let len = body.len().to_string();
    body.extend(bytes_of(images));
    (len, body)
}
