//! Mistake 4: memory that one stream still reads is released, and another stream reuses it.
//!
//! With a `Buffer` the mistake cannot be made. The allocator knows which streams used the memory,
//! and the first op of a new owner on another stream waits for them, also with the check off:
//! [`dropped`] shows it. A program can make the mistake with memory that it divides itself, such as
//! blocks of one slab. Views of a slab share its history, so the check sees a block that is reused.

use warpline::ops::sum;
use warpline::prelude::*;

const LEN: usize = 100;

/// Hands a block of the slab to a second request while the first one reads it: the mistake.
pub(crate) async fn incorrect(device: &Device) -> warpline::Result<f32> {
    let first = device.stream().label("first").build()?;
    let second = device.stream().label("second").build()?;
    let slab = first.alloc::<f32>(4 * LEN)?;
    second.wait_stream(&first); // the slab exists
    let block = slab.slice(..LEN)?;
    first.fill(&block, 1.0).await?;
    let total = first.enter(|| sum(&block));
    drop(block); // the program counts it as free

    let block = slab.slice(..LEN)?; // the same bytes
    second.fill(&block, 2.0).queued()?; // perhaps before the sum
    total.await
}

/// Orders the second request after every use of the slab so far.
pub(crate) async fn correct(device: &Device) -> warpline::Result<f32> {
    let first = device.stream().label("first").build()?;
    let second = device.stream().label("second").build()?;
    let slab = first.alloc::<f32>(4 * LEN)?;
    let block = slab.slice(..LEN)?;
    first.fill(&block, 1.0).await?;
    let total = first.enter(|| sum(&block));
    drop(block);
    let block = slab.slice(..LEN)?;
    second.wait_for(&block);
    second.fill(&block, 2.0).queued()?;
    total.await
}

/// Drops buffers that one stream has yet to sum, and fills a new buffer on another stream. Returns
/// the sums, and true if the new buffer has the memory of one of the others.
pub(crate) async fn dropped(device: &Device) -> warpline::Result<([f32; 2], bool)> {
    const LARGE: usize = 4 << 20; // so that each buffer has a segment of its own
    let first = device.stream().label("first").build()?;
    let second = device.stream().label("second").build()?;
    let buffers = [first.alloc::<f32>(LARGE)?, first.alloc::<f32>(LARGE)?];
    let addresses = buffers.each_ref().map(Buffer::device_ptr);
    let blocks = [buffers[0].slice(..LEN)?, buffers[1].slice(..LEN)?];
    for block in &blocks {
        first.fill(block, 1.0).await?;
    }
    let sums = blocks.each_ref().map(|block| first.enter(|| sum(block)));
    drop((buffers, blocks)); // the sums have not run yet

    let buffer = second.alloc::<f32>(LARGE)?;
    second.fill(&buffer.slice(..LEN)?, 2.0).queued()?; // the runtime puts it after the sums
    let reused = addresses.contains(&buffer.device_ptr());
    let [one, two] = sums;
    Ok(([one.await?, two.await?], reused))
}
