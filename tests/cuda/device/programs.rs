//! Whole programs on a CUDA device: many streams, many tasks, several runtimes, every order mode.

use crate::device::{cuda, ramp};
use crate::support::software::in_child;
use crate::support::{says, unordered};
use std::time::Duration;
use warpline::prelude::*;
use warpline::{Result, Tensor, TensorOps, kernels};

/// Copies a vector on one stream and sums it on another, and sums a matrix product. Returns the sum
/// of both.
async fn small_program(device: &Device) -> Result<f32> {
    let (copy, compute) = (device.new_stream()?, device.new_stream()?);
    let mut host = device.pinned::<f32>(1000).await?;
    host.copy_from_slice(&ramp(1000));
    let (x, sent) = copy.copy_to_device(host)?;
    compute.wait_stream(&copy);
    let total = compute.scope(|| async { warpline::ops::sum(&x).await }).await?;
    assert_eq!(sent.await?.len(), 1000);
    let y = Tensor::ones([20, 30], device).queued()?;
    let product = y.matmul(Tensor::ones([30, 10], device)).sum().item::<f32>().await?;
    Ok(total + product)
}

const EXPECTED: f32 = 499_500.0 + 6_000.0;

#[test]
fn every_op_may_be_waited_for() {
    in_child(&[("CUDA_LAUNCH_BLOCKING", "1")], || {
        let device = cuda(0);
        assert_eq!(crate::support::block_on(small_program(&device)).unwrap(), EXPECTED);
        let stream = device.new_stream().unwrap();
        let x = stream.alloc::<f32>(8).unwrap();
        let ([waited], ()) = crate::support::raw::calls_in([c"cuStreamSynchronize"], || {
            drop(stream.fill(&x, -1.0));
            drop(stream.launch(kernels::relu(8, &x, &x), LaunchConfig::for_elements(8u32)));
        });
        assert_eq!(waited, 2);
        assert_eq!(stream.read(&x).blocking_wait().unwrap(), [0.0; 8]);
    });
}

#[test]
fn a_thousand_streams_with_work_each() {
    for completion in ["word", "event"] {
        in_child(&[("WARPLINE_COMPLETION", completion)], || {
            let device = cuda(0);
            let streams: Vec<_> = (0..1000).map(|_| device.new_stream().unwrap()).collect();
            let reads: Vec<_> = streams
                .iter()
                .enumerate()
                .map(|(i, stream)| {
                    let x = stream.alloc::<f32>(64).unwrap();
                    drop(stream.fill(&x, i as f32));
                    drop(stream.launch(kernels::relu(64, &x, &x), LaunchConfig::for_elements(64u32)));
                    stream.read(&x)
                })
                .collect();
            for (i, read) in reads.into_iter().enumerate() {
                match read.blocking_wait() {
                    Ok(values) => assert_eq!(values, [i as f32; 64]),
                    Err(error) => panic!("stream {i}: {error}"),
                }
            }
            drop(streams);
            assert_eq!(crate::support::block_on(small_program(&device)).unwrap(), EXPECTED);
        });
    }
}

/// Handles requests as a service does: most are answered, some are abandoned, and one is aborted.
async fn service() -> Result<()> {
    let device = Device::open("cuda:0")?;
    let pool = device.stream_pool(4).unwrap();
    let request = |i: usize| {
        let (pool, device) = (pool.clone(), device.clone());
        async move {
            let lease = pool.lease().await?;
            let mut host = device.pinned::<f32>(256).await?;
            host.fill(i as f32);
            let (x, _sent) = lease.copy_to_device(host)?;
            lease.scope(|| async move { warpline::ops::sum(&x).await }).await
        }
    };
    let tasks: Vec<_> = (0..200).map(|i| tokio::spawn(request(i))).collect();
    for (i, task) in tasks.into_iter().enumerate() {
        assert_eq!(task.await.expect("no task panics")?, 256.0 * i as f32);
    }

    // A deadline passes while the device is busy, a copy loses in `select!`, and a task is aborted.
    let stream = device.stream().label("held").build()?;
    let x = stream.alloc::<f32>(256)?;
    let gate = stream.hold()?;
    assert!(tokio::time::timeout(Duration::from_millis(20), stream.fill(&x, 1.0)).await.is_err());
    tokio::select! {
        biased;
        read = stream.read(&x) => panic!("the gate holds it: {read:?}"),
        () = tokio::task::yield_now() => {}
    }
    let waiting = tokio::spawn({
        let (stream, x) = (stream.clone(), x.clone());
        async move { stream.copy_to_host(&x).await.map(|host| host.len()) }
    });
    let aborted = tokio::spawn({
        let (stream, x) = (stream.clone(), x.clone());
        async move { stream.read(&x).await.map(|values| values.len()) }
    });
    tokio::task::yield_now().await;
    aborted.abort();
    assert!(aborted.await.unwrap_err().is_cancelled());
    gate.open();
    assert_eq!(waiting.await.expect("it does not panic")?, 256);
    assert_eq!(stream.read(&x).await?, [1.0; 256], "what was abandoned ran all the same");
    assert_eq!(small_program(&device).await?, EXPECTED);
    drop(x);
    device.synchronize().await?;
    assert_eq!(pool.available(), 4);
    assert_eq!(device.pinned_stats().allocated_bytes, 0);
    Ok(())
}

fn serve() {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    let answered = tokio.block_on(async { tokio::time::timeout(Duration::from_secs(60), service()).await });
    answered.expect("it does not hang").unwrap();
}

#[test]
fn a_service_of_many_tasks_with_every_way_to_wake_up() {
    for wake_up in ["low-power", "balanced", "low-latency"] {
        in_child(&[("WARPLINE_WAKE_UP", wake_up)], || {
            serve();
        });
    }
}

#[test]
fn a_service_of_many_tasks_that_completes_by_events() {
    in_child(&[("WARPLINE_COMPLETION", "event")], || {
        serve();
    });
}

#[test]
fn a_service_of_many_tasks_on_a_device_without_stream_memory_operations() {
    in_child(&[("SOFTCUDA_NO_MEMOPS", "1")], || {
        serve();
    });
}

#[test]
fn several_runtimes_share_a_device_and_nothing_else() {
    in_child(&[], || {
        let runtimes = [
            Runtime::new().unwrap(),
            Runtime::builder().order(OrderMode::Off).wake_up(warpline::WakeUp::LowLatency).build().unwrap(),
            Runtime::builder().complete_by_events().build().unwrap(),
        ];
        let devices = runtimes.each_ref().map(|runtime| runtime.device(DeviceId::Cuda(0)).unwrap());
        let all = [cuda(0)].into_iter().chain(devices.clone()).collect::<Vec<_>>();
        assert_eq!(
            all.iter().map(|device| device.properties().completion_words).collect::<Vec<_>>(),
            [true, true, true, false]
        );
        let threads: Vec<_> = all
            .iter()
            .cloned()
            .map(|device| {
                std::thread::spawn(move || {
                    for _ in 0..20 {
                        assert_eq!(crate::support::block_on(small_program(&device)).unwrap(), EXPECTED);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let [a, b] = [&devices[0], &devices[1]].map(|device| device.new_stream().unwrap());
        says(
            &a.wait_stream(&b).blocking_wait().unwrap_err(),
            ErrorKind::DeviceMismatch,
            &["of another runtime"],
        );
        let x = b.alloc::<f32>(8).unwrap();
        says(&a.fill(&x, 1.0).blocking_wait().unwrap_err(), ErrorKind::DeviceMismatch, &["cuda:0"]);

        // Shutting one runtime down leaves the other runtimes usable.
        let [first, second, third] = runtimes;
        let last = a.fill(&a.alloc::<f32>(8).unwrap(), 1.0);
        crate::support::block_on(first.shut_down()).unwrap();
        last.blocking_wait().unwrap();
        says(
            &a.call(|| ()).blocking_wait().unwrap_err(),
            ErrorKind::ShutDown,
            &["cuda:0 accepts no more work"],
        );
        drop((second, third));
        assert_eq!(crate::support::block_on(small_program(&cuda(0))).unwrap(), EXPECTED);
    });
}

#[test]
fn a_runtime_that_is_shut_down_while_a_gate_holds_its_stream_says_so() {
    in_child(&[], || {
        let runtime = Runtime::new().unwrap();
        let device = runtime.device(DeviceId::Cuda(0)).unwrap();
        let stream = device.stream().label("held").build().unwrap();
        let gate = stream.hold().unwrap();
        let waiting = stream.call(|| ());
        drop(runtime);
        says(
            &waiting.blocking_wait().unwrap_err(),
            ErrorKind::ShutDown,
            &["work in flight on stream \"held\""],
        );
        drop(gate);
    });
}

/// Enqueues a write on one stream and a read on another, which nothing orders. Returns the read,
/// and the stream of the write.
fn without_an_edge() -> (Pending<Vec<f32>>, Stream) {
    let device = cuda(0);
    let [a, b] = ["a", "b"].map(|label| device.stream().label(label).build().unwrap());
    let x = a.alloc::<f32>(1 << 16).unwrap();
    let gate = a.hold().unwrap();
    drop(a.fill(&x, 3.0));
    let read = b.read(&x);
    gate.open();
    (read, a)
}

#[test]
fn deny_refuses_what_is_not_ordered() {
    in_child(&[], || {
        let error = unordered(without_an_edge().0);
        says(&error, ErrorKind::Unordered, &["read on stream \"b\"", "call b.wait_stream(&a) before it"]);
    });
}

#[test]
fn warn_says_so_and_runs_it() {
    in_child(&[("WARPLINE_ORDER", "warn")], || {
        assert_eq!(without_an_edge().0.blocking_wait().unwrap().len(), 1 << 16);
    });
}

#[test]
fn wait_adds_the_edge_on_the_device() {
    in_child(&[("WARPLINE_ORDER", "wait")], || {
        let ([waits], (read, _a)) = crate::support::raw::calls_in([c"cuStreamWaitEvent"], without_an_edge);
        assert_eq!(waits, 1);
        assert_eq!(read.blocking_wait().unwrap(), [3.0; 1 << 16]);
    });
}

#[test]
fn off_checks_nothing() {
    in_child(&[("WARPLINE_ORDER", "off")], || {
        let ([waits], (read, a)) = crate::support::raw::calls_in([c"cuStreamWaitEvent"], without_an_edge);
        assert_eq!(waits, 0);
        assert_eq!(read.blocking_wait().unwrap().len(), 1 << 16);
        a.synchronize().blocking_wait().unwrap();
    });
}

#[test]
fn what_a_host_function_drops_is_let_go_although_it_may_not_call_the_driver() {
    in_child(&[], || {
        let device = cuda(0);
        let (stream, side) = (device.new_stream().unwrap(), device.stream().label("side").build().unwrap());
        let x = stream.alloc::<f32>(1 << 10).unwrap();
        side.wait_stream(&stream);
        drop(side.fill(&x, 1.0));
        let registered = device.pin(ramp(1 << 14)).unwrap();
        let gate = side.hold().unwrap();
        let pending = side.fill(&x, 2.0);
        // The last handle of a stream with work in flight, a buffer that the stream uses,
        // page-locked memory, and a `Pending`.
        let held = (side, x, registered, pending);
        let done = stream.call(move || drop(held));
        done.blocking_wait().unwrap();
        gate.open();
        device.synchronize().blocking_wait().unwrap();
        assert_eq!(device.fault().map(|error| error.to_string()), None);
        while device.bookkeeping().live_streams > 1 {
            std::thread::yield_now();
        }
        while crate::support::raw::calls(c"cuMemHostUnregister") == 0 {
            std::thread::yield_now();
        }
        assert_eq!(crate::support::block_on(small_program(&device)).unwrap(), EXPECTED);
    });
}

#[test]
fn a_host_function_that_enqueues_is_refused_and_nothing_else_is_lost() {
    in_child(&[], || {
        let device = cuda(0);
        let [stream, other] = ["calls", "other"].map(|label| device.stream().label(label).build().unwrap());
        let x = other.alloc::<f32>(8).unwrap();
        drop(other.fill(&x, 1.0));
        // While a `Pending` is held, a marker is written before the next op.
        let held = other.fill(&x, 2.0);
        let (inside, y) = (other.clone(), x.clone());
        let outcome = stream.call(move || {
            let filled = inside.fill(&y, 3.0).blocking_wait();
            // This is more than the allocator has cached.
            let more = inside.alloc::<u8>(64 << 20).map(drop);
            let pinned = inside.device().blocking_pinned::<f32>(1 << 20).map(drop);
            (filled, more, pinned)
        });
        let (filled, more, pinned) = outcome.blocking_wait().unwrap();
        let why = "a host function called it while the device waits for that";
        for error in [filled.unwrap_err(), more.unwrap_err(), pinned.unwrap_err()] {
            says(&error, ErrorKind::Reentrant, &[why]);
        }
        held.blocking_wait().unwrap();
        x.accept_contents();
        assert_eq!(other.read(&x).blocking_wait().unwrap(), [2.0; 8]);
    });
}
