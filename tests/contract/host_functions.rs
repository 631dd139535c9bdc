//! Host functions in stream order.

use crate::contract;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use warpline::prelude::*;

contract! {
    async fn a_host_function_runs_between_what_was_enqueued_before_and_after([device]) {
        let stream = device.new_stream()?;
        let (x, count) = (stream.alloc::<f32>(4)?, Arc::new(AtomicU32::new(0)));
        drop(stream.fill(&x, 1.0));
        let before = stream.read(&x);
        let (one, two) = (count.clone(), count.clone());
        let first = stream.call(move || one.fetch_add(1, Ordering::SeqCst));
        drop(stream.fill(&x, 2.0));
        let second = stream.call(move || two.fetch_add(1, Ordering::SeqCst));
        assert_eq!(stream.read(&x).await?, [2.0; 4]);
        assert_eq!(count.load(Ordering::SeqCst), 2);
        assert_eq!((before.await?, first.await?, second.await?), (vec![1.0; 4], 0, 1));
    }

    async fn its_value_is_what_the_pending_gives([device]) {
        let stream = device.new_stream()?;
        assert_eq!(stream.call(|| "text".to_owned()).await?, "text");
        let failed: Result<(), String> = stream.call(|| Err("mine".to_owned())).await?;
        assert_eq!(failed.unwrap_err(), "mine", "an error of the function's own is a value like any other");
    }

    async fn it_is_called_also_when_nobody_waits_for_it([device]) {
        let stream = device.new_stream()?;
        let count = Arc::new(AtomicU32::new(0));
        for _ in 0..10 {
            let count = count.clone();
            drop(stream.call(move || count.fetch_add(1, Ordering::SeqCst)));
        }
        stream.synchronize().await?;
        assert_eq!(count.load(Ordering::SeqCst), 10);
        assert_eq!(Arc::strong_count(&count), 1, "and the closures are gone");
    }
}
