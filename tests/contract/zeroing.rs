//! The contents of memory that had an earlier owner.

use crate::{contract, with_settings};
use warpline::Result;
use warpline::prelude::*;

const SECRET: u8 = 0xa5;

/// Opens the device in a runtime that zeroes the memory it hands out.
fn zeroing(device: &Device) -> Result<(Runtime, Device)> {
    with_settings(device, |builder| builder.zero_on_free(true))
}

/// Writes secrets into a block of `len` bytes and frees it. The device may not have written them
/// yet when this returns.
fn leave(stream: &Stream, len: usize) -> Result<()> {
    stream.fill(&stream.alloc::<u8>(len)?, SECRET).queued()
}

contract! {
    async fn alloc_zeroed_is_zero_whatever_was_there([device]) {
        let stream = device.new_stream()?;
        for len in [1, 13, 512, 4096, 3 << 20] {
            for _ in 0..2 {
                leave(&stream, len)?;
                let fresh = stream.alloc_zeroed::<u8>(len)?;
                assert_eq!(stream.read(&fresh).await?, vec![0; len]);
            }
        }
        leave(&stream, 8 * 100)?;
        assert_eq!(stream.read(&stream.alloc_zeroed::<f64>(100)?).await?, [0.0; 100]);
        assert_eq!(stream.read(&stream.alloc_zeroed::<f64>(0)?).await?, [0.0; 0]);
        leave(&device.default_stream()?, 4 * 100)?;
        let current = device.alloc_zeroed::<u32>(100)?;
        assert_eq!(device.default_stream()?.read(&current).await?, [0; 100]);
    }

    async fn alloc_zeroed_is_an_op_that_takes_no_room([device]) {
        // Room for the gate and the read.
        let stream = device.stream().max_in_flight(2).build()?;
        let gate = stream.hold()?;
        let issued = stream.issued();
        let zeroed = stream.alloc_zeroed::<u8>(10)?;
        assert_eq!(stream.issued(), issued + 1);
        let room = stream.room().await?;
        gate.open();
        assert_eq!(room.enter(|| stream.read(&zeroed)).await?, [0; 10]);
    }

    async fn another_stream_needs_an_edge_from_the_one_that_zeroed([device]) {
        let (a, b) = (device.new_stream()?, device.new_stream()?);
        a.synchronize().await?;
        let gate = a.hold()?;
        let zeroed = a.alloc_zeroed::<u8>(10)?;
        crate::support::says(
            &crate::refused(b.read(&zeroed)).await,
            ErrorKind::Unordered,
            &["reads memory that alloc_zeroed on stream"],
        );
        b.wait_stream(&a);
        gate.open();
        assert_eq!(b.read(&zeroed).await?, [0; 10]);
    }

    async fn no_owner_sees_what_an_earlier_one_left([device]) {
        let (_runtime, device) = zeroing(&device)?;
        let stream = device.new_stream()?;
        // Reuses the block itself, a part of it, and parts joined, for small and for large blocks.
        for unit in [512, 2 << 20] {
            let before = device.memory_stats().reserved_bytes;
            leave(&stream, 8 * unit)?;
            for part in [8, 3, 1, 5] {
                let len = part * unit - 7;
                let [one, two] = [stream.alloc::<u8>(len)?, stream.alloc::<u8>(len)?];
                for fresh in [one, two] {
                    assert_eq!(stream.read(&fresh).await?, vec![0; len]);
                    drop(stream.fill(&fresh, SECRET));
                }
            }
            let two = 2 * (8 * unit).next_multiple_of(2 << 20);
            assert!(device.memory_stats().reserved_bytes <= before + two, "blocks were used again");
        }
        // Through a strided view, and through a tensor.
        leave(&stream, 4 * 64)?;
        let columns = stream.alloc::<f32>(64)?.as_matrix(8)?.columns(2..5)?;
        assert_eq!(stream.read(&columns).await?, [0.0; 24]);
        leave(&device.default_stream()?, 4 * 64)?;
        assert_eq!(Tensor::empty([64], &device).to_vec::<f32>().await?, [0.0; 64]);
        // The memory is returned to the driver in between.
        leave(&stream, 3 << 20)?;
        stream.synchronize().await?;
        device.empty_cache();
        let fresh = stream.alloc::<u8>(3 << 20)?;
        assert_eq!(stream.read(&fresh).await?, vec![0; 3 << 20]);
    }

    async fn memory_freed_while_another_stream_reads_it_is_zeroed_after_that([device]) {
        let (_runtime, device) = zeroing(&device)?;
        let (a, b) = (device.new_stream()?, device.new_stream()?);
        let kept = b.alloc::<u8>(1 << 20)?;
        // The allocator reuses a block that another stream still uses only if it has two of them.
        let gate = b.hold()?;
        for _ in 0..4 {
            let secret = a.alloc::<u8>(1 << 20)?;
            drop(a.fill(&secret, SECRET));
            b.wait_stream(&a);
            b.copy_buffer(&kept, &secret).queued()?;
        }
        let fresh = a.alloc::<u8>(1 << 20)?;
        assert!(device.memory_stats().served.waited > 0, "it waits for the reader");
        let seen = a.read(&fresh);
        gate.open();
        assert_eq!(seen.await?, vec![0; 1 << 20]);
        assert_eq!(b.read(&kept).await?, vec![SECRET; 1 << 20], "and the reader had it whole");
    }

    async fn each_launch_of_a_graph_zeroes_what_the_graph_allocated([device]) {
        let (_runtime, device) = zeroing(&device)?;
        let stream = device.new_stream()?;
        leave(&stream, 4096)?;
        let result = stream.alloc::<u8>(4096)?;
        let (graph, ()) = stream.capture(|s| {
            let inner = s.alloc::<u8>(4096)?;
            s.copy_buffer(&result, &inner).queued()?;
            s.fill(&inner, SECRET).queued()
        })?;
        for _ in 0..2 {
            drop(stream.fill(&result, 1));
            drop(graph.launch(&stream));
            assert_eq!(stream.read(&result).await?, [0; 4096]);
        }
    }

    async fn pinned_memory_shows_nothing_of_its_earlier_owner([device]) {
        let (_runtime, device) = zeroing(&device)?;
        for len in [100, 5000, 3 << 20] {
            device.pinned::<u8>(len).await?.fill(SECRET);
            let shorter = len - len / 10;
            assert!(device.pinned::<u8>(shorter).await?.iter().all(|&byte| byte == 0));
            device.blocking_pinned::<u8>(len)?.fill(SECRET);
            assert!(device.blocking_pinned::<u8>(len)?.iter().all(|&byte| byte == 0));
        }
        let reserved = device.pinned_stats().reserved_bytes;
        assert!(reserved <= 2 * (4096 + 8192 + (3 << 20)), "{reserved} bytes: blocks were used again");
    }
}
