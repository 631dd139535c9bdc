//! Tensors and buffers of `cpu:0` in page-locked memory.

use crate::support::says;
use crate::{contract, pinned, refused};
use warpline::Result;
use warpline::prelude::*;

/// Returns `cpu:0`, and the device whose pool `pin_memory` uses.
fn host_and_pool(device: &Device) -> Result<(Device, Device)> {
    let host = device.sibling(DeviceId::Cpu(0))?;
    let pool = host.current_cuda().unwrap_or_else(|_| host.clone());
    Ok((host, pool))
}

fn ramp(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32).collect()
}

contract! {
    async fn a_pinned_tensor_is_a_copy_that_every_op_takes([device]) {
        let (host, _) = host_and_pool(&device)?;
        let x = Tensor::from_host(&ramp(6), [2, 3], &host).queued()?;
        let pinned = x.pin_memory().queued()?;
        assert!(pinned.is_pinned() && !x.is_pinned() && !pinned.shares_memory(&x));
        assert_eq!((pinned.device(), pinned.shape(), pinned.dtype()), (host.clone(), &[2, 3][..], DType::F32));
        x.zero_().detach();
        assert_eq!(pinned.to_vec::<f32>().await?, ramp(6));
        // As an operand, in place, and as a view. A result is not pinned.
        let sum = pinned.add(&pinned).queued()?;
        assert!(!sum.is_pinned());
        assert_eq!(sum.to_vec::<f32>().await?, [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        pinned.narrow(0, 1, 1).queued()?.add_(1.0).detach();
        assert_eq!(pinned.to_vec::<f32>().await?, [0.0, 1.0, 2.0, 4.0, 5.0, 6.0]);
        let view = pinned.t().queued()?;
        assert!(view.is_pinned());
        assert_eq!(view.contiguous().to_vec::<f32>().await?, [0.0, 4.0, 1.0, 5.0, 2.0, 6.0]);
        // One that is pinned is returned, from a `Pending` too.
        assert!(pinned.pin_memory().queued()?.shares_memory(&pinned));
        assert!(pinned.mul_(2.0).pin_memory().queued()?.shares_memory(&pinned));
        host.synchronize().await?;
    }

    async fn tensors_of_all_types_and_shapes_can_be_pinned([device]) {
        let (host, _) = host_and_pool(&device)?;
        for dtype in DType::ALL {
            let x = Tensor::new([[0.0, 1.0], [2.0, 3.0]], (dtype, &host)).queued()?;
            let pinned = x.pin_memory().queued()?;
            assert_eq!((pinned.dtype(), pinned.is_pinned()), (dtype, true));
            assert_eq!(pinned.to(DType::F64).to_vec::<f64>().await?, x.to(DType::F64).to_vec::<f64>().await?);
        }
        for shape in [&[][..], &[0], &[0, 3], &[1000]] {
            let pinned = Tensor::full(shape, 1.5, &host).pin_memory().queued()?;
            assert!(pinned.is_pinned() && pinned.shape() == shape);
            assert_eq!(pinned.to_vec::<f32>().await?, vec![1.5; pinned.len()]);
        }
        // The copy of a transposed view is transposed.
        let view = Tensor::from_host(&ramp(6), [2, 3], &host).t().pin_memory().queued()?;
        assert_eq!((view.shape(), view.is_contiguous(), view.is_pinned()), (&[3, 2][..], false, true));
        assert_eq!(view.contiguous().to_vec::<f32>().await?, [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        host.synchronize().await?;
    }

    async fn a_pinned_tensor_is_copied_to_a_device_and_back([device]) {
        let (host, _) = host_and_pool(&device)?;
        let x = Tensor::from_host(&ramp(5000), [5000], &host).pin_memory().queued()?;
        let there = x.to(&device).queued()?;
        assert_eq!(there.device(), device);
        assert_eq!(there.mul(2.0).sum().item::<f32>().await?, 24_995_000.0);
        // Into pinned memory, from the device.
        let back = Tensor::zeros([5000], &host).pin_memory().queued()?;
        back.copy_(&there).detach();
        assert_eq!(back.to_vec::<f32>().await?, ramp(5000));
        host.synchronize().await?;
    }

    async fn pinned_memory_returns_to_its_pool_when_its_last_use_has_finished([device]) {
        let (host, pool) = host_and_pool(&device)?;
        let stream = host.new_stream()?;
        let allocated = || pool.pinned_stats().allocated_bytes;
        let before = allocated();
        let x = stream.enter(|| Tensor::ones([1024], &host).pin_memory()).await?;
        assert!(allocated() >= before + 4096);
        let gate = stream.hold()?;
        let sum = stream.enter(|| x.add(1.0).sum());
        drop(x);
        assert!(allocated() >= before + 4096, "an op in flight uses the memory");
        gate.open();
        assert_eq!(stream.enter(|| sum.item::<f32>()).await?, 2048.0);
        stream.synchronize().await?;
        assert_eq!(allocated(), before);
    }

    async fn a_pinned_buffer_becomes_a_buffer_of_the_cpu([device]) {
        let (host, _) = host_and_pool(&device)?;
        let stream = host.new_stream()?;
        // Memory that the device page-locked, whichever it is.
        let memory = pinned(&device, &ramp(100)).await?;
        let address = memory.as_ptr() as u64;
        let x = stream.buffer_from_pinned(memory)?;
        assert_eq!((x.device(), x.len(), x.device_ptr().0), (host.clone(), 100, address));
        assert!(x.is_pinned() && x.slice(3..5)?.is_pinned());
        assert!(!stream.alloc::<f32>(1)?.is_pinned());
        let tensor = Tensor::from_buffer(x.clone(), [10, 10])?;
        assert!(tensor.is_pinned());
        assert_eq!(stream.enter(|| tensor.sum().item::<f32>()).await?, 4950.0);
        // It counts as allocated on this stream: another one needs an edge.
        let other = host.new_stream()?;
        stream.fill(&x, 1.0).detach();
        says(&refused(other.read(&x)).await, ErrorKind::Unordered, &["read on stream"]);
        other.wait_stream(&stream);
        assert_eq!(other.read(&x).await?, [1.0; 100]);
        // Other devices do not compute there, and the memory comes back.
        if device != host {
            let memory = pinned(&device, &[7.0f32]).await?;
            let error = device.new_stream()?.buffer_from_pinned(memory).unwrap_err();
            says(&error, ErrorKind::Unsupported, &["buffer_from_pinned on stream", "copy_to_device"]);
            assert_eq!(Pinned::<f32>::from_error(error).expect("the memory")[..], [7.0]);
        }
        drop((x, tensor));
        host.synchronize().await?;
    }

    async fn only_tensors_of_the_host_can_be_pinned([device]) {
        let (host, _) = host_and_pool(&device)?;
        if device != host {
            let x = Tensor::ones([3], &device).queued()?;
            let named = format!("the tensor is on {device}, and only memory of the host, cpu:0");
            let place = "pin_memory on stream \"default\" (tests/contract/pinning.rs:";
            says(&refused(x.pin_memory()).await, ErrorKind::DeviceMismatch, &[place, &named, ".cpu()"]);
            assert!(x.cpu().pin_memory().queued()?.is_pinned());
        }
        // The error of a refused tensor is passed on.
        let x = Tensor::ones([3], &host).queued()?;
        says(&refused(x.reshape([4]).pin_memory()).await, ErrorKind::Shape, &["reshape"]);
        host.synchronize().await?;
    }
}

#[test]
fn the_pinned_pools_cap_holds_for_tensors_too() {
    let runtime = Runtime::builder().pinned_cap(1 << 20).build().unwrap();
    let host = runtime.device(DeviceId::Cpu(0)).unwrap();
    let x = Tensor::zeros([1 << 20], &host).queued().unwrap();
    let error = x.pin_memory().blocking_wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    assert!(x.narrow(0, 0, 1000).pin_memory().queued().unwrap().is_pinned());
}

/// A copy in pieces takes memory of the pool, for which there is no room here.
#[test]
fn a_pinned_tensor_is_copied_without_further_pinned_memory() {
    crate::support::software::in_child(&[], || {
        let runtime = Runtime::builder().pinned_cap(3 << 20).build().unwrap();
        let [host, gpu] = [DeviceId::Cpu(0), DeviceId::Cuda(0)].map(|id| runtime.device(id).unwrap());
        let x = Tensor::from_host(&ramp(1 << 19), [1 << 19], &host).queued().unwrap();
        let pinned = x.pin_memory().queued().unwrap();
        assert_eq!(x.to(&gpu).blocking_wait().unwrap_err().kind(), ErrorKind::OutOfMemory);
        let there = pinned.to(&gpu).queued().unwrap();
        // Both ways, and behind unfinished work of either device.
        let gate = host.default_stream().unwrap().hold().unwrap();
        pinned.fill_(3.0).detach();
        there.narrow(0, 0, 2).copy_(&pinned.narrow(0, 5, 2).queued().unwrap()).detach();
        let back = pinned.copy_(&there).queued().unwrap();
        let last = there.narrow(0, (1 << 19) - 1, 1).queued().unwrap();
        drop((pinned, there));
        gate.open();
        let (first, end) = (back.narrow(0, 0, 3), back.narrow(0, (1 << 19) - 1, 1));
        assert_eq!(first.to_vec::<f32>().blocking_wait().unwrap(), [3.0, 3.0, 2.0]);
        assert_eq!(end.item::<f32>().blocking_wait().unwrap(), 524_287.0);
        drop(back);
        assert_eq!(last.to(&host).item::<f32>().blocking_wait().unwrap(), 524_287.0);
        gpu.synchronize().blocking_wait().unwrap();
        host.synchronize().blocking_wait().unwrap();
    });
}

/// Memory that one GPU page-locked is page-locked for all of them.
#[test]
fn a_pinned_tensor_is_copied_to_every_gpu() {
    crate::support::software::in_child(&[], || {
        let runtime = Runtime::builder().pinned_cap(3 << 20).build().unwrap();
        let host = runtime.device(DeviceId::Cpu(0)).unwrap();
        let x = Tensor::ones([1 << 19], &host).pin_memory().queued().unwrap();
        for ordinal in [1, 0] {
            let there = x.cuda_on(ordinal).queued().unwrap();
            assert_eq!(there.sum().item::<f32>().blocking_wait().unwrap(), 524_288.0);
        }
    });
}

/// Dropped at once, the memory stays until the copy has finished, and then returns to its pool.
#[test]
fn the_memory_of_a_direct_copy_is_kept_until_the_copy_ends() {
    crate::support::software::in_child(&[], || {
        let runtime = Runtime::new().unwrap();
        let [host, gpu] = [DeviceId::Cpu(0), DeviceId::Cuda(0)].map(|id| runtime.device(id).unwrap());
        let before = gpu.pinned_stats().allocated_bytes;
        let stream = gpu.default_stream().unwrap();
        let y = Tensor::zeros([1 << 18], &gpu).blocking_wait().unwrap();
        let x = Tensor::full([1 << 18], 4.0, &host).pin_memory().blocking_wait().unwrap();
        let gate = stream.hold().unwrap();
        y.copy_(&x).detach();
        drop(x);
        assert!(gpu.pinned_stats().allocated_bytes >= before + (1 << 20), "the copy has not run");
        gate.open();
        stream.synchronize().blocking_wait().unwrap();
        host.synchronize().blocking_wait().unwrap();
        assert_eq!(gpu.pinned_stats().allocated_bytes, before);
        assert_eq!(y.sum().item::<f32>().blocking_wait().unwrap(), 1_048_576.0);
    });
}

#[test]
fn a_capture_refuses_a_copy_of_a_pinned_tensor_to_another_device() {
    crate::support::software::in_child(&[], || {
        let runtime = Runtime::new().unwrap();
        let [host, gpu] = [DeviceId::Cpu(0), DeviceId::Cuda(0)].map(|id| runtime.device(id).unwrap());
        let stream = gpu.new_stream().unwrap();
        let memory = gpu.blocking_pinned::<f32>(100).unwrap();
        let x = host.default_stream().unwrap().buffer_from_pinned(memory).unwrap();
        let y = stream.alloc::<f32>(100).unwrap();
        stream.wait_stream(&host.default_stream().unwrap()).queued().unwrap();
        let captured = stream.capture(|stream| stream.copy_buffer_peer(&y, &x));
        says(&captured.unwrap_err(), ErrorKind::Captured, &["copy_buffer_peer on stream"]);
        stream.copy_buffer_peer(&y, &x).blocking_wait().unwrap();
    });
}
