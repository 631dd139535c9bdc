//! Sets that requests lease.

use crate::on_threads_and_seeds;
use futures::FutureExt;
use futures::future::join_all;
use std::pin::pin;
use warpline::prelude::*;
use warpline::serve::Slots;

/// A graph that doubles three numbers, with its buffers.
async fn doubling(device: &Device, count: usize) -> Slots<(Tensor, Graph, Tensor)> {
    let built = Slots::build(device, count, |stream| {
        let x = Tensor::from_buffer(stream.alloc_zeroed::<f32>(3)?, [3])?;
        let (graph, y) = stream.capture(|_| &x * 2.0)?;
        Ok((x, graph, y))
    });
    built.await.unwrap()
}

#[test]
fn requests_that_share_graphs_get_their_own_answers() {
    on_threads_and_seeds(|device| async move {
        let slots = doubling(&device, 2).await;
        let requests = (0..12).map(|n| {
            let slots = slots.clone();
            tokio::spawn(async move {
                for round in 0..4 {
                    let value = (n * 10 + round) as f32;
                    let slot = slots.lease().await.unwrap();
                    let (x, graph, y) = &*slot;
                    slot.stream().write(x.buffer().unwrap(), &[value; 3]).queued().unwrap();
                    graph.launch(slot.stream()).queued().unwrap();
                    let read = slot.stream().read::<f32>(y.buffer().unwrap());
                    if (n + round) % 3 == 0 {
                        // It leaves with the work in flight.
                        continue;
                    }
                    assert_eq!(read.await.unwrap(), [2.0 * value; 3]);
                }
            })
        });
        for request in join_all(requests.collect::<Vec<_>>()).await {
            request.unwrap();
        }
        // The work that was left in flight ends.
        let all = [slots.lease().await.unwrap(), slots.lease().await.unwrap()];
        assert_eq!(slots.available(), 0);
        drop(all);
    });
}

#[test]
fn a_set_is_available_again_when_the_work_of_its_lease_has_finished() {
    on_threads_and_seeds(|device| async move {
        let slots = doubling(&device, 1).await;
        let slot = slots.lease().await.unwrap();
        let gate = slot.stream().hold().unwrap();
        slot.stream().write(slot.0.buffer().unwrap(), &[7.0f32; 3]).queued().unwrap();
        drop(slot);
        let mut next = pin!(slots.lease());
        assert!(next.as_mut().now_or_never().is_none());
        gate.open();
        let next = next.await.unwrap();
        // Another stream, without an edge of its own.
        assert_eq!(next.stream().read::<f32>(next.0.buffer().unwrap()).await.unwrap(), [7.0; 3]);
    });
}

#[test]
fn slots_whose_sets_cannot_be_built_are_not_built() {
    on_threads_and_seeds(|device| async move {
        let none = Slots::build(&device, 0, |_| Ok(())).await.map(drop).unwrap_err();
        assert_eq!(none.kind(), ErrorKind::InvalidArgument, "{none}");
        let failed = Slots::build(&device, 1, |_| Err::<(), _>(Error::new(ErrorKind::Data, "planned"))).await;
        assert_eq!(failed.map(drop).unwrap_err().to_string(), "planned");
    });
}
