//! The host cost of CUDA calls: driver calls counted, and the time spent in the runtime itself.
//!
//! The driver is the software one, set to return from every call immediately. No work runs, and a
//! call that writes a word stores it before it returns. *Own time* is the time of a whole call
//! minus that of the same driver calls made by hand, in the same rounds: context checks, launches,
//! markers, records and waits. The same subtraction gives the own time of cudarc's safe interface,
//! in the same rounds.
//!
//! With `--device real` the bench runs on the machine's own driver and GPU, counts nothing and
//! gives no verdict. There it enqueues few ops at a time and waits for the device between the
//! parties, because a launch into a full queue waits for the device.

mod support;

use cudarc::driver::{CudaContext, CudaFunction, CudaSlice, CudaStream, PushKernelArg, result, sys};
use cudarc::nvrtc::Ptx;
use std::cell::Cell;
use std::ffi::{CStr, CString, c_void};
use std::future::Future;
use std::hint::black_box;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use support::gpu_kernels::{TOUCH_TWO, touch_two};
use support::measure::{cpu_ns, difference};
use support::software::{self, Counts, entry_point};
use support::{ONE, Options, Sample, Table, TwoThreads, instructions, ns};
use warpline::prelude::*;

const LEN: usize = 1024;
/// The number of ops between two waits for a real device.
const AT_A_TIME: usize = 256;

type LaunchKernel = unsafe extern "C" fn(
    sys::CUfunction,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    sys::CUstream,
    *mut *mut c_void,
    *mut *mut c_void,
) -> u32;

/// `CU_MEMHOSTALLOC_PORTABLE`
const PORTABLE: u32 = 1;
/// `CU_MEMHOSTALLOC_DEVICEMAP`
const MAPPED: u32 = 2;

/// Returns an entry point that every driver has.
fn entry<F: Copy>(name: &str) -> F {
    // SAFETY: each caller asks for the type that the headers of the CUDA Driver API declare for
    // this name.
    unsafe { entry_point(name) }.unwrap_or_else(|| panic!("the driver has no {name}"))
}

/// The driver calls of an op, made by hand on streams of their own.
struct ByHand {
    get_current: unsafe extern "C" fn(*mut sys::CUcontext) -> u32,
    launch: LaunchKernel,
    write: unsafe extern "C" fn(sys::CUstream, u64, u64, u32) -> u32,
    record: unsafe extern "C" fn(sys::CUevent, sys::CUstream) -> u32,
    wait: unsafe extern "C" fn(sys::CUstream, sys::CUevent, u32) -> u32,
    create_event: unsafe extern "C" fn(*mut sys::CUevent, u32) -> u32,
    destroy_event: unsafe extern "C" fn(sys::CUevent) -> u32,
    synchronize: unsafe extern "C" fn(sys::CUstream) -> u32,
    alloc: unsafe extern "C" fn(*mut u64, usize, sys::CUstream) -> u32,
    free: unsafe extern "C" fn(u64, sys::CUstream) -> u32,
    function: sys::CUfunction,
    streams: [sys::CUstream; 2],
    event: sys::CUevent,
    /// The device address of the word that markers write.
    word: u64,
    buffers: [u64; 2],
    written: Cell<u64>,
}

impl ByHand {
    /// Makes the streams and buffers in the current context. The caller has opened a device on this
    /// thread.
    fn new() -> Self {
        let text = |text: &str| CString::new(text).expect("text without NUL");
        // SAFETY: cuModuleLoadData takes PTX text that ends with a NUL.
        let module = unsafe { result::module::load_data(text(TOUCH_TWO).as_ptr().cast()) }.expect("it loads");
        let (mut host, mut word) = (std::ptr::null_mut(), 0);
        // SAFETY: cuMemHostAlloc writes an address.
        assert_eq!(unsafe { sys::cuMemHostAlloc(&raw mut host, 4096, PORTABLE | MAPPED) } as u32, 0);
        // SAFETY: cuMemHostGetDevicePointer takes mapped host memory and writes an address.
        assert_eq!(unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut word, host, 0) } as u32, 0);
        let untimed = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        ByHand {
            get_current: entry("cuCtxGetCurrent"),
            launch: entry("cuLaunchKernel"),
            write: entry("cuStreamWriteValue64_v2"),
            record: entry("cuEventRecord"),
            wait: entry("cuStreamWaitEvent"),
            create_event: entry("cuEventCreate"),
            destroy_event: entry("cuEventDestroy_v2"),
            synchronize: entry("cuStreamSynchronize"),
            alloc: entry("cuMemAllocAsync"),
            free: entry("cuMemFreeAsync"),
            // SAFETY: the module was loaded above and is never unloaded.
            function: unsafe { result::module::get_function(module, text("touch_two")) }
                .expect("it is there"),
            streams: [(); 2]
                .map(|()| result::stream::create(result::stream::StreamKind::NonBlocking).expect("a stream")),
            event: result::event::create(untimed).expect("an event"),
            word,
            // SAFETY: the memory is uninitialised, and only a kernel that accepts any bytes reads
            // it.
            buffers: [(); 2].map(|()| unsafe { result::malloc_sync(4 * LEN) }.expect("memory")),
            written: Cell::new(0),
        }
    }

    fn check_context(&self) {
        let mut current = std::ptr::null_mut();
        // SAFETY: cuCtxGetCurrent writes a context.
        unsafe { (self.get_current)(&raw mut current) };
        black_box(current);
    }

    fn launch(&self) {
        let (mut k, [mut x, mut y]) = (0.5f32, self.buffers);
        let mut params = [(&raw mut k).cast::<c_void>(), (&raw mut x).cast(), (&raw mut y).cast()];
        let none = std::ptr::null_mut();
        // SAFETY: the parameters are those of the kernel, and the buffers are long enough.
        let code = unsafe {
            (self.launch)(self.function, 1, 1, 1, 32, 1, 1, 0, self.streams[0], params.as_mut_ptr(), none)
        };
        assert_eq!(code, 0);
    }

    fn mark(&self) {
        self.written.set(self.written.get() + 1);
        // SAFETY: the stream is live, and the word is in host memory that is never freed.
        assert_eq!(unsafe { (self.write)(self.streams[0], self.word, self.written.get(), 0) }, 0);
    }

    fn record(&self) {
        // SAFETY: event and stream are live.
        assert_eq!(unsafe { (self.record)(self.event, self.streams[0]) }, 0);
    }

    fn wait(&self) {
        // SAFETY: event and stream are live.
        assert_eq!(unsafe { (self.wait)(self.streams[1], self.event, 0) }, 0);
    }

    fn create_and_destroy(&self) {
        let mut event = std::ptr::null_mut();
        // SAFETY: cuEventCreate writes an event.
        unsafe { (self.create_event)(&raw mut event, 2) };
        // SAFETY: cuEventDestroy takes a live event, and no call uses this one any more.
        unsafe { (self.destroy_event)(event) };
    }

    /// Launches `times` times, with a marker after every 64th launch, as a Warpline stream writes
    /// them.
    fn launches(&self, times: usize) {
        for at in 0..times {
            self.check_context();
            self.launch();
            if at % 64 == 63 {
                self.mark();
            }
        }
    }

    fn launch_and_mark(&self) {
        self.check_context();
        self.launch();
        self.check_context();
        self.mark();
    }

    fn synchronize(&self) {
        // SAFETY: the stream is live.
        unsafe { (self.synchronize)(self.streams[0]) };
    }

    fn alloc_and_free(&self) {
        let mut address = 0;
        // SAFETY: cuMemAllocAsync writes an address.
        unsafe { (self.alloc)(&raw mut address, 4 * LEN, self.streams[0]) };
        // SAFETY: cuMemFreeAsync takes an address from cuMemAllocAsync, and no work uses this
        // memory.
        unsafe { (self.free)(address, self.streams[0]) };
    }
}

/// The kernel, run through cudarc.
struct Rival {
    function: CudaFunction,
    streams: [Arc<CudaStream>; 2],
    x: CudaSlice<f32>,
    y: CudaSlice<f32>,
}

impl Rival {
    fn new(tracked: bool) -> Self {
        let context = CudaContext::new(0).expect("the device is there");
        if !tracked {
            // SAFETY: without tracking, the program orders the uses of a slice. One stream uses
            // these slices.
            unsafe { context.disable_event_tracking() };
        }
        let function = context
            .load_module(Ptx::from_src(TOUCH_TWO))
            .and_then(|module| module.load_function("touch_two"));
        let streams = [(); 2].map(|()| context.new_stream().expect("a stream"));
        let buffer = || streams[0].alloc_zeros::<f32>(LEN).expect("memory");
        Rival { function: function.expect("it loads"), x: buffer(), y: buffer(), streams }
    }

    fn launch(&mut self) {
        let k = black_box(0.5f32);
        let config =
            cudarc::driver::LaunchConfig { grid_dim: (1, 1, 1), block_dim: (32, 1, 1), shared_mem_bytes: 0 };
        let mut launch = self.streams[0].launch_builder(&self.function);
        launch.arg(&k).arg(&self.x).arg(&mut self.y);
        // SAFETY: the arguments are those of the kernel, and the buffers are long enough.
        unsafe { launch.launch(config) }.expect("it is taken");
    }

    fn alloc_and_free(&self) {
        // SAFETY: the memory is uninitialised, and nothing reads it.
        drop(black_box(unsafe { self.streams[0].alloc::<f32>(LEN) }.expect("memory")));
    }
}

/// The kernel, run through Warpline.
struct Ours {
    streams: [Stream; 2],
    x: Buffer<f32>,
    y: Buffer<f32>,
}

impl Ours {
    fn new(device: &Device) -> Self {
        let streams = [(); 2].map(|()| device.new_stream().expect("a stream"));
        let buffer = || {
            let buffer = streams[0].alloc::<f32>(LEN).expect("memory");
            streams[0].fill(&buffer, 1.0).blocking_wait().expect("it runs");
            buffer
        };
        Ours { x: buffer(), y: buffer(), streams }
    }

    #[inline]
    fn launch(&self) -> Pending<()> {
        self.streams[0].launch(touch_two(black_box(0.5), &self.x, &self.y), ONE)
    }

    fn launch_and_await(&self) {
        let mut pending = self.launch();
        let mut context = Context::from_waker(Waker::noop());
        while Pin::new(&mut pending).poll(&mut context).map(|done| done.expect("it runs")).is_pending() {
            std::hint::spin_loop();
        }
    }

    fn alloc_and_free(&self) {
        drop(black_box(self.streams[0].alloc::<f32>(LEN).expect("memory")));
    }

    /// Launches, and lets the other stream wait for the launch. The `Pending` is dropped, so only
    /// every 64th launch has a marker. The runtime therefore cannot see that the launch has
    /// finished, and the wait is a driver call.
    fn launch_and_wait(&self) {
        self.launch().detach();
        self.streams[1].wait_stream(&self.streams[0]);
    }
}

/// A party of a comparison: its op, and the driver calls of that op made by hand.
struct Party<'a> {
    name: &'a str,
    whole: &'a mut dyn FnMut(usize),
    by_hand: &'a mut dyn FnMut(usize),
}

/// The result of one party, in nanoseconds per op.
struct Figures {
    name: String,
    whole: Sample,
    own: Sample,
    /// Driver calls and context checks per op.
    calls: Option<[f64; 2]>,
}

struct Bench {
    counts: Counts,
    times: usize,
    rounds: usize,
}

impl Bench {
    /// Runs the parties alternately, in an order that changes from round to round.
    fn compare<const N: usize>(&self, parties: [Party<'_>; N]) -> [Figures; N] {
        let mut wholes = [(); N].map(|()| Sample::default());
        let mut hands = [(); N].map(|()| Sample::default());
        for round in 0..=self.rounds {
            for at in 0..N {
                let at = (at + round) % N;
                let whole = self.ns(parties[at].whole);
                let by_hand = self.ns(parties[at].by_hand);
                if round > 0 {
                    wholes[at].0.push(whole);
                    hands[at].0.push(by_hand);
                }
            }
        }
        let mut samples = wholes.into_iter().zip(hands);
        parties.map(|party| {
            let (whole, by_hand) = samples.next().expect("one a party");
            let own = difference(&whole, &by_hand);
            Figures { name: party.name.to_owned(), whole, own, calls: self.calls(party.whole) }
        })
    }

    /// Returns the nanoseconds per op. On the software driver no call sleeps, so the CPU time of
    /// the thread counts, which does not depend on the load on the machine. On a real device the
    /// time to enqueue counts, without the waits for the device.
    fn ns(&self, work: &mut dyn FnMut(usize)) -> f64 {
        if self.counts.are_kept() {
            return cpu_ns(self.times, || work(self.times));
        }
        let mut total = 0.0;
        for begun in (0..self.times).step_by(AT_A_TIME) {
            let batch = AT_A_TIME.min(self.times - begun);
            total += ns(self.times, || work(batch));
            synchronize();
        }
        total
    }

    /// Returns whether a target is met, or `None` on a real device.
    fn verdict(&self, met: bool) -> Option<bool> {
        self.counts.are_kept().then_some(met)
    }

    /// Returns the number of driver calls per op, which are those in `COUNTED`, and of context
    /// checks. A real driver does not count them.
    fn calls(&self, each: &mut dyn FnMut(usize)) -> Option<[f64; 2]> {
        const TIMES: usize = 6_400;
        if !self.counts.are_kept() {
            return None;
        }
        let mut checks = [0];
        let counted = self.counts.during(COUNTED, || {
            checks = self.counts.during([c"cuCtxGetCurrent"], || each(TIMES));
        });
        Some([counted.iter().sum(), checks[0]].map(|calls: u64| calls as f64 / TIMES as f64))
    }
}

const COUNTED: [&CStr; 12] = [
    c"cuLaunchKernel",
    c"cuStreamWriteValue64_v2",
    c"cuStreamSynchronize",
    c"cuStreamQuery",
    c"cuEventRecord",
    c"cuStreamWaitEvent",
    c"cuEventCreate",
    c"cuEventDestroy_v2",
    c"cuMemAllocAsync",
    c"cuMemFreeAsync",
    c"cuMemAlloc_v2",
    c"cuCtxSetCurrent",
];

/// Waits for all work of the current context.
fn synchronize() {
    // SAFETY: cuCtxSynchronize takes no arguments.
    assert_eq!(unsafe { sys::cuCtxSynchronize() } as u32, 0);
}

/// Prints the own time of Warpline with its goal, then the rows of all parties: own time, whole
/// time, driver calls.
fn rows<const N: usize>(bench: &Bench, table: &Table, what: &str, figures: &[Figures; N], most: Option<f64>) {
    for (at, party) in figures.iter().enumerate() {
        let most = most.filter(|_| at == 0);
        let goal = most.map_or(String::new(), |most| format!("≤ {most}"));
        let met = most.and_then(|most| bench.verdict(party.own.median() <= most));
        let what = format!("{what}, {}", party.name);
        table.row(&format!("{what}: own time"), "ns", &party.own, &goal, None, met);
        table.report(&format!("{what}: with the driver calls"), "ns", &party.whole);
        if let Some([calls, checks]) = party.calls {
            table.report(&format!("{what}: driver calls"), "", calls);
            table.report(&format!("{what}: context checks"), "", checks);
        }
    }
}

fn again(mut each: impl FnMut()) -> impl FnMut(usize) {
    move |times| (0..times).for_each(|_| each())
}

/// Runs one loop, for callgrind.
fn repeat(name: &str, times: usize, ours: &Ours, hand: &ByHand, rivals: &mut [Rival; 2]) {
    let [tracked, untracked] = rivals;
    match name {
        "launch" => again(|| drop(ours.launch()))(times),
        "launch-by-hand" => hand.launches(times),
        "await" => again(|| ours.launch_and_await())(times),
        "await-by-hand" => again(|| hand.launch_and_mark())(times),
        "tracked" => again(|| tracked.launch())(times),
        "untracked" => again(|| untracked.launch())(times),
        "wait" => again(|| ours.launch_and_wait())(times),
        "implied" => again(|| drop(ours.streams[1].wait_stream(&ours.streams[0])))(times),
        "alloc" => again(|| ours.alloc_and_free())(times),
        _ => panic!("no loop is called {name}"),
    }
}

fn main() {
    // Valgrind has no address space for the software driver's default device memory of 8 GiB.
    software::find_it(&[("SOFTCUDA_IMMEDIATE", "1"), ("SOFTCUDA_MEMORY", "67108864")]);
    let options = Options::from_command_line();
    let runtime = Runtime::builder().order(OrderMode::Deny).build().expect("a runtime");
    let device = runtime.device(DeviceId::Cuda(0)).expect("a CUDA device");
    let ours = Ours::new(&device);
    let hand = ByHand::new();
    let mut rivals = [Rival::new(true), Rival::new(false)];
    if let Some((name, times)) = &options.only {
        return repeat(name, *times as usize, &ours, &hand, &mut rivals);
    }
    let [tracked, untracked] = &mut rivals;
    let counts = Counts::new();
    assert!(
        !counts.are_kept() || std::env::var_os("SOFTCUDA_IMMEDIATE").is_some(),
        "the software driver would run the kernels; set SOFTCUDA_IMMEDIATE=1"
    );
    let (over, times) = if counts.are_kept() {
        ("a driver whose calls return at once", 100_000)
    } else {
        ("a GPU's driver", 8 * AT_A_TIME)
    };
    let table = Table::new(&format!("cuda_calls: what calls cost the host, over {over} (ns)"));
    let bench = Bench { counts, times: options.scaled(times), rounds: options.rounds(21) };

    let figures = bench.compare([
        Party {
            name: "warpline",
            whole: &mut again(|| drop(ours.launch())),
            by_hand: &mut |times| hand.launches(times),
        },
        Party {
            name: "cudarc",
            whole: &mut again(|| tracked.launch()),
            by_hand: &mut again(|| {
                (0..6).for_each(|_| hand.check_context());
                (0..3).for_each(|_| hand.wait());
                hand.launch();
                (0..2).for_each(|_| hand.record());
            }),
        },
        Party {
            name: "cudarc without tracking",
            whole: &mut again(|| untracked.launch()),
            by_hand: &mut again(|| {
                hand.check_context();
                hand.launch();
            }),
        },
    ]);
    rows(&bench, &table, "launch with two buffers and a scalar", &figures, Some(120.0));

    let figures = bench.compare([
        Party {
            name: "warpline",
            whole: &mut again(|| ours.launch_and_await()),
            by_hand: &mut again(|| hand.launch_and_mark()),
        },
        Party {
            name: "cudarc without tracking, launch and synchronize",
            whole: &mut again(|| {
                untracked.launch();
                untracked.streams[0].synchronize().expect("it runs");
            }),
            by_hand: &mut again(|| {
                hand.check_context();
                hand.launch();
                hand.check_context();
                hand.synchronize();
            }),
        },
    ]);
    rows(&bench, &table, "launch with two buffers and a scalar, awaited when done", &figures, Some(150.0));

    let mut another = Rival::new(false);
    let [ours_waits, cudarc_joins, ours_alone, cudarc_alone] = bench.compare([
        Party {
            name: "warpline",
            whole: &mut again(|| ours.launch_and_wait()),
            by_hand: &mut again(|| {
                hand.check_context();
                hand.launch();
                hand.check_context();
                hand.record();
                hand.check_context();
                hand.wait();
            }),
        },
        Party {
            name: "cudarc without tracking, launch and join",
            whole: &mut again(|| {
                untracked.launch();
                untracked.streams[1].join(&untracked.streams[0]).expect("it is taken");
            }),
            by_hand: &mut again(|| {
                (0..4).for_each(|_| hand.check_context());
                hand.launch();
                hand.create_and_destroy();
                hand.record();
                hand.wait();
            }),
        },
        Party {
            name: "warpline, the launch alone",
            whole: &mut again(|| drop(ours.launch())),
            by_hand: &mut |_| (),
        },
        Party {
            name: "cudarc, the launch alone",
            whole: &mut again(|| another.launch()),
            by_hand: &mut |_| (),
        },
    ]);
    let beyond = difference(&ours_waits.whole, &ours_alone.whole);
    let rival = difference(&cudarc_joins.whole, &cudarc_alone.whole).median();
    let figures = [ours_waits, cudarc_joins];
    rows(&bench, &table, "a launch, and another stream waits for it", &figures, None);
    table.row(
        "a launch, and another stream waits for it: beyond the launch",
        "ns",
        &beyond,
        "≤ 100",
        Some(("cudarc's join, which keeps no clocks", rival.into())),
        bench.verdict(beyond.median() <= 100.0),
    );

    let figures = bench.compare([
        Party {
            name: "warpline",
            whole: &mut again(|| drop(ours.streams[1].wait_stream(&ours.streams[0]))),
            by_hand: &mut |_| (),
        },
        Party {
            name: "cudarc join",
            whole: &mut again(|| untracked.streams[1].join(&untracked.streams[0]).expect("it is taken")),
            by_hand: &mut again(|| {
                (0..3).for_each(|_| hand.check_context());
                hand.create_and_destroy();
                hand.record();
                hand.wait();
            }),
        },
    ]);
    rows(&bench, &table, "a wait that is implied", &figures, None);

    let figures = bench.compare([
        Party { name: "warpline", whole: &mut again(|| ours.alloc_and_free()), by_hand: &mut |_| () },
        Party {
            name: "cudarc",
            whole: &mut again(|| tracked.alloc_and_free()),
            by_hand: &mut again(|| hand.alloc_and_free()),
        },
        Party {
            name: "cudarc without tracking",
            whole: &mut again(|| untracked.alloc_and_free()),
            by_hand: &mut again(|| hand.alloc_and_free()),
        },
    ]);
    rows(&bench, &table, "4 KiB allocated and freed, cache hit", &figures, None);

    let own = |name: &str, by_hand: &str| {
        Some((instructions::count(name)?.total, instructions::count(by_hand)?.total))
    };
    for (what, name, by_hand) in [
        ("launch with two buffers and a scalar", "launch", "launch-by-hand"),
        ("launch with two buffers and a scalar, awaited when done", "await", "await-by-hand"),
    ] {
        if let Some((whole, by_hand)) = own(name, by_hand) {
            let what = format!("{what}, warpline");
            table.report(&format!("{what}: own instructions"), "", whole - by_hand);
            table.report(&format!("{what}: instructions with the driver calls"), "", whole);
        }
    }

    // Two threads at full speed would fill the queues of a real device.
    if !bench.counts.are_kept() {
        return;
    }
    let step = |ours: &Ours| (0..1_000).for_each(|_| drop(ours.launch()));
    TwoThreads::measure(options.rounds(9), 1_000, |_| Ours::new(&device), step).print(
        &table,
        "two threads that launch on two streams of a CUDA device",
        1.7,
    );
}
