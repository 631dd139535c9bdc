//! Copies of tensors between two devices, for devices of one backend and of two.

use crate::refused;
use crate::support::says;
use warpline::Result;
use warpline::prelude::*;

fn ramp(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32).collect()
}

pub(crate) async fn moves(one: &Device, two: &Device) -> Result<()> {
    let x = Tensor::from_host(&ramp(6), [2, 3], one).queued()?;
    let y = x.to(two).queued()?;
    assert_eq!((y.device(), y.shape(), y.dtype()), (two.clone(), &[2, 3][..], DType::F32));
    assert_eq!(y.to_vec::<f32>().await?, ramp(6));
    // A result is on the device of its operands, whatever device is current.
    let z = one.enter(|| (&y).add(&y));
    assert_eq!(z.as_operand().unwrap().device(), *two);
    assert_eq!(z.to(one).to_vec::<f32>().await?, [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
    // The layout is kept: the copy of a transposed view is one.
    let t = x.t().to(two).queued()?;
    assert_eq!((t.shape(), t.is_contiguous()), (&[3, 2][..], false));
    assert_eq!(t.contiguous().to_vec::<f32>().await?, [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    // Also other types, scalars and nothing at all.
    let labels = Tensor::from_host(&[1i64, i64::MIN, i64::MAX], [3], one).to(two);
    assert_eq!(labels.to_vec::<i64>().await?, [1, i64::MIN, i64::MAX]);
    assert_eq!(x.sum().to(two).item::<f32>().await?, 15.0);
    let empty = Tensor::empty([0, 3], one).to(two).await?;
    assert_eq!((empty.shape(), empty.device()), (&[0, 3][..], two.clone()));
    // In place.
    let target = Tensor::zeros([2, 3], two).queued()?;
    let written = target.copy_(&x).await?;
    assert!(written.shares_memory(&target));
    assert_eq!(target.to_vec::<f32>().await?, ramp(6));
    // The source is unchanged.
    assert_eq!(x.to_vec::<f32>().await?, ramp(6));
    Ok(())
}

pub(crate) async fn order_themselves(one: &Device, two: &Device) -> Result<()> {
    let (from, to) = (one.default_stream()?, two.default_stream()?);
    let target = Tensor::full([1000], 1.0, two).await?;
    let x = Tensor::zeros([1000], one).await?;
    let gate = from.hold()?;
    // Before the copy, on both streams.
    x.fill_(5.0).detach();
    let seen = target.sum().item::<f32>();
    target.copy_(&x).detach();
    // After the copy, on both streams.
    x.fill_(9.0).detach();
    let doubled = target.mul(2.0);
    let mut last = doubled.to_vec::<f32>();
    assert!(!last.query()?, "the gate holds the first stream, and the copy is behind it");
    gate.open();
    assert_eq!(seen.await?, 1000.0);
    assert_eq!(last.await?, [10.0; 1000]);
    assert_eq!(target.to_vec::<f32>().await?, [5.0; 1000]);
    assert_eq!(x.to_vec::<f32>().await?, [9.0; 1000]);
    // From the other stream's side.
    let gate = to.hold()?;
    target.fill_(7.0).detach();
    let back = target.to(one);
    let read = back.to_vec::<f32>();
    gate.open();
    assert_eq!(read.await?, [7.0; 1000]);
    Ok(())
}

pub(crate) async fn do_not_order_others(one: &Device, two: &Device) -> Result<()> {
    let side = two.stream().label("side").build()?;
    let x = Tensor::ones([8], one).await?;
    let y = Tensor::zeros([8], two).await?;
    y.copy_(&x).queued()?;
    says(
        &refused(side.enter(|| y.sum())).await,
        ErrorKind::Unordered,
        &["sum on stream \"side\" (tests/contract/transfers.rs:", "reads memory that copy_ on stream"],
    );
    // The streams of the scopes are the current ones.
    let other = one.new_stream()?;
    other.wait_stream(&one.default_stream()?);
    side.wait_stream(&two.default_stream()?);
    let copied = other.enter(|| side.enter(|| y.copy_(&x)));
    assert_eq!(side.enter(|| copied.to_vec::<f32>()).await?, [1.0; 8]);
    Ok(())
}

pub(crate) async fn say_what_does_not_fit(one: &Device, two: &Device) -> Result<()> {
    let x = Tensor::ones([2, 3], one).await?;
    let (short, labels) = (Tensor::zeros([3], two).await?, Tensor::full([2, 3], 7i64, two).await?);
    says(
        &refused(short.copy_(&x)).await,
        ErrorKind::Shape,
        &[
            "copy_ on stream \"default\" (tests/contract/transfers.rs:",
            "a tensor of shape [2, 3] cannot be written into one of shape [3]",
        ],
    );
    // It converts and repeats.
    assert_eq!(labels.copy_(short.copy_(Tensor::new(2.75, one))).to_vec::<i64>().await?, [2; 6]);
    let elsewhere = Runtime::new()?;
    let foreign = elsewhere.device(DeviceId::Cpu(0))?;
    says(&refused(x.to(&foreign)).await, ErrorKind::DeviceMismatch, &["to on stream", "of another runtime"]);
    // A refused tensor passes its error on.
    let error = refused(short.copy_(&x).to(one)).await;
    says(&error, ErrorKind::Shape, &["copy_ on stream"]);
    // The device of a name that does not exist.
    says(
        &refused(x.cuda_on(99)).await,
        ErrorKind::NoSuchDevice,
        &["cuda_on (tests/contract/transfers.rs:", "there is no cuda:99"],
    );
    Ok(())
}
