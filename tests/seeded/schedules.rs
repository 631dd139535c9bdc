//! Schedules drawn from a seed. Each one is repeatable, different seeds give different ones, and a
//! pipeline that waits for something impossible is reported.

use crate::support::streams;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use warpline::prelude::*;
use warpline::testing::{for_each_seed, for_each_seed_on};
use warpline::{OrderMode, Result, kernels};
use warpline_test_counts::count;

/// Returns the order in which the host functions of three streams run. Each entry is a stream's
/// number.
fn order_of(seed: u64) -> Vec<usize> {
    let order = Arc::new(Mutex::new(Vec::new()));
    for_each_seed([seed], |device| {
        let order = order.clone();
        async move {
            let streams: Vec<_> = (0..3).map(|_| device.new_stream().unwrap()).collect();
            for n in 0..30 {
                let order = order.clone();
                drop(streams[n % 3].call(move || order.lock().unwrap().push((n % 3, n / 3))));
            }
            device.synchronize().await
        }
    });
    let order = Arc::into_inner(order).unwrap().into_inner().unwrap();
    for stream in 0..3 {
        let own: Vec<_> = order.iter().filter(|(of, _)| *of == stream).map(|(_, n)| *n).collect();
        assert_eq!(own, (0..10).collect::<Vec<_>>(), "within a stream it is the order of the calls");
    }
    order.into_iter().map(|(stream, _)| stream).collect()
}

#[test]
fn the_same_seed_gives_the_same_interleaving() {
    for seed in 0..50 {
        assert_eq!(order_of(seed), order_of(seed), "seed {seed}");
    }
}

#[test]
fn different_seeds_give_different_interleavings() {
    let orders: BTreeSet<_> = (0..200).map(order_of).collect();
    assert!(orders.len() > 20, "{} orders of 200 seeds", orders.len());
    for first in 0..3 {
        assert!(orders.iter().any(|order| order[0] == first), "stream {first} goes first");
        let all_of_it = |order: &&Vec<usize>| order[..10].iter().all(|&stream| stream == first);
        assert!(
            orders.iter().any(|order| all_of_it(&order)),
            "stream {first} runs to its end before the others"
        );
    }
}

fn panic_of(f: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(f)).expect_err("it should have panicked");
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast::<&str>().expect("a text").to_string(),
    }
}

const STUCK: &str = "it waits for something that cannot happen: no op can run and nothing wakes it";
const NOT_ITS_OWN: &str = "its devices have no work left, so it waits for a device of another \
    runtime (Device::best() and Device::open() are of the default one; use the device that the \
    closure receives), for another thread, for a task or timer of tokio's (use \
    for_each_seed_tokio), or for a lease or lock that it holds itself";

#[test]
fn a_pipeline_that_waits_for_ever_is_reported() {
    let behind_a_gate = panic_of(|| {
        for_each_seed([7], |device| async move {
            let held = device.stream().label("held").build()?;
            let behind = device.stream().label("behind").build()?;
            let _gate = held.hold()?;
            behind.wait_stream(&held);
            behind.call(|| ()).await
        });
    });
    let at = format!("seed 7: {STUCK}; stream \"held\" of cpu:0 is held by hold (tests/seeded/schedules.rs:");
    assert!(behind_a_gate.starts_with(&at), "{behind_a_gate}");
    assert!(!behind_a_gate.contains("\"behind\""), "it will follow when the gate opens: {behind_a_gate}");
    assert!(behind_a_gate.ends_with("; open the gate before awaiting the work behind it"), "{behind_a_gate}");
    let in_a_lease_queue = panic_of(|| {
        for_each_seed([8], |device| async move {
            let pool = device.stream_pool(1).unwrap();
            let _held = pool.lease().await?;
            pool.lease().await.map(drop)
        });
    });
    assert_eq!(in_a_lease_queue, format!("seed 8: {STUCK}; {NOT_ITS_OWN}"));
    let for_nothing = panic_of(|| for_each_seed([9], |_| std::future::pending()));
    assert_eq!(for_nothing, format!("seed 9: {STUCK}; {NOT_ITS_OWN}"));
}

#[test]
fn a_pipeline_that_waits_for_a_device_of_the_default_runtime_is_told_so() {
    let text = panic_of(|| {
        for_each_seed([10], |_| async {
            let stream = Device::best()?.new_stream()?;
            let _gate = stream.hold()?; // Otherwise a worker could run the call first.
            stream.call(|| ()).await
        });
    });
    assert_eq!(text, format!("seed 10: {STUCK}; {NOT_ITS_OWN}"));
}

#[test]
fn a_pipeline_that_needs_tokio_is_sent_to_the_harness_that_has_it() {
    let texts = [
        panic_of(|| {
            for_each_seed([11], |_| async {
                tokio::spawn(async {}).await.unwrap();
                Ok(())
            });
        }),
        panic_of(|| {
            for_each_seed([11], |_| async {
                tokio::time::sleep(Duration::from_millis(1)).await;
                Ok(())
            });
        }),
    ];
    for text in texts {
        assert_eq!(
            text,
            "seed 11: it uses tokio's tasks or timers, and for_each_seed runs none; use for_each_seed_tokio"
        );
    }
}

#[test]
fn a_pipeline_that_fails_is_reported_with_its_seed_and_its_error() {
    let text = panic_of(|| {
        for_each_seed(3..10, |device| async move {
            let (a, b) = (device.new_stream()?, device.stream().label("side").build()?);
            let x = a.alloc::<f32>(4)?;
            drop(a.fill(&x, 1.0));
            b.read(&x).await.map(drop)
        });
    });
    assert!(text.starts_with("seed 3: read on stream \"side\" (tests/seeded/schedules.rs:"), "{text}");
    assert!(text.contains("no edge orders them"), "{text}");
}

#[test]
fn a_race_that_only_some_seeds_show_is_found() {
    // With neither the check nor an edge, the seed decides what the reader sees.
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    for_each_seed_on(Runtime::builder().order(warpline::OrderMode::Off), 0..100, |devices| {
        let (device, seen) = (devices[0].clone(), seen.clone());
        async move {
            let (a, b) = (device.new_stream()?, device.new_stream()?);
            let x = a.alloc::<u32>(1)?;
            a.fill(&x, 0).await?;
            for step in 1..=5 {
                drop(a.fill(&x, step));
            }
            let value = b.read_one(&x).await?;
            seen.lock().unwrap().insert(value);
            a.synchronize().await
        }
    });
    let seen = seen.lock().unwrap();
    assert!(seen.contains(&0) && seen.contains(&5) && seen.len() >= 4, "{seen:?}");
}

#[test]
fn work_of_a_closed_stream_is_before_later_uses_in_every_mode() {
    for mode in [OrderMode::Deny, OrderMode::Warn, OrderMode::Wait, OrderMode::Off] {
        for_each_seed_on(Runtime::builder().order(mode), 0..count(30, 300), |devices| async move {
            let (stream, other) = (devices[0].new_stream()?, devices[0].new_stream()?);
            let [x, y] = [stream.alloc_zeroed::<u32>(4)?, stream.alloc_zeroed::<u32>(4)?];
            other.wait_stream(&stream);
            stream.fill(&x, 1).queued()?;
            let closed = devices[0].new_stream()?;
            closed.wait_stream(&stream);
            closed.fill(&x, 2).queued()?;
            closed.fill(&y, 3).queued()?;
            drop(closed);
            assert_eq!(stream.read(&x).await?, [2; 4], "{mode:?}");
            other.fill(&y, 4).queued()?;
            assert_eq!(other.read(&y).await?, [4; 4], "{mode:?}");
            Ok(())
        });
    }
}

#[test]
fn detached_work_is_drained_before_the_next_seed() {
    let ran = Arc::new(Mutex::new(Vec::new()));
    for_each_seed(0..20, |device| {
        let ran = ran.clone();
        async move {
            let (a, b) = (device.new_stream()?, device.new_stream()?);
            for _ in 0..5 {
                let ran = ran.clone();
                drop(a.call(|| ()));
                b.wait_stream(&a);
                drop(b.call(move || ran.lock().unwrap().push(())));
            }
            Ok(())
        }
    });
    assert_eq!(ran.lock().unwrap().len(), 100);
}

#[test]
fn detached_work_that_fails_is_reported() {
    let text = panic_of(|| {
        for_each_seed([4], |device| async move {
            drop(device.default_stream()?.call(|| panic!("on purpose")));
            Ok(())
        });
    });
    assert!(text.starts_with("seed 4: detached work failed: call on stream \"default\""), "{text}");
    let text = panic_of(|| {
        for_each_seed([4], |device| async move {
            drop(crate::support::break_device(&device.default_stream()?));
            Ok(())
        });
    });
    assert!(text.starts_with("seed 4: detached work failed: fails failed on stream \"default\""), "{text}");
}

#[test]
fn a_failure_prints_its_seed_and_the_interleaving_that_led_there() {
    const CHILD: &str = "FAIL_IN_A_SEED";
    if std::env::var_os(CHILD).is_some() {
        for_each_seed(0..5, |device| async move {
            let stream = device.stream().label("copies").build()?;
            let x = stream.alloc::<f32>(4)?;
            drop(stream.fill(&x, 1.0));
            stream.read(&x).await?;
            panic!("on purpose");
        });
    }
    // The test harness does not show the output of a test that passes, so this test runs itself in
    // a child process and fails there.
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "schedules::a_failure_prints_its_seed_and_the_interleaving_that_led_there",
            "--exact",
            "--nocapture",
        ])
        .env(CHILD, "1")
        .output()
        .unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr);
    for part in [
        "seed 0: it panicked; the interleaving was:",
        "  fill (tests/seeded/schedules.rs:",
        ") on stream \"copies\" of cpu:0, ticket 1",
        "  read (tests/seeded/schedules.rs:",
        ") on stream \"copies\" of cpu:0, ticket 2",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    assert!(!text.contains("seed 1:"), "it stops at the first failure");
}

const N: usize = 300;

fn batch(n: usize) -> Vec<f32> {
    (0..N).map(|i| ((i * 7 + n * 13) % 101) as f32 - 50.0).collect()
}

fn config() -> LaunchConfig {
    LaunchConfig::for_elements(N as u64)
}

/// Copies batches in on one stream, works on them on another, and reads the sums on a third.
async fn asynchronously(device: Device) -> Result<(Vec<f32>, Vec<f32>)> {
    let (copy, compute, out) = (device.new_stream()?, device.new_stream()?, device.new_stream()?);
    let model = compute.alloc::<f32>(N)?;
    drop(compute.fill(&model, 0.25));
    let mut sums = Vec::new();
    for n in 0..6 {
        let mut host = device.pinned::<f32>(N).await?;
        host.copy_from_slice(&batch(n));
        let (x, sent) = copy.copy_to_device(host)?;
        compute.wait_for(&x);
        drop(compute.launch(kernels::relu(N as u64, &x, &x), config()));
        drop(compute.launch(kernels::axpy(N as u64, 0.5, &x, &model), config()));
        let total = compute.alloc::<f32>(1)?;
        drop(compute.launch(kernels::sum(N as u64, &model, &total), config()));
        out.wait_event(&compute.record_event());
        sums.push(out.read_one(&total));
        if n % 2 == 1 {
            sent.await?;
        }
    }
    let model = compute.read(&model).await?;
    let mut totals = Vec::new();
    for sum in sums {
        totals.push(sum.await?);
    }
    Ok((model, totals))
}

/// Does the same work on one stream, and blocks after each step.
fn blocking(device: &Device) -> Result<(Vec<f32>, Vec<f32>)> {
    let stream = device.new_stream()?;
    let model = stream.alloc::<f32>(N)?;
    stream.fill(&model, 0.25).blocking_wait()?;
    let mut totals = Vec::new();
    for n in 0..6 {
        let mut host = device.blocking_pinned::<f32>(N)?;
        host.copy_from_slice(&batch(n));
        let (x, sent) = stream.copy_to_device(host)?;
        sent.blocking_wait()?;
        stream.launch(kernels::relu(N as u64, &x, &x), config()).blocking_wait()?;
        stream.launch(kernels::axpy(N as u64, 0.5, &x, &model), config()).blocking_wait()?;
        let total = stream.alloc::<f32>(1)?;
        stream.launch(kernels::sum(N as u64, &model, &total), config()).blocking_wait()?;
        totals.push(stream.read_one(&total).blocking_wait()?);
    }
    Ok((stream.read(&model).blocking_wait()?, totals))
}

#[test]
fn a_pipeline_gives_the_same_bytes_blocking_and_async_with_threads_and_with_every_seed() {
    let (_runtime, device, []) = streams([]);
    let expected = blocking(&device).unwrap();
    for _ in 0..20 {
        assert_eq!(crate::support::block_on(asynchronously(device.clone())).unwrap(), expected);
    }
    for_each_seed(0..200, |device| {
        let expected = &expected;
        async move {
            assert_eq!(asynchronously(device.clone()).await?, *expected);
            assert_eq!(blocking(&device)?, *expected);
            Ok(())
        }
    });
}

#[test]
fn a_copy_completes_while_compute_is_held_and_the_reverse() {
    async fn overlap(device: Device) -> Result<()> {
        let (copy, compute) = (device.new_stream()?, device.new_stream()?);
        let x = compute.alloc::<f32>(N)?;
        let mut host = device.pinned::<f32>(N).await?;
        host.fill(1.0);

        let gate = compute.hold()?;
        let mut filled = compute.fill(&x, 2.0);
        let (y, sent) = copy.copy_to_device(host)?;
        let host = sent.await?;
        assert!(!filled.query()?, "compute is still held");
        gate.open();
        filled.await?;

        let gate = copy.hold()?;
        let mut sent = copy.copy_into(&y, host);
        let summed = compute.enter(|| warpline::ops::sum(&x)).await?;
        assert_eq!(summed, 2.0 * N as f32);
        assert!(!sent.query()?, "the copy is still held");
        gate.open();
        sent.await.map(drop)
    }
    let (_runtime, device, []) = streams([]);
    crate::support::block_on(overlap(device)).unwrap();
    for_each_seed(0..100, overlap);
}

#[test]
fn several_devices_share_one_schedule() {
    for_each_seed_on(Runtime::builder().cpu_devices(3), 0..100, |devices| async move {
        let streams: Vec<_> = devices.iter().map(|device| device.new_stream().unwrap()).collect();
        let buffers: Vec<_> = streams.iter().map(|stream| stream.alloc::<f32>(8).unwrap()).collect();
        drop(streams[0].fill(&buffers[0], 4.0));
        for n in 0..2 {
            drop(streams[n].wait_stream(&streams[n + 1]));
            drop(streams[n].copy_buffer_peer(&buffers[n + 1], &buffers[n]));
            drop(streams[n + 1].wait_stream(&streams[n]));
        }
        assert_eq!(streams[2].read(&buffers[2]).await?, [4.0; 8]);
        Ok(())
    });
}

#[test]
fn a_gate_opened_by_a_host_function_of_another_stream_lets_the_pipeline_go_on() {
    for_each_seed(0..50, |device| async move {
        let (a, b) = (device.new_stream()?, device.new_stream()?);
        let gate = a.hold()?;
        let held = a.call(|| 5);
        drop(b.call(move || gate.open()));
        assert_eq!(held.await?, 5);
        Ok(())
    });
}

#[test]
fn a_timeout_of_the_executors_own_is_not_needed_where_tasks_wake_each_other() {
    for_each_seed(0..50, |device| async move {
        let stream = device.new_stream()?;
        let (sender, receiver) = futures::channel::oneshot::channel();
        let gate = stream.hold()?;
        let both = futures::join!(
            async {
                receiver.await.expect("the other half sends");
                gate.open();
            },
            async {
                sender.send(()).expect("the other half listens");
                stream.call(|| 3).await
            }
        );
        assert_eq!(both.1?, 3);
        Ok(())
    });
}

/// Detached copies wait for each other's page-locked memory, and run before the seed is over.
#[test]
fn copies_that_wait_for_memory_are_part_of_the_schedule() {
    let ran = Arc::new(AtomicUsize::new(0));
    let builder = Runtime::builder().pinned_cap(1 << 20);
    for_each_seed_on(builder, 0..8, |devices| {
        let ran = ran.clone();
        async move {
            let stream = devices[0].new_stream()?;
            for n in 0..8 {
                let x = stream.alloc::<u8>(1 << 20)?;
                stream.write(&x, &vec![n; 1 << 20]).detach();
            }
            stream.call(move || _ = ran.fetch_add(1, Ordering::Relaxed)).detach();
            Ok(())
        }
    });
    assert_eq!(ran.load(Ordering::Relaxed), 8);
}
