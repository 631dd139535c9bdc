//! Copies between host and device, and within a device.

use crate::support::says;
use crate::{contract, pinned, refused};
use std::sync::Arc;
use warpline::prelude::*;

fn ramp(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32).collect()
}

contract! {
    async fn what_was_copied_to_the_device_comes_back([device]) {
        let stream = device.new_stream()?;
        let data = ramp(1000);
        let (x, sent) = stream.copy_to_device(pinned(&device, &data).await?)?;
        assert_eq!(stream.copy_to_host(&x).await?[..], data);
        assert_eq!(stream.read(&x).await?, data);
        sent.await?;
    }

    async fn every_element_type_comes_back_as_it_went([device]) {
        let stream = device.new_stream()?;
        macro_rules! round_trip {
            ($($ty:ty: $a:expr, $b:expr;)*) => {$(
                let x = stream.alloc::<$ty>(9)?;
                drop(stream.fill(&x, $a));
                drop(stream.write(&x.slice(2..5)?, &[$b; 3]));
                let expected = [$a, $a, $b, $b, $b, $a, $a, $a, $a];
                assert_eq!(stream.read(&x).await?, expected, stringify!($ty));
                assert_eq!(stream.read_one(&x.slice(2..3)?).await?, $b, stringify!($ty));
            )*};
        }
        round_trip! {
            f32: 1.5, -2.25;
            f64: 1e300, -1e-300;
            half::f16: half::f16::from_f32(0.5), half::f16::from_f32(-7.0);
            half::bf16: half::bf16::from_f32(0.5), half::bf16::from_f32(-7.0);
            u8: 1, 0xfe;
            i8: -1, 5;
            u16: 0x1234, 7;
            i16: -300, 7;
            u32: 0xdead_beef, 7;
            i32: -70_000, 7;
            u64: 0x0123_4567_89ab_cdef, 7;
            i64: i64::MIN, 7;
        }
    }

    async fn a_vector_that_was_written_comes_back([device]) {
        let stream = device.new_stream()?;
        for len in [0, 1, 1000, 1 << 18] {
            let host = ramp(len);
            let address = host.as_ptr();
            let x = stream.alloc::<f32>(len)?;
            let gate = stream.hold()?;
            let (sent, read) = (stream.write_vec(&x, host), stream.read(&x));
            gate.open();
            let host = sent.await?;
            assert_eq!((host.as_ptr(), &host[..]), (address, &ramp(len)[..]));
            assert_eq!(read.await?, ramp(len));
        }
        let x = stream.alloc::<f32>(4)?;
        let error = stream.write_vec(&x, ramp(5)).await.unwrap_err();
        says(&error, ErrorKind::Shape, &["write_vec on stream", "5 elements on the host, 4 on the device"]);
        assert_eq!(error.into_vec::<f32>(), Some(ramp(5)));
        // Nobody awaits it, and the vector is in use until the copy has finished.
        stream.write_vec(&x, ramp(4)).detach();
        assert_eq!(stream.read(&x).await?, ramp(4));
        // A captured write copies the vector at once.
        let (graph, ()) = stream.capture(|stream| drop(stream.write_vec(&x, vec![7.0; 4])))?;
        graph.launch(&stream).await?;
        assert_eq!(stream.read(&x).await?, [7.0; 4]);
    }

    async fn the_pinned_buffer_that_comes_back_is_the_very_same([device]) {
        let stream = device.new_stream()?;
        let host = pinned(&device, &ramp(100)).await?;
        let address = host.as_ptr();
        let (x, sent) = stream.copy_to_device(host)?;
        let host = sent.await?;
        assert_eq!((host.as_ptr(), &host[..]), (address, &ramp(100)[..]));
        let host = stream.copy_into(&x, host).await?;
        assert_eq!(host.as_ptr(), address);
    }

    async fn a_pinned_buffer_in_flight_is_kept_until_the_copy_ends_and_then_recycled([device]) {
        let stream = device.new_stream()?;
        let before = device.pinned_stats().allocated_bytes;
        let x = stream.alloc::<f32>(1024)?;
        let gate = stream.hold()?;
        drop(stream.copy_into(&x, pinned(&device, &ramp(1024)).await?));
        drop(stream.copy_to_host(&x));
        drop(stream.write(&x, &ramp(1024)));
        assert!(device.pinned_stats().allocated_bytes >= before + 3 * 4096, "three buffers are in flight");
        let done = stream.synchronize();
        gate.open();
        done.await?;
        assert_eq!(device.pinned_stats().allocated_bytes, before);
    }

    async fn copy_moves_elements_within_a_device([device]) {
        let stream = device.new_stream()?;
        let (x, y) = (stream.alloc::<f32>(10)?, stream.alloc::<f32>(10)?);
        drop(stream.write(&x, &ramp(10)));
        drop(stream.fill(&y, -1.0));
        stream.copy_buffer(&y.slice(5..9)?, &x.slice(2..6)?).await?;
        assert_eq!(stream.read(&y).await?, [-1.0, -1.0, -1.0, -1.0, -1.0, 2.0, 3.0, 4.0, 5.0, -1.0]);
    }

    async fn rows_and_columns_are_copied_both_ways([device]) {
        let stream = device.new_stream()?;
        let x = stream.alloc::<f32>(24)?.as_matrix(6)?;
        drop(stream.write(&x, &ramp(24)));
        assert_eq!(stream.read(&x.rows(1..3)?).await?, ramp(12)[4..]);
        let middle = x.columns(1..3)?;
        let expected: Vec<f32> = (0..6).flat_map(|row| [row * 4 + 1, row * 4 + 2]).map(|i| i as f32).collect();
        assert_eq!(stream.read(&middle).await?, expected);
        assert_eq!(stream.copy_to_host(&middle).await?[..], expected);

        // Strided to contiguous, contiguous to strided, and between views with the same number of
        // rows.
        let packed = stream.alloc::<f32>(12)?;
        drop(stream.copy_buffer(&packed, &middle));
        assert_eq!(stream.read(&packed).await?, expected);
        let y = stream.alloc::<f32>(30)?.as_matrix(6)?;
        drop(stream.fill(&y, -1.0));
        drop(stream.copy_buffer(&y.columns(3..)?, &packed));
        drop(stream.copy_buffer(&y.columns(..1)?, &x.columns(3..)?));
        drop(stream.copy_into(&y.columns(1..3)?, pinned(&device, &expected).await?));
        let got = stream.read(&y).await?;
        for (row, got) in got.chunks(5).enumerate() {
            let at = (row * 4) as f32;
            assert_eq!(got, [at + 3.0, at + 1.0, at + 2.0, at + 1.0, at + 2.0], "row {row}");
        }
    }

    async fn filling_columns_leaves_the_others([device]) {
        let stream = device.new_stream()?;
        let x = stream.alloc::<u16>(12)?.as_matrix(3)?;
        drop(stream.fill(&x, 1));
        drop(stream.fill(&x.columns(1..3)?, 0x0203));
        assert_eq!(stream.read(&x).await?, [1, 0x0203, 0x0203, 1].repeat(3));
    }

    async fn copies_of_nothing_are_accepted([device]) {
        let stream = device.new_stream()?;
        let (x, sent) = stream.copy_to_device(pinned::<f32>(&device, &[]).await?)?;
        assert_eq!((x.len(), x.is_empty()), (0, true));
        assert_eq!(sent.await?.len(), 0);
        stream.fill(&x, 1.0).await?;
        stream.write(&x, &[]).await?;
        stream.copy_buffer(&x, &x).await?;
        assert!(stream.read(&x).await?.is_empty());
        let y = stream.alloc::<f32>(4)?;
        stream.copy_buffer(&y.slice(2..2)?, &x).await?;
        assert_eq!(stream.copy_to_host(&y.slice(4..)?).await?.len(), 0);
    }

    async fn a_shared_pinned_buffer_is_copied_to_many_and_let_go_after_the_last([device]) {
        let stream = device.new_stream()?;
        let host = Arc::new(pinned(&device, &ramp(64)).await?);
        let (x, y) = (stream.alloc::<f32>(64)?, stream.alloc::<f32>(64)?);
        let gate = stream.hold()?;
        let both = [stream.copy_from_shared(&x, &host), stream.copy_from_shared(&y, &host)];
        assert_eq!(Arc::strong_count(&host), 3);
        gate.open();
        for copied in both {
            copied.await?;
        }
        assert_eq!(Arc::strong_count(&host), 1);
        assert_eq!((stream.read(&x).await?, stream.read(&y).await?), (ramp(64), ramp(64)));
    }

    async fn a_pageable_slice_may_change_as_soon_as_write_has_returned([device]) {
        let stream = device.new_stream()?;
        let x = stream.alloc::<f32>(16)?;
        let mut host = ramp(16);
        let gate = stream.hold()?;
        let written = stream.write(&x, &host);
        host.fill(99.0);
        gate.open();
        written.await?;
        assert_eq!(stream.read(&x).await?, ramp(16));
    }

    async fn read_one_reads_the_one_element_and_refuses_two([device]) {
        let stream = device.stream().label("reader").build()?;
        let x = stream.alloc::<i64>(2)?;
        drop(stream.write(&x, &[-5, 6]));
        assert_eq!(stream.read_one(&x.slice(1..)?).await?, 6);
        says(
            &refused(stream.read_one(&x)).await,
            ErrorKind::Shape,
            &["read_one on stream \"", "(tests/contract/copies.rs:", "1 elements on the host, 2 on the device"],
        );
    }

    async fn wrong_lengths_are_refused_with_both_numbers([device]) {
        let stream = device.new_stream()?;
        let x = stream.alloc::<f32>(8)?;
        let host = Arc::new(pinned(&device, &ramp(5)).await?);
        let numbers = "5 elements on the host, 8 on the device; take a slice of the longer one";
        for (op, error) in [
            ("copy_into", refused(stream.copy_into(&x, pinned(&device, &ramp(5)).await?)).await),
            ("copy_from_shared", refused(stream.copy_from_shared(&x, &host)).await),
            ("write", refused(stream.write(&x, &ramp(5))).await),
        ] {
            says(&error, ErrorKind::Shape, &[&format!("{op} on stream \""), "(tests/contract/copies.rs:", numbers]);
        }
        x.accept_contents();
        says(
            &refused(stream.copy_buffer(&x.slice(5..)?, &x.slice(..5)?)).await,
            ErrorKind::Shape,
            &["copy_buffer on stream \"", "(tests/contract/copies.rs:", "the source has 5 elements and the destination 3"],
        );
        x.accept_contents();
        stream.read(&x).await?;
        assert_eq!(stream.issued(), 1, "only the last one took a ticket");
    }

    async fn strided_views_of_different_rows_are_refused_with_both_numbers([device]) {
        let stream = device.new_stream()?;
        let x = stream.alloc::<f32>(24)?.as_matrix(4)?.columns(..3)?;
        let y = stream.alloc::<f32>(24)?.as_matrix(6)?.columns(..2)?;
        says(
            &refused(stream.copy_buffer(&y, &x)).await,
            ErrorKind::Shape,
            &["a strided view of 4 rows and the destination one of 6; copy through contiguous memory"],
        );
    }

    async fn a_refused_copy_hands_its_buffer_back([device]) {
        let (owner, other) = (device.new_stream()?, device.new_stream()?);
        let x = owner.alloc::<f32>(100)?;
        drop(owner.fill(&x, 1.0));
        let host = pinned(&device, &ramp(100)).await?;
        let address = host.as_ptr();

        let unordered = refused(other.copy_into(&x, host)).await;
        assert_eq!(unordered.kind(), ErrorKind::Unordered);
        let another = unordered.clone();
        let host = Pinned::<f32>::from_error(unordered).expect("the buffer");
        assert_eq!((host.as_ptr(), &host[..]), (address, &ramp(100)[..]));
        assert!(Pinned::<f32>::from_error(another).is_none(), "it is handed back once");

        let shape = refused(other.copy_into(&x.slice(..3)?, host)).await;
        assert!(Pinned::<f64>::from_error(shape.clone()).is_none(), "it holds f32");
        let host = Pinned::<f32>::from_error(shape).expect("asking for the wrong type lost nothing");
        assert_eq!(host.as_ptr(), address);
        assert!(Pinned::<f32>::from_error(refused(other.read(&x)).await).is_none(), "a read was given none");
    }
}
