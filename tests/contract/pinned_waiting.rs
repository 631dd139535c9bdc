//! Requests for page-locked memory at the cap: those that wait, and those that must not.

use crate::support::says;
use crate::{contract, with_settings};
use futures::future::{join_all, try_join_all};
use std::task::{Context, Waker};
use warpline::Result;
use warpline::prelude::*;

const MIB: usize = 1 << 20;

contract! {
    async fn uploads_at_the_cap_wait_for_those_before_them([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder.pinned_cap(2 * MIB))?;
        let streams = [device.new_stream()?, device.new_stream()?, device.new_stream()?];
        let mut buffers = Vec::new();
        for n in 0..48u8 {
            let stream = &streams[n as usize % 3];
            let buffer = stream.alloc::<u8>(MIB / 2)?;
            stream.write(&buffer, &vec![n; MIB / 2]).queued()?;
            buffers.push(buffer);
        }
        let reads = buffers.iter().enumerate().map(|(n, buffer)| streams[n % 3].read(buffer));
        for (n, bytes) in try_join_all(reads).await?.into_iter().enumerate() {
            assert!(bytes == vec![n as u8; MIB / 2], "buffer {n}");
        }
        assert!(device.pinned_stats().peak_reserved_bytes <= 2 * MIB);
    }

    async fn reads_that_nobody_polls_make_way_for_others([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder.pinned_cap(6 * MIB))?;
        let stream = device.new_stream()?;
        let mut reads = Vec::new();
        // Some are moved to ordinary memory under a lock, and some without it.
        for (n, len) in [MIB / 2, 2 * MIB, MIB, 4 * MIB, 3 * MIB].into_iter().cycle().take(20).enumerate() {
            let buffer = stream.alloc::<u8>(len)?;
            stream.fill(&buffer, n as u8).queued()?;
            reads.push((n, len, stream.read(&buffer)));
        }
        // The last needs the memory of the first.
        for (n, len, read) in reads.into_iter().rev() {
            assert!(read.await? == vec![n as u8; len], "read {n}");
        }
    }

    async fn short_copies_have_memory_of_their_own([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder.pinned_cap(MIB))?;
        let stream = device.new_stream()?;
        let held = device.pinned::<u8>(MIB).await?;
        let losses: Vec<_> = (0..100).map(|_| stream.alloc::<f32>(1)).collect::<Result<_>>()?;
        for (n, loss) in losses.iter().enumerate() {
            stream.write(loss, &[n as f32]).queued()?;
        }
        // More than there is memory for, awaited from the last to the first.
        let reads: Vec<_> = (0..400).map(|n| (n % 100, stream.read_one(&losses[n % 100]))).collect();
        for (n, read) in reads.into_iter().rev() {
            assert_eq!(read.await?, n as f32);
        }
        assert!(device.pinned_stats().reserve_bytes <= MIB);
        // A longer copy, or one that becomes a buffer, does not fit beside the buffer that is held.
        let long = stream.alloc::<u8>(100 << 10)?;
        let text = "128 KiB asked, 1.0 MiB in use of 1.0 MiB; drop pinned buffers";
        let error = stream.write(&long, &vec![0; 100 << 10]).await.unwrap_err();
        says(&error, ErrorKind::OutOfMemory, &["write on stream", &text.replace("128", "100")]);
        assert_eq!(stream.copy_to_host(&losses[0]).await.unwrap_err().kind(), ErrorKind::OutOfMemory);
        drop(held);
        stream.write(&long, &vec![0; 100 << 10]).await?;
    }

    async fn a_buffer_in_a_copy_that_nobody_awaits_comes_back([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder.pinned_cap(4 * MIB))?;
        let stream = device.new_stream()?;
        let x = stream.alloc::<u8>(MIB)?;
        for n in 0..60u8 {
            let mut host = device.pinned::<u8>(MIB).await?;
            host.fill(n);
            stream.copy_into(&x, host).detach();
        }
        assert!(stream.read(&x).await? == vec![59; MIB]);
        // The buffer is held as long as the `Pending` is there.
        let mut copies = Vec::new();
        for _ in 0..4 {
            copies.push(stream.copy_into(&x, device.pinned::<u8>(MIB).await?));
        }
        let error = device.pinned::<u8>(MIB).await.unwrap_err();
        says(&error, ErrorKind::OutOfMemory, &["1.0 MiB asked, 4.0 MiB in use of 4.0 MiB; drop pinned buffers"]);
        drop(copies.pop());
        drop(device.pinned::<u8>(MIB).await?);
        drop(join_all(copies).await);
    }

    async fn copies_behind_a_gate_are_no_reason_to_wait([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder.pinned_cap(2 * MIB))?;
        let (stream, other) = (device.new_stream()?, device.new_stream()?);
        let (x, y) = (stream.alloc::<u8>(MIB)?, other.alloc::<u8>(MIB)?);
        // Its memory is made before the gate closes.
        drop((device.pinned::<u8>(MIB).await?, device.pinned::<u8>(MIB).await?));
        let (gate, line) = (stream.hold()?, line!());
        stream.write(&x, &vec![1; MIB]).queued()?;
        stream.write(&x, &vec![2; MIB]).queued()?;
        let code = format!("2.0 MiB of it by copies behind a closed gate: hold (tests/contract/pinned_waiting.rs:{line})");
        says(&device.pinned::<u8>(MIB).await.unwrap_err(), ErrorKind::OutOfMemory, &[&code]);
        says(&other.write(&y, &vec![3; MIB]).await.unwrap_err(), ErrorKind::OutOfMemory, &["write on stream", &code]);
        says(&device.try_pinned::<u8>(MIB).unwrap_err(), ErrorKind::OutOfMemory, &[&code]);
        gate.open();
        // On the stream itself a copy waits behind the gate, and for nothing else.
        drop(device.pinned::<u8>(2 * MIB).await?);
        assert!(stream.read(&x).await? == vec![2; MIB]);
    }

    async fn a_request_that_is_dropped_lets_the_next_one_go([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder.pinned_cap(2 * MIB))?;
        let stream = device.new_stream()?;
        let x = stream.alloc::<u8>(MIB)?;
        for _ in 0..20 {
            stream.write(&x, &vec![1; MIB]).queued()?;
            stream.write(&x, &vec![2; MIB]).queued()?;
            let mut left = Box::pin(device.pinned::<u8>(2 * MIB));
            let _ = left.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            drop(left);
            drop(device.pinned::<u8>(2 * MIB).await?);
        }
        assert!(stream.read(&x).await? == vec![2; MIB]);
        assert_eq!(device.pinned_stats().allocated_bytes, 0);
    }

    async fn memory_that_a_graph_keeps_is_held([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder.pinned_cap(MIB))?;
        let stream = device.new_stream()?;
        let x = stream.alloc::<u8>(MIB)?;
        let (graph, ()) = stream.capture(|stream| stream.write(&x, &vec![7; MIB]))?;
        let error = device.pinned::<u8>(MIB).await.unwrap_err();
        says(&error, ErrorKind::OutOfMemory, &["1.0 MiB asked, 1.0 MiB in use of 1.0 MiB"]);
        graph.launch(&stream).await?;
        drop(graph);
        assert!(stream.read(&x).await? == vec![7; MIB]);
    }

    async fn a_copy_of_nothing_waits_for_nothing([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder.pinned_cap(2 * MIB))?;
        let stream = device.new_stream()?;
        let (x, nothing) = (stream.alloc::<u8>(MIB)?, stream.alloc::<u8>(0)?);
        stream.write(&x, &vec![1; MIB]).queued()?;
        stream.write(&x, &vec![2; MIB]).queued()?;
        let mut waits = Box::pin(device.pinned::<u8>(2 * MIB));
        let _ = waits.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        stream.write(&nothing, &[]).await?;
        assert!(stream.read(&nothing).await?.is_empty());
        assert!(stream.copy_to_host(&nothing).await?.is_empty());
        drop(waits);
    }

    async fn a_buffer_that_is_read_and_not_awaited_comes_back([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder.pinned_cap(2 * MIB))?;
        let stream = device.new_stream()?;
        let x = stream.alloc::<u8>(MIB)?;
        stream.fill(&x, 3).queued()?;
        for _ in 0..20 {
            drop(stream.copy_to_host(&x));
        }
        drop(device.pinned::<u8>(2 * MIB).await?);
        // They are held as long as they are there.
        let buffers = [stream.copy_to_host(&x), stream.copy_to_host(&x)];
        assert!(device.try_pinned::<u8>(MIB).is_err());
        says(&device.pinned::<u8>(MIB).await.unwrap_err(), ErrorKind::OutOfMemory, &["2.0 MiB in use of 2.0 MiB"]);
        for buffer in buffers {
            assert!(buffer.await?[..] == vec![3; MIB]);
        }
        drop(device.pinned::<u8>(2 * MIB).await?);
    }

    async fn a_thread_waits_too_unless_it_calls_a_waker([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder.pinned_cap(2 * MIB))?;
        let stream = device.new_stream()?;
        let x = stream.alloc::<u8>(MIB)?;
        for _ in 0..10 {
            stream.write(&x, &vec![1; MIB]).queued()?;
            stream.write(&x, &vec![2; MIB]).queued()?;
            drop(device.blocking_pinned::<u8>(2 * MIB)?);
        }
        let summary = device.memory_summary();
        assert!(!summary.contains("requests for pinned memory"), "{summary}");
        stream.synchronize().await?;
    }

    async fn each_step_of_a_pipeline_may_be_as_large_as_the_cap([device]) {
        let (_runtime, device) = with_settings(&device, |builder| builder.pinned_cap(MIB))?;
        let (copy, compute) = (device.new_stream()?, device.new_stream()?);
        let mut results = Vec::new();
        for n in 0..12u8 {
            let x = copy.alloc::<u8>(MIB)?;
            copy.write(&x, &vec![n; MIB]).queued()?;
            compute.wait_stream(&copy).queued()?;
            let y = compute.alloc::<u8>(MIB)?;
            compute.copy_buffer(&y, &x).queued()?;
            results.push(compute.read(&y));
        }
        for (n, result) in try_join_all(results).await?.into_iter().enumerate() {
            assert!(result == vec![n as u8; MIB], "step {n}");
        }
    }

    async fn a_device_that_shuts_down_ends_a_wait([device]) {
        let (runtime, device) = with_settings(&device, |builder| builder.pinned_cap(2 * MIB))?;
        let stream = device.new_stream()?;
        let x = stream.alloc::<u8>(MIB)?;
        stream.write(&x, &vec![1; MIB]).queued()?;
        let copy = stream.copy_into(&x, device.pinned::<u8>(MIB).await?);
        let mut waits = Box::pin(device.pinned::<u8>(MIB));
        let first = waits.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        runtime.shut_down().await?;
        if first.is_pending() {
            // It may have been granted memory just before.
            let _ = waits.await;
        }
        let _ = copy.await;
    }
}
