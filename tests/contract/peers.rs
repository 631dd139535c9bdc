//! Copies between two devices of one runtime.

use crate::support::says;
use crate::{contract, refused};
use warpline::Result;
use warpline::prelude::*;

fn ramp(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32).collect()
}

/// Copies memory of `from` to memory of `to` on a stream of `on`, once for each shape of the two
/// ends.
pub(crate) async fn copied(on: &Device, from: &Device, to: &Device) -> Result<()> {
    let (stream, source, destination) = (on.new_stream()?, from.new_stream()?, to.new_stream()?);
    for (from_columns, to_columns) in [(false, false), (true, false), (false, true), (true, true)] {
        let x = source.alloc::<f32>(24)?;
        let y = destination.alloc::<f32>(24)?;
        drop((source.write(&x, &ramp(24)), destination.fill(&y, -1.0)));
        let part = |of: &Buffer<f32>, columns| match columns {
            true => of.as_matrix(4)?.columns(1..4),
            false => of.slice(0..12),
        };
        drop((stream.wait_stream(&source), stream.wait_stream(&destination)));
        drop(stream.copy_buffer_peer(&part(&y, to_columns)?, &part(&x, from_columns)?));
        destination.wait_stream(&stream);
        let mut expected = vec![-1.0; 24];
        let places = |columns: bool| {
            (0..24).filter(move |i| if columns { (1..4).contains(&(i % 6)) } else { *i < 12 })
        };
        for (from, to) in places(from_columns).zip(places(to_columns)) {
            expected[to] = from as f32;
        }
        let placed = format!("on {on}, from {from} to {to}, columns: {from_columns} to {to_columns}");
        assert_eq!(destination.read(&y).await?, expected, "{placed}");
    }
    Ok(())
}

contract! {
    async fn copy_peer_takes_every_placement([one, two]) {
        for on in [&one, &two] {
            for from in [&one, &two] {
                for to in [&one, &two] {
                    copied(on, from, to).await?;
                }
            }
        }
    }

    async fn a_stream_of_a_third_device_copies_between_two([one, two, third]) {
        copied(&third, &one, &two).await?;
        copied(&third, &two, &one).await?;
        copied(&third, &two, &two).await?;
    }

    async fn copy_peer_with_its_edges_moves_the_elements([one, two]) {
        let (source, destination) = (one.new_stream()?, two.new_stream()?);
        let (x, y) = (source.alloc::<f32>(100)?, destination.alloc::<f32>(100)?);
        drop(source.write(&x, &ramp(100)));
        source.wait_stream(&destination);
        drop(source.copy_buffer_peer(&y, &x));
        destination.wait_stream(&source);
        assert_eq!(destination.read(&y).await?, ramp(100));
        assert_eq!((x.device(), y.device()), (one, two));
    }

    async fn copy_peer_without_its_edges_is_refused([one, two]) {
        let source = one.stream().label("source").build()?;
        let destination = two.stream().label("destination").build()?;
        let (x, y) = (source.alloc::<f32>(100)?, destination.alloc::<f32>(100)?);
        drop(source.fill(&x, 1.0));
        drop(destination.fill(&y, 2.0));
        says(
            &refused(source.copy_buffer_peer(&y, &x)).await,
            ErrorKind::Unordered,
            &[
                "copy_buffer_peer on stream \"source\" (tests/contract/peers.rs:",
                "writes memory that fill on stream \"destination\"",
                "call source.wait_stream(&destination) before it",
            ],
        );
        source.wait_stream(&destination);
        drop(source.copy_buffer_peer(&y, &x));
        says(
            &refused(destination.read(&y)).await,
            ErrorKind::Unordered,
            &["reads memory that copy_buffer_peer on stream \"source\"", "call destination.wait_stream(&source) before it"],
        );
        destination.wait_for(&y);
        assert_eq!(destination.read(&y).await?, [1.0; 100]);
    }

    async fn the_edge_between_devices_holds_on_the_device([one, two]) {
        let (a, b) = (one.new_stream()?, two.new_stream()?);
        let (x, y) = (a.alloc::<f32>(10)?, b.alloc::<f32>(10)?);
        a.wait_stream(&b);
        let gate = a.hold()?;
        drop(a.fill(&x, 5.0));
        drop(a.copy_buffer_peer(&y, &x));
        b.wait_stream(&a);
        let mut read = b.read(&y);
        assert!(!read.query()?, "b waits for a, which the gate holds");
        gate.open();
        assert_eq!(read.await?, [5.0; 10]);
    }

    async fn columns_cross_devices_too([one, two]) {
        let (a, b) = (one.new_stream()?, two.new_stream()?);
        let x = a.alloc::<f32>(12)?.as_matrix(4)?;
        let y = b.alloc::<f32>(8)?;
        drop(a.write(&x, &ramp(12)));
        a.wait_stream(&b);
        a.copy_buffer_peer(&y, &x.columns(1..)?).await?;
        assert_eq!(b.read(&y).await?, [1.0, 2.0, 4.0, 5.0, 7.0, 8.0, 10.0, 11.0]);
    }

    async fn a_plain_copy_to_another_device_is_refused([one, two]) {
        let stream = one.new_stream()?;
        let (x, y) = (stream.alloc::<f32>(8)?, two.new_stream()?.alloc::<f32>(8)?);
        let devices = format!("the stream is on {one} and an operand is on {two}; move a tensor with to, or a buffer with copy_buffer_peer");
        says(&refused(stream.copy_buffer(&y, &x)).await, ErrorKind::DeviceMismatch, &[&devices]);
    }

    async fn one_shared_pinned_buffer_goes_to_both([one, two]) {
        let (a, b) = (one.new_stream()?, two.new_stream()?);
        let host = std::sync::Arc::new(crate::pinned(&one, &ramp(50)).await?);
        let (x, y) = (a.alloc::<f32>(50)?, b.alloc::<f32>(50)?);
        let (to_x, to_y) = (a.copy_from_shared(&x, &host), b.copy_from_shared(&y, &host));
        to_x.await?;
        to_y.await?;
        assert_eq!((a.read(&x).await?, b.read(&y).await?), (ramp(50), ramp(50)));
    }
}
