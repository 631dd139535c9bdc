//! NVTX ranges, by which a profiler observes ops while they are enqueued. Here the profiler is the
//! library of the software CUDA driver.

use crate::support::software::in_child;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use warpline::prelude::*;
use warpline::{reads, writes};

/// A call that a thread makes to the profiler.
#[derive(Debug, PartialEq)]
enum Told {
    Push { text: String, payload: u64 },
    Pop,
}
use Told::{Pop, Push};

/// Returns the path of the profiler, and that of the file that it writes for this test.
fn profiler(test: &str) -> (String, PathBuf) {
    let library = warpline_softcuda::library_dir().expect("the library was built with this test");
    let profiler = library.join("libcuda.so.1");
    (profiler.to_str().expect("UTF-8").to_owned(), library.with_file_name(format!("nvtx-{test}")))
}

/// Runs `body` in a child process with the profiler. Returns the calls that the profiler got for a
/// domain, by thread.
#[track_caller]
fn profiled<F: FnOnce()>(test: &str, domain: &str, body: F) -> HashMap<String, Vec<Told>> {
    let (library, file) = profiler(test);
    let _ = std::fs::remove_file(&file);
    let into = file.to_str().expect("UTF-8");
    in_child(&[("NVTX_INJECTION64_PATH", &library), ("SOFTCUDA_NVTX", into)], body);
    heard(&file, domain)
}

#[track_caller]
fn heard(file: &Path, domain: &str) -> HashMap<String, Vec<Told>> {
    let mut threads: HashMap<_, Vec<_>> = HashMap::new();
    for line in std::fs::read_to_string(file).expect("the profiler wrote").lines() {
        let (thread, told) = match line.split('\t').collect::<Vec<_>>()[..] {
            [thread, of, "push", payload, text] if of == domain => {
                (thread, Push { text: text.to_owned(), payload: payload.parse().expect("a number") })
            }
            [thread, of, "pop"] if of == domain => (thread, Pop),
            _ => panic!("{line:?}"),
        };
        threads.entry(thread.to_owned()).or_default().push(told);
    }
    threads
}

fn stream(label: &str) -> Stream {
    Device::open("cuda:0").unwrap().stream().label(label).build().unwrap()
}

#[test]
fn each_op_is_a_range_while_it_is_enqueued() {
    let threads = profiled("ops", "warpline", || {
        let stream = stream("work");
        crate::support::cache_pinned(&stream.device());
        let x = stream.alloc::<f32>(64).unwrap();
        stream.fill(&x, 1.0).blocking_wait().unwrap();
        let config = LaunchConfig::linear(1, 64);
        stream.launch(warpline::kernels::relu(64, &x, &x), config).blocking_wait().unwrap();
        assert_eq!(stream.read(&x).blocking_wait().unwrap(), [1.0; 64]);
    });
    let [told] = &threads.values().collect::<Vec<_>>()[..] else { panic!("{threads:?}") };
    let ops = told.chunks(2).map(|range| match range {
        [Push { text, payload }, Pop] => (text.as_str(), *payload),
        _ => panic!("{told:?}"),
    });
    for ((text, ticket), (op, expected)) in ops.zip([("fill", 1), ("relu", 2), ("read", 3)]) {
        assert!(text.starts_with(&format!("{op} on stream \"work\" (tests/cuda/nvtx.rs:")), "{text}");
        assert_eq!(ticket, expected);
    }
    assert_eq!(told.len(), 6);
}

#[test]
fn foreign_work_is_a_range_around_what_is_enqueued_meanwhile() {
    let threads = profiled("foreign", "warpline", || {
        let (stream, other) = (stream("work"), stream("other"));
        let x = other.alloc::<f32>(64).unwrap();
        let none: [&Buffer<f32>; 0] = [];
        // SAFETY: the closure enqueues nothing on the raw stream.
        let done = unsafe { stream.external(reads(none), writes(none), |_| drop(other.fill(&x, 1.0))) };
        done.blocking_wait().unwrap();
        other.fill(&x, 1.0).blocking_wait().unwrap();
    });
    let [told] = &threads.values().collect::<Vec<_>>()[..] else { panic!("{threads:?}") };
    let ops: Vec<_> = told
        .iter()
        .map(|told| match told {
            Push { text, payload } => (text.split(" (").next().expect("before the line"), *payload),
            Pop => ("", 0),
        })
        .collect();
    let (external, fill) = ("external on stream \"work\"", "fill on stream \"other\"");
    assert_eq!(ops, [(external, 1), (fill, 1), ("", 0), ("", 0), (fill, 2), ("", 0)]);
}

#[test]
fn a_range_ends_on_the_thread_that_began_it() {
    const FILLS: usize = 200;
    let threads = profiled("threads", "warpline", || {
        std::thread::scope(|scope| {
            for number in 0..8 {
                scope.spawn(move || {
                    let stream = stream(&number.to_string());
                    let x = stream.alloc::<f32>(64).unwrap();
                    (0..FILLS).for_each(|_| drop(stream.fill(&x, 1.0)));
                    stream.synchronize().blocking_wait().unwrap();
                });
            }
        });
    });
    assert_eq!(threads.len(), 8);
    let mut labels: Vec<_> = threads
        .values()
        .map(|told| {
            assert_eq!(told.len(), 2 * FILLS);
            let Push { text, .. } = &told[0] else { panic!("{told:?}") };
            for (at, range) in told.chunks(2).enumerate() {
                let expected = Push { text: text.clone(), payload: at as u64 + 1 };
                assert_eq!(range, [expected, Pop], "each of a thread's is of one line and one stream");
            }
            text.split('"').nth(1).expect("a label")
        })
        .collect();
    labels.sort_unstable();
    assert_eq!(labels, ["0", "1", "2", "3", "4", "5", "6", "7"]);
}

/// The warning about a profiler that does not work.
const UNHEARD: &str = "the named profiler could not be loaded";

/// Enqueues an op, and prints what is reported through `tracing` to stderr.
fn an_op_and_what_is_said(label: &str) {
    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::util::SubscriberInitExt;

    struct Says;
    impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Says {
        fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
            event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
                eprintln!("{field}: {value:?}");
            });
        }
    }
    tracing_subscriber::registry().with(Says).init();
    let stream = stream(label);
    let x = stream.alloc::<f32>(64).unwrap();
    stream.fill(&x, 1.0).blocking_wait().unwrap();
}

#[test]
fn nobody_hears_of_an_op_where_no_profiler_is_named() {
    let (_, file) = profiler("none");
    for named in ["", "./."] {
        let variables = [("NVTX_INJECTION64_PATH", named), ("SOFTCUDA_NVTX", file.to_str().unwrap())];
        let text = in_child(&variables, || an_op_and_what_is_said("work"));
        assert!(!text.contains(UNHEARD), "{text}");
        assert!(!file.exists());
    }
}

#[test]
fn a_profiler_that_does_not_take_part_is_let_be() {
    let (library, _) = profiler("");
    let text = in_child(&[("NVTX_INJECTION64_PATH", &library)], || an_op_and_what_is_said("work"));
    assert!(!text.contains(UNHEARD), "{text}");
}

#[test]
fn a_profiler_that_is_not_there_is_said_once_and_changes_nothing() {
    let text =
        in_child(&[("NVTX_INJECTION64_PATH", "/nowhere/profiler.so")], || an_op_and_what_is_said("work"));
    assert_eq!(text.matches(UNHEARD).count(), 1, "{text}");
    assert!(text.contains("NVTX_INJECTION64_PATH is /nowhere/profiler.so: "), "{text}");
}

/// Checks the profiler of these tests against NVIDIA's NVTX library, the other side of the
/// protocol.
#[test]
#[ignore = "needs NVIDIA's NVTX library, where WARPLINE_TEST_NVTX says"]
fn nvidias_library_tells_the_profiler_of_these_tests_the_same() {
    use std::ffi::{c_char, c_int, c_void};

    let threads = profiled("nvidia", "other", || {
        let library = std::env::var_os("WARPLINE_TEST_NVTX").expect("it says where");
        // SAFETY: `Library::new` runs initialisers, here those of NVIDIA's NVTX library.
        let library = unsafe { libloading::Library::new(library) }.unwrap();
        // SAFETY: nvToolsExt.h declares nvtxDomainCreateA with this type.
        let create = unsafe {
            library.get::<unsafe extern "C" fn(*const c_char) -> *mut c_void>(b"nvtxDomainCreateA")
        };
        // SAFETY: nvToolsExt.h declares nvtxDomainRangePushEx with this type, and its event
        // attributes with the layout of `Event`.
        let push = unsafe {
            library.get::<unsafe extern "C" fn(*mut c_void, *const Event) -> c_int>(b"nvtxDomainRangePushEx")
        };
        // SAFETY: nvToolsExt.h declares nvtxDomainRangePop with this type.
        let pop = unsafe { library.get::<unsafe extern "C" fn(*mut c_void) -> c_int>(b"nvtxDomainRangePop") };
        #[repr(C)]
        struct Event {
            version_and_size: [u16; 2],
            category_and_colour: [u32; 3],
            payload_type: [i32; 2],
            payload: u64,
            message_type: i32,
            message: *const c_char,
        }
        let event = Event {
            version_and_size: [3, size_of::<Event>() as u16],
            category_and_colour: [0; 3],
            payload_type: [1, 0],
            payload: 7,
            message_type: 1,
            message: c"a range".as_ptr(),
        };
        // SAFETY: nvtxDomainCreateA takes a string that ends with a NUL.
        let domain = unsafe { create.unwrap()(c"other".as_ptr()) };
        // SAFETY: nvtxDomainRangePushEx takes a live domain, and an event that it reads during the
        // call.
        unsafe { push.unwrap()(domain, &raw const event) };
        // SAFETY: nvtxDomainRangePop takes a live domain.
        unsafe { pop.unwrap()(domain) };
    });
    let told: Vec<_> = threads.into_values().collect();
    assert_eq!(told, [[Push { text: "a range".to_owned(), payload: 7 }, Pop]]);
}
