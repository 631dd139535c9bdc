//! Budgets: requests that wait for a share of the device's memory, and what counts against it.

use crate::support::says;
use crate::{contract, with_settings};
use futures::future::{join_all, try_join_all};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use warpline::prelude::*;
use warpline::{BlockState, Device, Error, InCurrentStream, MemoryShortage, Result};

const MIB: usize = 1 << 20;

/// Polls once, without a waker.
fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// A request: it asks for all its memory, and computes with blocks of these lengths at a time.
async fn request(device: &Device, budget_bytes: usize, lens: &[usize]) -> Result<()> {
    let budget = device.budget(budget_bytes).await?;
    let work = budget.scope(|| async {
        let stream = device.new_stream()?;
        for round in 0..3_u8 {
            let blocks: Vec<Buffer<u8>> = lens.iter().map(|len| stream.alloc(*len)).collect::<Result<_>>()?;
            for block in &blocks {
                stream.fill(&block.slice(..block.len().min(1 << 16))?, round).queued()?;
            }
            let read = stream.read(&blocks[0].slice(..1000)?);
            drop(blocks);
            assert!(read.await?.iter().all(|byte| *byte == round));
        }
        Ok::<_, Error>(())
    });
    work.await
}

contract! {
    async fn all_of_64_requests_of_20_mib_are_served_under_256([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder.memory_limit(256 * MIB))?;
        let stream = device.new_stream()?;
        let weights = stream.alloc::<u8>(4 * MIB)?;
        stream.fill(&weights, 1).await?;
        let requests = (0..64).map(|_| request(&device, 20 * MIB, &[6 * MIB, 6 * MIB, 5 * MIB, 1000, 100_000]));
        for outcome in join_all(requests).await {
            outcome?;
        }
        let stats = device.memory_stats();
        assert_eq!((stats.budgets, stats.budget_bytes, stats.budget_used_bytes), (0, 0, 0));
        assert!(stats.peak_reserved_bytes <= 256 * MIB);
    }

    async fn requests_of_all_sizes_are_served_at_the_limit([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder.memory_limit(64 * MIB))?;
        let weights = device.new_stream()?.alloc::<u8>(12 * MIB)?;
        let requests = (0..40).map(|n| {
            let device = &device;
            async move {
                // To the last granule of what the weights leave.
                let mib = [52, 2, 30, 7, 12, 44, 21, 4][n % 8];
                let lens: &[usize] = match mib {
                    2 => &[1000, MIB, 900 << 10],
                    52 => &[20 * MIB, 17 * MIB, 14 * MIB],
                    _ => &[mib / 2 / 2 * 2 * MIB, MIB + 1],
                };
                request(device, mib * MIB, lens).await
            }
        });
        try_join_all(requests).await?;
        drop(weights);
    }

    async fn a_request_beyond_its_budget_is_refused_alone_and_its_error_has_the_figures([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder.memory_limit(64 * MIB))?;
        let stream = device.new_stream()?;
        let (first, second) = (device.budget(15 * MIB).await?, device.budget(20 * MIB).await?);
        assert_eq!((first.bytes(), first.used_bytes()), (16 * MIB, 0));
        let held = first.enter(|| stream.alloc::<u8>(9 * MIB))?;
        let line = line!() - 1;
        assert_eq!(first.used_bytes(), 10 * MIB);
        let error = first.enter(|| stream.alloc::<u8>(7 * MIB)).unwrap_err();
        let asked = "the budget on cpu:0 is spent: 7.0 MiB asked, which count as 8.0 MiB, 6.0 MiB free of the budget of \
                     16.0 MiB; largest holders: 10.0 MiB from";
        let asked = asked.replace("cpu:0", &device.to_string());
        says(&error, ErrorKind::OutOfMemory, &[&asked, &format!("budgets.rs:{line}; drop tensors of this budget")]);
        let shortage = error.out_of_memory().expect("figures").shortage;
        let figures = MemoryShortage::Budget { counted_bytes: 8 * MIB, free_bytes: 6 * MIB, budget_bytes: 16 * MIB };
        assert_eq!(shortage, figures);
        let error = first.scope(|| stream.alloc_async::<u8>(7 * MIB)).await.unwrap_err();
        assert_eq!(error.out_of_memory().expect("figures").shortage, figures);
        // The rest of the budget, that of another one, and memory outside.
        let more = first.enter(|| stream.alloc::<u8>(6 * MIB))?;
        let other = second.enter(|| stream.alloc::<u8>(20 * MIB))?;
        let outside = stream.alloc::<u8>(20 * MIB)?;
        drop((held, more, other, outside));
        assert_eq!((first.used_bytes(), second.used_bytes()), (0, 0));
        assert_eq!((first.peak_used_bytes(), second.peak_used_bytes()), (16 * MIB, 20 * MIB));
    }

    async fn short_blocks_share_granules_of_their_budget([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder.memory_limit(32 * MIB))?;
        let stream = device.new_stream()?;
        let budget = device.budget(6 * MIB).await?;
        let short = |len| budget.enter(|| stream.alloc::<u8>(len));
        let blocks = [short(1)?, short(5000)?, short(700 << 10)?, short(MIB)?];
        assert_eq!(budget.used_bytes(), 2 * MIB);
        let more = short(MIB)?;
        assert_eq!(budget.used_bytes(), 4 * MIB);
        for block in &blocks {
            stream.fill(block, 3).queued()?;
        }
        assert!(stream.read(&blocks[2]).await? == vec![3; 700 << 10]);
        let snapshot = device.memory_snapshot();
        let kept = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
        assert!(kept.into_iter().any(|block| block.state == BlockState::Budget));
        drop(more);
        assert_eq!(budget.used_bytes(), 2 * MIB);
        drop(blocks);
        assert_eq!(budget.used_bytes(), 0);
    }

    async fn a_request_does_not_overtake_one_that_waits([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder.memory_limit(32 * MIB))?;
        let held = device.budget(20 * MIB).await?;
        let (mut long, mut short) = (pin!(device.budget(24 * MIB)), pin!(device.budget(2 * MIB)));
        assert!(poll(long.as_mut()).is_pending());
        assert!(poll(short.as_mut()).is_pending(), "it fits, and the one before it waits");
        let summary = device.memory_summary();
        let (waiting, line) = ("requests for budgets         number       size", " for 24.0 MiB: budget (tests/contract/budgets.rs:");
        assert!(summary.contains(waiting) && summary.contains(line), "{summary}");
        drop(held);
        let long = long.await?;
        let _short = short.await?;
        drop(long);
    }

    async fn a_request_that_is_dropped_lets_the_next_one_go([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder.memory_limit(32 * MIB))?;
        let held = device.budget(20 * MIB).await?;
        let mut short = pin!(device.budget(2 * MIB));
        {
            let mut long = pin!(device.budget(24 * MIB));
            assert!(poll(long.as_mut()).is_pending());
            assert!(poll(short.as_mut()).is_pending());
        }
        let _short = short.await?;
        // Granted while nobody polled it, and dropped.
        let mut other = pin!(device.budget(24 * MIB));
        {
            let mut long = Box::pin(device.budget(28 * MIB));
            assert!(poll(long.as_mut()).is_pending());
            assert!(poll(other.as_mut()).is_pending());
            drop(held);
        }
        let _other = other.await?;
    }

    async fn the_share_returns_when_the_budget_and_its_memory_are_gone([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder.memory_limit(32 * MIB))?;
        let stream = device.new_stream()?;
        let budget = device.budget(20 * MIB).await?;
        let block = budget.enter(|| stream.alloc::<u8>(1000))?;
        drop(budget);
        let mut next = pin!(device.budget(20 * MIB));
        assert!(poll(next.as_mut()).is_pending());
        assert_eq!(device.memory_stats().budget_bytes, 20 * MIB);
        drop(block);
        let budget = next.await?;
        // A scope keeps it, too.
        let mut scope = Box::pin(budget.scope(|| async { std::future::pending::<()>().await }));
        assert!(poll(scope.as_mut()).is_pending());
        drop(budget);
        let mut next = pin!(device.budget(20 * MIB));
        assert!(poll(next.as_mut()).is_pending());
        drop(scope);
        let _next = next.await?;
    }

    async fn a_budget_that_does_not_fit_beside_memory_outside_is_refused_at_once([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder.memory_limit(32 * MIB))?;
        let stream = device.new_stream()?;
        let outside = stream.alloc::<u8>(12 * MIB)?;
        let error = device.budget(24 * MIB).await.map(drop).unwrap_err();
        let text = format!(
            "a budget of 24.0 MiB does not fit on {device}: 20.0 MiB free of the limit of 32.0 MiB, and 12.0 MiB are in \
             use outside of budgets"
        );
        says(&error, ErrorKind::OutOfMemory, &[&text, "budget (tests/contract/budgets.rs:"]);
        let _budget = device.budget(20 * MIB).await?;
        // It waits for the budget, not for the memory outside.
        let mut next = pin!(device.budget(20 * MIB));
        assert!(poll(next.as_mut()).is_pending());
        drop(outside);
        assert!(poll(next.as_mut()).is_pending());
        let mut last = pin!(device.budget(usize::MAX));
        assert!(matches!(poll(last.as_mut()), Poll::Ready(Err(error)) if error.kind() == ErrorKind::OutOfMemory));
    }

    async fn memory_outside_that_is_freed_makes_room_for_a_budget([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder.memory_limit(32 * MIB))?;
        let stream = device.new_stream()?;
        let held = device.budget(4 * MIB).await?;
        let mut next = pin!(device.budget(20 * MIB));
        let outside = stream.alloc::<u8>(12 * MIB)?;
        assert!(poll(next.as_mut()).is_pending());
        stream.fill(&outside, 1).queued()?;
        drop(outside);
        let next = next.await?;
        // The memory outside may be in use still: the allocation waits for it.
        let block = next.enter(|| stream.alloc::<u8>(20 * MIB))?;
        stream.fill(&block, 2).await?;
        drop(held);
    }

    async fn a_second_budget_is_refused_in_the_scope_of_one([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder.memory_limit(32 * MIB))?;
        let budget = device.budget(4 * MIB).await?;
        let error = budget.scope(|| device.budget(2 * MIB)).await.map(drop).unwrap_err();
        says(&error, ErrorKind::Reentrant, &["2.0 MiB asked by code that runs in the scope of a budget of 4.0 MiB already", "ask for all of it before the scope begins"]);
        let error = budget.enter(|| device.blocking_budget(2 * MIB)).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Reentrant);
        // Outside of the scope it may wait: two that need each other's are the program's to avoid.
        let _second = device.budget(2 * MIB).await?;
    }

    async fn tensors_and_tasks_count_where_the_scope_is_carried([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder.memory_limit(64 * MIB))?;
        let x = Tensor::ones([1 << 20], &device).await?;
        let budget = device.budget(12 * MIB).await?;
        let work = budget.scope(|| async {
            let sum = x.add(&x).await?;
            assert_eq!(budget.used_bytes(), 4 * MIB);
            let in_task = async { x.add(&x).await }.in_current_stream();
            let (device, plain) = (device.clone(), x.clone());
            let other = async move { plain.add(&plain).await };
            let tasks = futures::join!(in_task, outside_of_the_scope(other));
            let (_in_task, _other) = (tasks.0?, tasks.1?);
            assert_eq!(budget.used_bytes(), 8 * MIB);
            assert_eq!(device.memory_stats().budget_used_bytes, 8 * MIB);
            Ok::<_, Error>(sum)
        });
        let sum = work.await?;
        assert_eq!(budget.used_bytes(), 4 * MIB, "a result keeps its share");
        drop(sum);
        assert_eq!(budget.used_bytes(), 0);
    }

    async fn a_budget_waits_for_unfinished_work_of_another([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder.memory_limit(32 * MIB))?;
        let streams = [device.new_stream()?, device.new_stream()?];
        for round in 0..12_u8 {
            let stream = &streams[round as usize % 2];
            let budget = device.budget(30 * MIB).await?;
            let block = budget.scope(|| stream.alloc_async::<u8>((28 - round as usize) * MIB)).await?;
            stream.fill(&block, round).queued()?;
            let short = budget.enter(|| stream.alloc::<u8>(100))?;
            stream.fill(&short, round).queued()?;
        }
        device.synchronize().await?;
    }

    async fn a_short_block_does_not_go_behind_a_gate_while_there_is_room([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder.memory_limit(32 * MIB))?;
        let (held, free) = (device.new_stream()?, device.new_stream()?);
        let budget = device.budget(6 * MIB).await?;
        let short = |stream: &Stream, len| budget.enter(|| stream.alloc::<u8>(len));
        let (_kept, block) = (short(&held, 1000)?, short(&held, MIB)?);
        let gate = held.hold()?;
        held.fill(&block, 1).queued()?;
        drop(block);
        let block = short(&free, MIB)?;
        free.fill(&block, 2).await?;
        assert_eq!(budget.used_bytes(), 4 * MIB);
        gate.open();
    }

    async fn memory_of_a_graph_is_outside([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder.memory_limit(64 * MIB))?;
        let stream = device.new_stream()?;
        let budget = device.budget(10 * MIB).await?;
        let (graph, _block) = budget.enter(|| stream.capture(|stream| {
            let block = stream.alloc::<u8>(20 * MIB)?;
            stream.fill(&block, 1).queued()?;
            Ok(block)
        }))?;
        assert_eq!(budget.used_bytes(), 0);
        let error = device.budget(50 * MIB).await.map(drop).unwrap_err();
        says(&error, ErrorKind::OutOfMemory, &["22.0 MiB are in use outside of budgets"]);
        drop(graph);
    }

    async fn a_device_that_shuts_down_ends_a_wait_for_a_budget([device]) {
        let (runtime, device) = with_settings(&device, |builder| builder.memory_limit(32 * MIB))?;
        let _held = device.budget(20 * MIB).await?;
        let mut next = pin!(device.budget(20 * MIB));
        assert!(poll(next.as_mut()).is_pending());
        drop(runtime);
        assert_eq!(next.await.map(drop).unwrap_err().kind(), ErrorKind::ShutDown);
    }
}

/// Polls a future without the scopes of its caller, as another task does.
async fn outside_of_the_scope<F>(future: F) -> F::Output
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    std::thread::spawn(move || futures::executor::block_on(future)).join().expect("it does not panic")
}

#[test]
fn a_budget_names_itself() {
    let runtime = Runtime::builder().memory_limit(32 * MIB).build().unwrap();
    let device = runtime.device("cpu".parse().unwrap()).unwrap();
    let budget: Budget = device.blocking_budget(3 * MIB).unwrap();
    assert_eq!(format!("{budget:?}"), "Budget(cpu:0, 0 B of 4.0 MiB)");
    assert_eq!(budget.device(), device);
}
