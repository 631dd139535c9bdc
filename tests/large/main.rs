//! Ops on more than 2³² elements, by the CPU forms of kernels.
//!
//! The system commits memory where it is written, so 17 GiB of address space cost few pages. The
//! tests need optimization:
//! `cargo test --release -p warpline-tests --all-features --test large -- --ignored`.

use warpline::Element;
use warpline::ops::{ColumnMoments, column_sums_into, sum};
use warpline::prelude::*;

/// The number of elements. Cut to 32 bits, it is 16.
const LEN: usize = (1 << 32) + 16;

/// Returns `LEN` elements, of which the last 16 are 1 and the others 0.
fn ones_at_the_end<T: Element + From<u8>>(stream: &Stream) -> warpline::Result<Buffer<T>> {
    // A CPU device allocates memory of zeros.
    let x = stream.alloc::<T>(LEN)?;
    stream.fill(&x.slice(LEN - 16..)?, T::from(1)).queued()?;
    Ok(x)
}

fn new_stream() -> warpline::Result<(Runtime, Stream)> {
    let runtime = Runtime::new()?;
    let stream = runtime.device(DeviceId::Cpu(0))?.new_stream()?;
    Ok((runtime, stream))
}

#[test]
#[ignore = "needs optimization and 17 GiB of address space"]
fn sums_and_maxima_reach_the_last_element() -> warpline::Result<()> {
    let (_runtime, stream) = new_stream()?;
    let x = ones_at_the_end::<f32>(&stream)?;
    let value = |pending: Pending<Tensor>| pending.item::<f32>().blocking_wait();
    let vector = Tensor::from_buffer(x.clone(), [LEN])?;
    stream.enter(|| {
        assert_eq!(sum(&x).blocking_wait()?, 16.0);
        assert_eq!(value(vector.sum())?, 16.0);
        assert_eq!(value(vector.mean())?, 16.0 / LEN as f32);
        assert_eq!(value(vector.max())?, 1.0);
        let row = Tensor::from_buffer(x.clone(), [1, LEN])?;
        assert_eq!(row.argmax().to_vec::<i64>().blocking_wait()?, [LEN as i64 - 16]);
        Ok(())
    })
}

#[test]
#[ignore = "needs optimization and 17 GiB of address space"]
fn columns_reach_the_last_row() -> warpline::Result<()> {
    let (_runtime, stream) = new_stream()?;
    let x = ones_at_the_end::<f32>(&stream)?;
    stream.enter(|| {
        let sums = stream.alloc::<f32>(1)?;
        column_sums_into(&sums, &x).queued()?;
        assert_eq!(stream.read(&sums).blocking_wait()?, [16.0]);
        let matrix = Tensor::from_buffer(x.clone(), [LEN, 1])?;
        assert_eq!(matrix.sum_rows().to_vec::<f32>().blocking_wait()?, [16.0]);
        let moments = ColumnMoments::new(1, &stream.device())?;
        moments.merge(&x).queued()?;
        assert_eq!(moments.seen().blocking_wait()?, LEN as u64);
        let (mean, _) = moments.scales()?;
        assert_eq!(stream.read(&mean).blocking_wait()?, [(16.0 / LEN as f64) as f32]);
        Ok(())
    })
}

#[test]
#[ignore = "needs optimization and 9 GiB of memory"]
fn copies_and_casts_reach_the_last_element() -> warpline::Result<()> {
    let (_runtime, stream) = new_stream()?;
    let x = ones_at_the_end::<u8>(&stream)?;
    stream.enter(|| {
        let y = stream.alloc::<u8>(LEN)?;
        stream.copy_buffer(&y, &x).queued()?;
        let last = y.slice(LEN - 20..)?;
        let expected = [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1];
        assert_eq!(stream.read(&last).blocking_wait()?, expected);
        stream.fill(&y, 7).queued()?;
        assert_eq!(stream.read(&last).blocking_wait()?, [7; 20]);
        drop(y);
        let signed = Tensor::from_buffer(x, [LEN])?.to(DType::I8).queued()?;
        let last = signed.buffer::<i8>()?.slice(LEN - 20..)?;
        assert_eq!(stream.read(&last).blocking_wait()?, expected.map(|x| x as i8));
        Ok(())
    })
}
