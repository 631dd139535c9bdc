//! Ops on plain buffers: the lengths that they take, and what they keep on the device.

use crate::support::says;
use crate::{contract, refused};
use warpline::ops::{ColumnMoments, add_, axpy_, column_sums_into, copy_, relu_into, standardize_};
use warpline::prelude::*;

/// Returns a buffer of `len` elements, each `value`, whose write has been awaited.
async fn filled(stream: &Stream, len: usize, value: f32) -> warpline::Result<Buffer<f32>> {
    let buffer = stream.alloc(len)?;
    stream.fill(&buffer, value).await?;
    Ok(buffer)
}

contract! {
    async fn lengths_that_do_not_fit_are_refused([device]) {
        let stream = device.default_stream()?;
        let x = filled(&stream, 10, 1.0).await?;
        let three = filled(&stream, 3, 1.0).await?;
        let eleven = filled(&stream, 11, 1.0).await?;
        let none = stream.alloc::<f32>(0)?;
        let moments = ColumnMoments::new(3, &device)?;
        for (op, pending) in [
            ("column_sums_into on stream", column_sums_into(&three, &x)),
            ("standardize_ on stream", standardize_(&x, &three, &three)),
            ("ColumnMoments::merge on stream", moments.merge(&x)),
        ] {
            let uneven = "x has 10 elements, which is not a multiple of its 3 columns";
            says(&refused(pending).await, ErrorKind::Shape, &[op, "tests/contract/buffers.rs:", uneven]);
        }
        // A refusal that nobody looks at is the stream's, or the capture's.
        column_sums_into(&three, &x).detach();
        says(&stream.synchronize().await.unwrap_err(), ErrorKind::Shape, &["column_sums_into on stream"]);
        let captured = device.new_stream()?;
        let refused_step = captured.capture(|_| moments.merge(&x).detach()).map(drop).unwrap_err();
        says(&refused_step, ErrorKind::Shape, &["ColumnMoments::merge on stream"]);
        says(&refused(standardize_(&x, &filled(&stream, 5, 0.0).await?, &three)).await, ErrorKind::Shape, &["deviation.len() = 3"]);
        for pending in [
            relu_into(&three, &x),
            relu_into(&x, &three),
            add_(&x, &three),
            add_(&x, &eleven),
            axpy_(&x, 2.0, &three),
            axpy_(&x, 2.0, &eleven),
            copy_(&x, &three),
            copy_(&x, &eleven),
            column_sums_into(&none, &x),
            column_sums_into(&eleven, &x),
        ] {
            says(&refused(pending).await, ErrorKind::Shape, &["10"]);
        }
        // A refused write marks what it would have written.
        x.accept_contents();
        assert_eq!(stream.read(&x).await?, [1.0; 10]);
        column_sums_into(&none, &none).await?;
        assert_eq!(moments.seen().await?, 0);
    }

    async fn moments_of_no_rows_are_zero_and_one([device]) {
        let stream = device.new_stream()?;
        // The moments get this memory.
        drop((filled(&stream, 512, 7.0).await?, filled(&stream, 512, 7.0).await?, filled(&stream, 512, 7.0).await?));
        let moments = stream.enter(|| ColumnMoments::new(3, &device))?;
        let (mean, deviation) = stream.enter(|| moments.scales())?;
        assert_eq!((stream.read(&mean).await?, stream.read(&deviation).await?), (vec![0.0; 3], vec![1.0; 3]));
    }

    async fn a_refused_merge_counts_nothing([device]) {
        let (copy, stream) = (device.new_stream()?, device.new_stream()?);
        let x = copy.alloc::<f32>(8)?;
        copy.write(&x, &[3.0; 8]).queued()?;
        let moments = stream.enter(|| ColumnMoments::new(2, &device))?;
        says(&refused(stream.enter(|| moments.merge(&x))).await, ErrorKind::Unordered, &["call wait_stream on stream"]);
        stream.wait_stream(&copy);
        stream.enter(|| moments.merge(&x)).await?;
        assert_eq!(stream.enter(|| moments.seen()).await?, 4);
        let (mean, deviation) = stream.enter(|| moments.scales())?;
        assert_eq!((stream.read(&mean).await?, stream.read(&deviation).await?), (vec![3.0; 2], vec![1.0; 2]));
    }

    async fn a_captured_merge_counts_at_each_launch([device]) {
        let stream = device.new_stream()?;
        let x = stream.alloc::<f32>(8)?;
        let moments = stream.enter(|| ColumnMoments::new(2, &device))?;
        let (graph, ()) = stream.capture(|_| drop(moments.merge(&x)))?;
        for value in [1.0, 2.0, 3.0] {
            stream.fill(&x, value).queued()?;
            graph.launch(&stream).queued()?;
        }
        assert_eq!(stream.enter(|| moments.seen()).await?, 12);
        let (mean, _) = stream.enter(|| moments.scales())?;
        assert_eq!(stream.read(&mean).await?, [2.0; 2]);
    }
}
