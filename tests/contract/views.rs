//! Views of buffers: their properties and refusals.

use crate::contract;
use crate::support::says;
use warpline::prelude::*;

contract! {
    async fn views_share_memory_and_keep_it([device]) {
        let stream = device.new_stream()?;
        let x = stream.alloc::<f32>(24)?;
        let matrix = x.as_matrix(4)?;
        assert_eq!((x.shape(), matrix.shape()), ((1, 24, 24), (4, 6, 6)));
        let columns = matrix.columns(2..5)?;
        assert_eq!((columns.shape(), columns.len(), columns.len_bytes()), ((4, 3, 6), 12, 48));
        assert!(!columns.is_contiguous() && matrix.rows(1..2)?.is_contiguous());
        assert!(columns.rows(1..2)?.is_contiguous(), "one row of columns is one run");
        assert!(columns.shares_memory(&x) && !stream.alloc::<f32>(24)?.shares_memory(&x));
        assert_eq!(columns.device(), device);
        assert_eq!(columns.clone().shape(), columns.shape());
        let live = device.memory_stats().allocated_bytes;
        drop((x, matrix));
        assert_eq!(device.memory_stats().allocated_bytes, live, "the view keeps it");
        stream.fill(&columns, 1.0).await?;
        drop(columns);
        assert!(device.memory_stats().allocated_bytes < live);
    }

    async fn refused_views_say_both_numbers([device]) {
        let x = device.alloc::<f32>(10)?;
        let matrix = x.as_matrix(5)?;
        let strided = matrix.columns(..1)?;
        for (view, text) in [
            (x.slice(3..11), "slice: 3..11 is not within 0..10; pass a range inside the buffer"),
            (x.slice(7..usize::MAX), "is not within 0..10"),
            #[allow(clippy::reversed_empty_ranges, reason = "that is what is refused")]
            (x.slice(5..4), "slice: 5..4 is not within 0..10"),
            (matrix.rows(2..=5), "rows: 2..6 is not within 0..5"),
            (matrix.columns(0..3), "columns: 0..3 is not within 0..2"),
            (x.as_matrix(3), "as_matrix: 10 elements cannot be divided into 3 rows; pass a number \
                of rows that divides them"),
            (x.as_matrix(0), "10 elements cannot be divided into 0 rows"),
            (
                strided.slice(..1),
                "slice: the buffer is a strided view of 5 rows of 1 elements, 2 apart; select \
                rows or columns of it",
            ),
            (strided.as_matrix(5), "as_matrix: the buffer is a strided view of 5 rows of 1 \
                elements, 2 apart; copy it to contiguous memory first"),
        ] {
            says(&view.unwrap_err(), ErrorKind::Shape, &[text]);
        }
        assert_eq!(x.slice(10..)?.len(), 0);
    }
}
