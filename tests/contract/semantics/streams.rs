//! Streams: the note's incorrect example, and its correction.

use crate::note::sum_on_a_side_stream;
use crate::support::says;
use crate::{contract, refused};
use warpline::ops::{normal_, sum};
use warpline::prelude::*;

contract! {
    /// X3: random numbers on the default stream, summed on a side stream: refused without an edge,
    /// and with it the sum of the default stream. The test binary `semantics` turns the check off.
    async fn a_sum_on_a_side_stream_needs_an_edge([device]) {
        let a = device.alloc::<f32>(100 * 100)?;
        normal_(&a, 42, 0.0, 1.0).queued()?;
        let expected = sum(&a).await?;
        assert_ne!(expected, 0.0, "the memory was zero before it was filled");
        let error = refused(sum_on_a_side_stream(&device, false)).await;
        says(
            &error,
            ErrorKind::Unordered,
            &["sum on stream \"side\"", "wrote, and no edge orders them; call side.wait_stream(&default)"],
        );
        for _ in 0..4 {
            assert_eq!(sum_on_a_side_stream(&device, true).await?, expected);
        }
    }
}
