//! Reports of a device's memory, its limits, and what happens when there is too little.

use crate::support::{refusal, says};
use crate::{contract, with_settings};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use warpline::prelude::*;
use warpline::{BlockState, MemoryShortage, RuntimeBuilder};

const MIB: usize = 1 << 20;

/// A buffer that the program can do without.
type Spare = Arc<Mutex<Option<Buffer<u8>>>>;

/// Adds a function that drops `spare`, and counts its calls.
fn drops(builder: RuntimeBuilder, spare: &Spare, calls: &Arc<AtomicUsize>) -> RuntimeBuilder {
    let (spare, calls) = (spare.clone(), calls.clone());
    builder.on_out_of_memory(move |_, _| {
        calls.fetch_add(1, Ordering::Relaxed);
        drop(spare.lock().unwrap().take());
    })
}

contract! {
    async fn a_snapshot_shows_each_block_with_its_state_and_its_line([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder)?;
        let (a, b) = (device.new_stream()?, device.new_stream()?);
        let (kept, line) = (a.alloc::<u8>(1000)?, line!());
        let lent = a.alloc_zeroed::<u8>(4096)?;
        let lent_line = line + 1;
        let tensor = a.enter(|| Tensor::zeros([3], &device)).await?;
        b.wait_stream(&a);
        let gate = b.hold()?;
        b.fill(&lent, 1).queued()?;
        drop(lent);

        let snapshot = device.memory_snapshot();
        assert_eq!((snapshot.device, snapshot.stats), (device.id(), device.memory_stats()));
        let [segment] = &snapshot.segments[..] else { panic!("{} segments", snapshot.segments.len()) };
        let mut offset = 0;
        for block in &segment.blocks {
            let start = (block.address - segment.address) as usize;
            let has_zones = matches!(device.id(), DeviceId::Cpu(_));
            assert_eq!(start, if has_zones { 2 * offset } else { offset }, "blocks tile their segment");
            offset += block.len_bytes;
        }
        assert_eq!(offset, segment.len_bytes);
        let lengths: Vec<_> = segment.blocks.iter().map(|block| block.len_bytes).collect();
        assert_eq!(lengths, [1024, 4096, 512, 2 * MIB - 1024 - 4096 - 512]);
        let states: Vec<_> = segment.blocks.iter().map(|block| block.state).collect();
        assert_eq!(states, [BlockState::Live, BlockState::Waiting, BlockState::Live, BlockState::Cached]);
        let sites: Vec<_> = segment.blocks.iter().map(|block| block.site).collect();
        let of = |site: Option<warpline::backend::Site>| site.map(|site| (site.op(), site.location.line()));
        assert_eq!(of(sites[0]), Some(("alloc", line)));
        assert_eq!(of(sites[1]), Some(("alloc_zeroed", lent_line)));
        assert_eq!(of(sites[2]), Some(("alloc", lent_line + 2)), "a tensor's op");
        assert_eq!(of(sites[3]), None, "no line allocated what was never used");
        assert!(sites[0].unwrap().location.file().ends_with("contract/memory.rs"));
        assert_eq!(snapshot.largest_free_bytes(), lengths[3]);
        let [largest, _] = snapshot.largest_holders(9)[..] else { panic!("two lines hold memory") };
        assert_eq!((largest.bytes, largest.allocations, largest.line), (1024, 1, line));

        gate.open();
        device.synchronize().await?;
        let after = device.memory_snapshot();
        assert_eq!(after.segments[0].blocks[1].state, BlockState::Cached, "the fill has finished");
        drop((kept, tensor));
        device.synchronize().await?;
        assert_eq!(device.memory_snapshot().largest_free_bytes(), 2 * MIB, "free neighbours count as one");
    }

    async fn free_memory_of_a_graph_is_neither_cached_nor_live([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder)?;
        let stream = device.new_stream()?;
        let (graph, kept) = stream.capture(|s| {
            s.fill(&s.alloc::<u8>(5000)?, 1).queued()?;
            s.alloc::<u8>(1000)
        })?;
        let states = |segment: &warpline::MemorySegment| -> Vec<_> {
            segment.blocks.iter().map(|block| block.state).collect()
        };
        let segments: Vec<_> = device.memory_snapshot().segments.iter().map(states).collect();
        let of_graph = segments.iter().find(|states| states.contains(&BlockState::Graph));
        let of_graph = of_graph.expect("the captured memory that was dropped");
        assert!(of_graph.contains(&BlockState::Live), "{of_graph:?}");
        assert!(!of_graph.contains(&BlockState::Cached), "{of_graph:?}");
        drop((graph, kept));
        device.synchronize().await?;
        let segments: Vec<_> = device.memory_snapshot().segments.iter().map(states).collect();
        assert!(segments.iter().flatten().all(|state| *state == BlockState::Cached), "{segments:?}");
    }

    async fn the_summary_is_a_table_of_the_figures([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder.memory_limit(64 * MIB))?;
        let stream = device.new_stream()?;
        drop(stream.alloc::<u8>(6 * MIB)?);
        let (held, line) = ([(); 2].map(|()| stream.alloc::<u8>(2 * MIB)), line!());
        let name = format!("memory of {}", device.id());
        // A segment of fixed length, or one that grew.
        let (reserved, free, cached) = match device.memory_stats().reserved_bytes / MIB {
            6 => ("6.0", "2.0", 1),
            20 => ("20.0", "16.0", 2),
            other => panic!("{other} MiB are reserved"),
        };
        let table = format!("\
{name:24}        now       peak
allocated                   4.0 MiB    6.0 MiB
reserved                  {reserved:>5} MiB  {reserved:>5} MiB
limit                      64.0 MiB
largest free block        {free:>5} MiB
pinned, allocated               0 B        0 B
pinned, reserved                0 B        0 B
pinned, cap                 4.0 GiB

blocks                       number       size
live                              2    4.0 MiB
free, cached                      {cached}  {free:>5} MiB
free, used by streams             0        0 B
free, kept for graphs             0        0 B
in segments                       1  {reserved:>5} MiB

largest holders              number       size
                                  2    4.0 MiB  tests/contract/memory.rs:{line}
");
        assert_eq!(device.memory_summary(), table);
        drop(held);
        assert!(!device.memory_summary().contains("largest holders"), "nothing is held");
    }

    async fn a_refused_allocation_names_the_five_lines_that_hold_the_most([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder.memory_limit(48 * MIB))?;
        let stream = device.new_stream()?;
        let line = line!();
        let mut held = vec![stream.alloc::<u8>(MIB + 512)?];
        held.extend([stream.alloc::<u8>(6 * MIB)?, stream.alloc::<u8>(6 * MIB)?]);
        held.push(stream.alloc::<u8>(5 * MIB)?);
        held.push(stream.alloc::<u8>(4 * MIB)?);
        held.push(stream.alloc::<u8>(3 * MIB)?);
        held.push(stream.alloc::<u8>(2 * MIB)?);
        let error = stream.alloc::<u8>(30 * MIB).unwrap_err();
        let details = error.out_of_memory().expect("device memory is missing");
        assert_eq!((details.device, details.requested_bytes), (device.id(), 30 * MIB));
        let stats = device.memory_stats();
        let free_bytes = 48 * MIB - stats.reserved_bytes;
        assert_eq!(details.shortage, MemoryShortage::Limit { free_bytes, limit_bytes: 48 * MIB });
        assert_eq!(stats.limit_bytes, Some(48 * MIB));
        assert_eq!(details.allocated_bytes, stats.allocated_bytes);
        assert_eq!(details.cached_bytes, stats.reserved_bytes - stats.allocated_bytes);
        assert_eq!((details.waiting_bytes, details.graph_bytes, details.not_freed_bytes), (0, 0, 0));
        let holders: Vec<_> = details
            .holders
            .iter()
            .map(|holder| (holder.bytes / MIB, holder.allocations, holder.line - line))
            .collect();
        assert_eq!(holders, [(12, 2, 2), (5, 1, 3), (4, 1, 4), (3, 1, 5), (2, 1, 6)]);
        let at = |offset| format!("tests/contract/memory.rs:{}", line + offset);
        let start = format!("alloc on stream \"stream 1\" ({}): {} is out of memory: ", at(7), device.id());
        let largest = format!("largest holders: 12.0 MiB from {} (2 allocations), 5.0 MiB from ", at(2));
        let remedy = "drop tensors or lower the batch size, or raise memory_limit";
        let end = format!("2.0 MiB from {}; {remedy}", at(6));
        let free_mib = free_bytes / MIB;
        let sizes = format!("30.0 MiB asked, {free_mib}.0 MiB free of the limit of 48.0 MiB (");
        says(&error, ErrorKind::OutOfMemory, &[&start, &sizes, &largest, &end]);
        assert!(error.to_string().ends_with(&details.to_string()));

        // The error of a tensor's op has them too, and that of an op which inherits it.
        let x = stream.enter(|| Tensor::ones([8 << 20], &device));
        let inherits = stream.enter(|| (&x).relu());
        for error in [refusal(x), refusal(inherits)] {
            assert_eq!(error.out_of_memory().expect("details").requested_bytes, 32 * MIB, "{error}");
        }
        stream.fill(&held[0], 1).await?;
        assert!(crate::refused(stream.write(&held[0], &[1])).await.out_of_memory().is_none());
    }

    async fn a_fraction_of_the_devices_memory_is_a_limit([device]) {
        let total_bytes = device.properties().total_bytes;
        if total_bytes == 0 {
            let error = with_settings(&device, |builder| builder.memory_fraction(0.5)).unwrap_err();
            let text = format!("memory_fraction 0.5 cannot limit {}: its driver does not ", device.id());
            let rest = "does not report how much memory it has; use memory_limit";
            says(&error, ErrorKind::InvalidArgument, &[&text, rest]);
            return Ok(());
        }
        // A little more than 32 MiB, as the division rounds.
        let fraction = (32 * MIB + 100) as f64 / total_bytes as f64;
        let (_runtime, limited) = with_settings(&device, |builder| builder.memory_fraction(fraction))?;
        let stream = limited.new_stream()?;
        let limit_bytes = limited.memory_stats().limit_bytes.expect("a limit");
        assert_eq!(limit_bytes >> 10, 32 << 10);
        let held = stream.alloc::<u8>(12 * MIB)?;
        let error = stream.alloc::<u8>(24 * MIB).unwrap_err();
        let details = error.out_of_memory().expect("device memory is missing");
        let free_bytes = limit_bytes - 12 * MIB;
        let shortage = MemoryShortage::Fraction { free_bytes, limit_bytes, fraction, total_bytes };
        assert_eq!(details.shortage, shortage);
        let sizes = "24.0 MiB asked, 20.0 MiB free of the limit of 32.0 MiB";
        let which = format!("{sizes}, which is memory_fraction {fraction} of ");
        let holder = " GiB (12.0 MiB in use, 0 B cached); largest holders: 12.0 MiB from ";
        let remedy = "; drop tensors or lower the batch size, or raise memory_fraction";
        says(&error, ErrorKind::OutOfMemory, &[&which, holder, remedy]);
        drop(held);
        stream.alloc::<u8>(24 * MIB)?;

        // The lower of two limits applies.
        for (bytes, lower) in [(MIB, MIB), (64 * MIB, limit_bytes)] {
            let both = |builder: RuntimeBuilder| builder.memory_fraction(fraction).memory_limit(bytes);
            let (_runtime, device) = with_settings(&device, both)?;
            assert_eq!(device.memory_stats().limit_bytes, Some(lower));
        }
    }

    async fn what_the_program_frees_serves_the_second_attempt([device]) {
        let (spare, calls) = (Spare::default(), Arc::new(AtomicUsize::new(0)));
        let (_runtime, device) =
            with_settings(&device, |builder| drops(builder.memory_limit(20 * MIB), &spare, &calls))?;
        let stream = device.new_stream()?;
        let count = || calls.swap(0, Ordering::Relaxed);
        let spend = || -> warpline::Result<()> {
            *spare.lock().unwrap() = Some(stream.alloc::<u8>(16 * MIB)?);
            assert_eq!(count(), 0, "there was enough");
            Ok(())
        };
        spend()?;
        drop(stream.alloc::<u8>(12 * MIB)?);
        assert_eq!(count(), 1, "alloc");
        spend()?;
        stream.enter(|| Tensor::ones([3 << 20], &device)).await?;
        assert_eq!(count(), 1, "a tensor's op");
        spend()?;
        let host = device.pinned::<u8>(12 * MIB).await?;
        let (copied, sent) = stream.copy_to_device(host)?;
        assert_eq!(count(), 1, "a copy that makes its buffer");
        sent.await?;
        drop(copied);
        device.synchronize().await?;
        spend()?;
        let (graph, _memory) = stream.capture(|s| s.alloc::<u8>(12 * MIB))?;
        assert_eq!(count(), 1, "a capture");
        drop(graph);

        assert_eq!(stream.alloc::<u8>(30 * MIB).unwrap_err().kind(), ErrorKind::OutOfMemory);
        assert_eq!(count(), 1, "once, even if it does not help");
        assert!(stream.alloc::<u8>(isize::MAX as usize).is_err());
        assert_eq!(count(), 0, "nothing that could be freed would help");
    }

    async fn the_function_may_call_what_the_allocating_code_may([device]) {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = seen.clone();
        let observe = move |device: &Device, details: &warpline::OutOfMemory| {
            let stream = device.new_stream().unwrap();
            let small = stream.alloc::<u8>(100).unwrap();
            stream.fill(&small, 1).queued().unwrap();
            // Does not call the function again, although there is not enough memory either.
            let inner = device.alloc::<u8>(17 * MIB).unwrap_err();
            assert_eq!(inner.out_of_memory().unwrap().requested_bytes, 17 * MIB);
            device.empty_cache();
            let summary = device.memory_summary();
            log.lock().unwrap().push((device.id(), details.requested_bytes, summary.contains("16.0 MiB")));
        };
        let (_runtime, device) =
            with_settings(&device, |builder| builder.memory_limit(16 * MIB).on_out_of_memory(observe))?;
        let asked = [20 * MIB, 18 * MIB];
        for bytes in asked {
            assert_eq!(device.alloc::<u8>(bytes).unwrap_err().kind(), ErrorKind::OutOfMemory);
        }
        assert_eq!(*seen.lock().unwrap(), asked.map(|bytes| (device.id(), bytes, true)));
        device.synchronize().await?;
    }

    async fn a_panic_of_the_function_passes_to_the_allocating_code([device]) {
        let builder = |builder: RuntimeBuilder| {
            builder.memory_limit(16 * MIB).on_out_of_memory(|_, _| panic!("on purpose"))
        };
        let (_runtime, device) = with_settings(&device, builder)?;
        let stream = device.new_stream()?;
        for _ in 0..2 {
            let panic = catch_unwind(AssertUnwindSafe(|| stream.alloc::<u8>(20 * MIB))).unwrap_err();
            assert_eq!(panic.downcast_ref(), Some(&"on purpose"));
        }
        let x = stream.alloc_zeroed::<u8>(10)?;
        assert_eq!(stream.read(&x).await?, [0; 10]);
        assert_eq!(device.memory_stats().live_blocks, 1);
    }

    async fn freed_memory_that_one_stream_still_uses_is_waited_for_on_the_device([device]) {
        let (spare, calls) = (Spare::default(), Arc::new(AtomicUsize::new(0)));
        let (_runtime, device) =
            with_settings(&device, |builder| drops(builder.memory_limit(16 * MIB), &spare, &calls))?;
        let (a, b) = (device.new_stream()?, device.new_stream()?);
        let (c, held) = (device.new_stream()?, device.new_stream()?);
        // Used by one other stream, which is held.
        let x = a.alloc::<u8>(12 * MIB)?;
        b.wait_for(&x);
        let gate = b.hold()?;
        b.fill(&x, 1).queued()?;
        *spare.lock().unwrap() = Some(x);
        let y = a.alloc::<u8>(12 * MIB)?;
        assert_eq!((calls.load(Ordering::Relaxed), device.memory_stats().served.waited), (1, 1));
        let filled = a.fill(&y, 2);
        gate.open();
        filled.await?;
        // Used by two other streams: not available before they have finished.
        b.wait_stream(&a);
        c.wait_stream(&a);
        let to = [b.alloc::<u8>(512)?, c.alloc::<u8>(512)?];
        let gate = held.hold()?;
        b.wait_stream(&held);
        c.wait_stream(&held);
        b.copy_buffer(&to[0], &y.slice(..512)?).queued()?;
        c.copy_buffer(&to[1], &y.slice(..512)?).queued()?;
        *spare.lock().unwrap() = Some(y);
        let error = a.alloc::<u8>(12 * MIB).unwrap_err();
        assert_eq!(error.out_of_memory().expect("details").waiting_bytes, 12 * MIB, "{error}");
        gate.open();
        device.synchronize().await?;
        a.alloc::<u8>(12 * MIB)?;
    }
}

#[test]
fn the_function_may_wait_for_the_device_outside_of_async_code() {
    crate::support::within_a_minute(|| {
        let spare = Spare::default();
        let (of_function, gates) = (spare.clone(), Arc::new(Mutex::new(Vec::new())));
        let to_open = gates.clone();
        let runtime = Runtime::builder()
            .memory_limit(16 * MIB)
            .on_out_of_memory(move |device, _| {
                drop(of_function.lock().unwrap().take());
                to_open.lock().unwrap().drain(..).for_each(warpline::testing::Gate::open);
                device.synchronize().blocking_wait().unwrap();
            })
            .build()
            .unwrap();
        let device = runtime.device(DeviceId::Cpu(0)).unwrap();
        let x = device.alloc::<u8>(12 * MIB).unwrap();
        for part in [0..100, 100..200] {
            let stream = device.new_stream().unwrap();
            stream.wait_for(&x);
            gates.lock().unwrap().push(stream.hold().unwrap());
            stream.fill(&x.slice(part).unwrap(), 1).queued().unwrap();
        }
        *spare.lock().unwrap() = Some(x);
        device.alloc::<u8>(12 * MIB).expect("both streams have finished");
    });
}
