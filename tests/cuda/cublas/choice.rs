//! The choice between cuBLAS and Warpline's kernel, and the events that report it.

use crate::cublas::{cuda, in_child_with_cublas, library, matrix, ran};
use crate::support::software::in_child;
use crate::support::{refusal, says};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use warpline::prelude::*;

type Fields = BTreeMap<String, String>;

/// A layer that forwards the events about what computed a product.
struct Ears(Mutex<Sender<Fields>>);

struct Seen(Fields);

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

impl<S: Subscriber> Layer<S> for Ears {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut seen = Seen(Fields::new());
        event.record(&mut seen);
        if event.metadata().target() == "warpline" && seen.0["message"] == "which ran" {
            self.0.lock().unwrap().send(seen.0).unwrap();
        }
    }
}

fn listen() -> Receiver<Fields> {
    let (heard, events) = channel();
    tracing_subscriber::registry().with(Ears(Mutex::new(heard))).init();
    events
}

/// Multiplies two matrices on `cuda:0`.
fn multiply() -> Pending<Tensor> {
    let device = cuda(0);
    matrix([3, 4], 1, &device).matmul(matrix([4, 5], 2, &device))
}

#[test]
fn a_trace_says_of_each_product_that_cublas_ran_it_and_with_what() {
    in_child_with_cublas(&[], || {
        let events = listen();
        multiply().blocking_wait().unwrap();
        let heard = events.recv().unwrap();
        let field = |name: &str| heard[name].as_str();
        assert_eq!((field("op"), field("by"), field("why")), ("matmul", "cuBLAS 12.0.0 sgemm", ""));
        assert_eq!((field("stream"), field("device")), ("default", "0"));
        assert_eq!(field("file"), "tests/cuda/cublas/choice.rs");
        warpline::kernels::libraries::allow_tf32(true);
        multiply().blocking_wait().unwrap();
        assert_eq!(events.recv().unwrap()["by"], "cuBLAS 12.0.0 sgemm with TF32");
    });
}

#[test]
fn on_the_software_driver_what_is_called_cublas_is_left_alone_unless_it_is_named() {
    // A search would find the stand-in in this path.
    let found = [warpline_softcuda::library_dir().unwrap(), Path::new(&library()).parent().unwrap().into()];
    let path = std::env::join_paths(found).unwrap();
    in_child(&[("LD_LIBRARY_PATH", path.to_str().unwrap())], || {
        let events = listen();
        multiply().blocking_wait().unwrap();
        let heard = events.recv().unwrap();
        assert_eq!((heard["op"].as_str(), heard["by"].as_str()), ("matmul", "matmul"));
        assert_eq!(heard["why"], "the software CUDA driver does not run a library's kernels");
        assert_eq!(ran(), (0, 1));
    });
}

#[test]
fn off_is_off() {
    in_child(&[("WARPLINE_CUBLAS", "off")], || {
        let events = listen();
        multiply().blocking_wait().unwrap();
        assert_eq!(events.recv().unwrap()["why"], "WARPLINE_CUBLAS is off");
        assert_eq!(ran(), (0, 1));
    });
}

#[test]
fn a_library_that_is_named_and_not_there_is_an_error_of_each_product_and_of_a_load() {
    in_child(&[("WARPLINE_CUBLAS", "/nowhere/libcublas.so.12")], || {
        let parts = [
            "failed on cuda:0",
            "WARPLINE_CUBLAS is /nowhere/libcublas.so.12",
            "cannot be loaded",
            "to \"off\" to use no cuBLAS",
        ];
        // Without cached memory the product would be held back, and would keep its ticket when it
        // is refused.
        crate::support::cache_pinned(&cuda(0));
        let before = cuda(0).default_stream().unwrap().issued();
        for _ in 0..2 {
            let error = refusal(multiply());
            says(&error, ErrorKind::Driver, &parts);
            says(&error, ErrorKind::Driver, &["matmul on stream \"default\" (tests/cuda/cublas/choice.rs:"]);
        }
        // The two factors of each product take tickets; the refused products take none.
        assert_eq!(cuda(0).default_stream().unwrap().issued(), before + 4);
        let error = cuda(0).load([&warpline::kernels::MATMUL]).unwrap_err();
        says(&error, ErrorKind::Driver, &parts[1..]);
        let x = matrix([2, 2], 1, &cuda(0));
        assert_eq!(x.relu().to_vec::<f32>().blocking_wait().unwrap().len(), 4, "anything else works");
        assert_eq!(ran(), (0, 0));
    });
}

#[test]
fn a_library_that_is_named_and_is_something_else_is_an_error_that_says_what_it_lacks() {
    let other = warpline_softcuda::library_dir().unwrap().join("libcuda.so.1");
    in_child(&[("WARPLINE_CUBLAS", other.to_str().unwrap())], || {
        says(
            &refusal(multiply()),
            ErrorKind::Driver,
            &["libcuda.so.1, which cannot be loaded", "cublasGetProperty"],
        );
    });
}

#[test]
fn a_misspelt_variable_for_tf32_is_an_error_of_the_product() {
    in_child_with_cublas(&[("WARPLINE_ALLOW_TF32", "yes")], || {
        says(&refusal(multiply()), ErrorKind::Driver, &["WARPLINE_ALLOW_TF32 is \"yes\"; set it to 0 or 1"]);
        warpline::kernels::libraries::allow_tf32(false);
        multiply().blocking_wait().unwrap();
    });
}

#[test]
fn the_cpu_device_asks_no_library() {
    in_child_with_cublas(&[], || {
        let device = Device::open("cpu").unwrap();
        matrix([3, 4], 1, &device).matmul(matrix([4, 5], 2, &device)).blocking_wait().unwrap();
        assert_eq!(ran(), (0, 0));
    });
}
