//! Seeded runs inside tokio. Tasks and timers take part, the clock advances when nothing else can
//! run, and nothing hangs.

use crate::support::within_a_minute;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, interval, sleep, timeout};
use warpline::ops::data::InMemory;
use warpline::prelude::*;
use warpline::testing::{for_each_seed_tokio, for_each_seed_tokio_on};
use warpline_outside_driver::ThreadDevice;

const SECOND: Duration = Duration::from_secs(1);

fn panic_of(f: impl FnOnce() + Send + 'static) -> String {
    let panic = within_a_minute(|| catch_unwind(AssertUnwindSafe(f)).expect_err("it should have panicked"));
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast::<&str>().expect("a text").to_string(),
    }
}

/// Returns the order in which three tasks observe that their ops have finished.
fn order_of(seed: u64) -> Vec<usize> {
    let order = Arc::new(Mutex::new(Vec::new()));
    for_each_seed_tokio([seed], |device| {
        let order = order.clone();
        async move {
            let tasks = (0..3).map(|n| {
                let (order, stream) = (order.clone(), device.new_stream().unwrap());
                tokio::spawn(async move {
                    for _ in 0..5 {
                        stream.call(|| ()).await.unwrap();
                        order.lock().unwrap().push(n);
                    }
                })
            });
            for task in tasks.collect::<Vec<_>>() {
                task.await.unwrap();
            }
            Ok(())
        }
    });
    Arc::into_inner(order).unwrap().into_inner().unwrap()
}

#[test]
fn the_same_seed_gives_tasks_the_same_interleaving_and_another_seed_another() {
    let orders: BTreeSet<_> = (0..100).map(order_of).collect();
    assert!(orders.len() > 10, "{} orders of 100 seeds", orders.len());
    for seed in 0..20 {
        assert_eq!(order_of(seed), order_of(seed), "seed {seed}");
    }
}

#[test]
fn a_deadline_passes_while_the_device_is_held_and_never_while_it_can_run() {
    for_each_seed_tokio(0..20, |device| async move {
        let stream = device.new_stream()?;
        for _ in 0..50 {
            timeout(Duration::from_millis(1), stream.call(|| ())).await.expect("faster than any timer")?;
        }
        let gate = stream.hold()?;
        let mut held = stream.call(|| 7);
        let began = Instant::now();
        assert!(timeout(SECOND, &mut held).await.is_err());
        assert_eq!(began.elapsed().as_secs(), 1);
        gate.open();
        assert_eq!(timeout(SECOND, held).await.expect("nothing holds it")?, 7);
        Ok(())
    });
}

#[test]
fn what_a_task_enqueues_and_drops_runs_while_every_task_waits() {
    for_each_seed_tokio(0..20, |device| async move {
        let (sender, receiver) = oneshot::channel();
        let stream = device.new_stream()?;
        tokio::spawn(async move {
            sleep(SECOND).await;
            drop(stream.call(move || sender.send(3)));
            sleep(SECOND * 1000).await;
        });
        let began = Instant::now();
        assert_eq!(receiver.await.unwrap(), 3);
        assert_eq!(began.elapsed().as_secs(), 1, "the op runs before the clock moves again");
        Ok(())
    });
}

#[test]
fn the_pipeline_may_spawn_before_its_first_await() {
    for_each_seed_tokio(0..3, |device| {
        let task = tokio::spawn(async move { device.new_stream()?.call(|| 1).await });
        async move {
            assert_eq!(task.await.unwrap()?, 1);
            Ok(())
        }
    });
}

#[test]
fn a_loader_reads_for_a_task() {
    for_each_seed_tokio(0..20, |device| async move {
        let (copy, compute) = (device.new_stream()?, device.new_stream()?);
        let dataset = InMemory::new(1, vec![1.0; 20], vec![0; 20])?;
        let task = tokio::spawn(async move {
            let mut batches = Loader::new(dataset).batch_size(8).on(&copy).build()?;
            let mut total = 0.0;
            while let Some(batch) = batches.next().await {
                let batch = batch?;
                compute.wait_event(&batch.copied);
                total += compute.enter(|| batch.tensors().0.sum().item::<f32>()).await?;
            }
            Ok::<_, Error>(total)
        });
        assert_eq!(task.await.unwrap()?, 20.0);
        Ok(())
    });
}

#[test]
fn several_devices_and_other_order_modes_can_be_had() {
    let builder = Runtime::builder().cpu_devices(2).order(OrderMode::Off);
    for_each_seed_tokio_on(builder, 0..10, |devices| async move {
        let tasks = devices.into_iter().map(|device| {
            tokio::spawn(async move {
                let (a, b) = (device.new_stream()?, device.new_stream()?);
                let x = a.alloc::<f32>(4)?;
                a.fill(&x, 1.0).queued()?;
                b.read(&x).await.map(drop)
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap()?;
        }
        Ok(())
    });
}

#[test]
fn nothing_of_a_run_is_left_after_it() {
    // Everything that keeps a device alive keeps its health alive.
    let healths = Arc::new(Mutex::new(Vec::new()));
    let opened = healths.clone();
    let builder = Runtime::builder().driver(move |health| {
        opened.lock().unwrap().push(Arc::downgrade(&health));
        Ok(ThreadDevice::open(0, health))
    });
    for_each_seed_tokio_on(builder, 0..3, |devices| async move {
        let stream = devices[0].new_stream()?;
        let x = stream.alloc::<f32>(4)?;
        stream.fill(&x, 1.0).await?;
        tokio::spawn(async move { stream.read(&x).await.map(|_| std::future::pending::<()>()) });
        Ok(())
    });
    let healths = healths.lock().unwrap();
    assert_eq!(healths.len(), 3);
    assert!(healths.iter().all(|health| health.upgrade().is_none()), "a run has left a device");
}

const STUCK: &str =
    "it waits for something that cannot happen: it has not ended after a day on the paused clock";

#[test]
fn a_pipeline_that_waits_for_ever_is_reported_and_does_not_hang() {
    let for_nothing = panic_of(|| for_each_seed_tokio([1], |_| std::future::pending()));
    assert!(
        for_nothing.starts_with(&format!("seed 1: {STUCK}; its devices have no work left")),
        "{for_nothing}"
    );
    assert!(!for_nothing.contains("for_each_seed_tokio"), "this is the one: {for_nothing}");

    let beside_a_clock = panic_of(|| {
        for_each_seed_tokio([2], |_| {
            tokio::spawn(async {
                let mut ticks = interval(SECOND);
                loop {
                    ticks.tick().await;
                }
            });
            std::future::pending()
        });
    });
    assert!(beside_a_clock.starts_with(&format!("seed 2: {STUCK}")), "{beside_a_clock}");

    let in_a_task = panic_of(|| {
        for_each_seed_tokio([3], |device| async move {
            let stream = device.stream().label("held").build()?;
            let _gate = stream.hold()?;
            tokio::spawn(stream.call(|| ())).await.unwrap()
        });
    });
    let text = format!("seed 3: {STUCK}; stream \"held\" of cpu:0 is held by hold (tests/seeded/tokio.rs:");
    assert!(in_a_task.starts_with(&text), "{in_a_task}");
}

#[test]
fn a_pipeline_that_fails_is_reported_with_its_seed() {
    let error = panic_of(|| {
        for_each_seed_tokio(4..9, |device| async move {
            let (a, b) = (device.new_stream()?, device.new_stream()?);
            let x = a.alloc::<f32>(4)?;
            drop(a.fill(&x, 1.0));
            tokio::spawn(b.read(&x)).await.unwrap().map(drop)
        });
    });
    assert!(error.starts_with("seed 4: read on stream"), "{error}");
    let detached = panic_of(|| {
        for_each_seed_tokio([5], |device| async move {
            drop(device.default_stream()?.call(|| panic!("on purpose")));
            Ok(())
        });
    });
    assert!(detached.starts_with("seed 5: detached work failed: call on stream \"default\""), "{detached}");
    let panic = panic_of(|| for_each_seed_tokio([6], |_| async { panic!("on purpose") }));
    assert_eq!(panic, "on purpose");
}

#[test]
fn tasks_that_are_left_at_the_end_are_dropped_with_what_they_hold() {
    for_each_seed_tokio(0..10, |device| async move {
        let stream = device.new_stream()?;
        let gate = stream.hold()?;
        tokio::spawn(async move {
            let _gate = gate;
            std::future::pending::<()>().await;
        });
        // This op is behind the gate, which the end of the run opens.
        drop(stream.call(|| ()));
        Ok(())
    });
}
