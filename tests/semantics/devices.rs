//! Where tensors live: names of devices, and copies between them.

use crate::note::{MOVED, is_moved};
use crate::support::software::in_child;
use crate::support::{block_on, runtime, says};
use warpline::nn::Linear;
use warpline::prelude::*;

/// X15: the spellings of a device, and which of them are equal. They are names of devices of the
/// default runtime.
#[test]
fn the_spellings_of_a_device() {
    in_child(&[("SOFTCUDA_DEVICES", "3")], || {
        let open = |name: &str| Device::open(name).unwrap();
        assert_eq!(open("cpu"), open("cpu:0"));
        assert_eq!(open("cpu").id(), DeviceId::Cpu(0));
        // Without an index it is the current one, which is the first outside of scopes.
        assert_eq!(open("cuda"), open("cuda:0"));
        open("cuda:2").enter(|| {
            assert_eq!(open("cuda"), open("cuda:2"));
            // A scope of the host does not change which GPU is current.
            open("cpu").enter(|| assert_eq!(open("cuda"), open("cuda:2")));
            assert_eq!(open("cuda:0").ordinal(), 0);
        });
        assert_eq!(open("cuda"), open("cuda:0"));
        let error = Device::open("cuda0").unwrap_err();
        says(&error, ErrorKind::InvalidName, &["\"cuda0\" is not a device; write \"cuda:0\""]);
    });
}

/// X16: a device by value and by name puts a tensor in the same place. The names are those of the
/// default runtime.
#[test]
fn a_device_by_value_and_by_name() {
    in_child(&[("SOFTCUDA_DEVICES", "2")], || {
        let open = |name: &str| Device::open(name).unwrap();
        let [cpu, first, second] = ["cpu:0", "cuda:0", "cuda:1"].map(open);
        let x = Tensor::ones([3], &cpu).queued().unwrap();
        for (by_name, by_value) in [("cpu", &cpu), ("cuda:0", &first), ("cuda:1", &second)] {
            assert_eq!(Tensor::ones([3], &open(by_name)).queued().unwrap().device(), *by_value);
            assert_eq!(x.to(&open(by_name)).queued().unwrap().device(), *by_value);
        }
        second.enter(|| {
            assert_eq!(Tensor::ones([3], &open("cuda")).queued().unwrap().device(), second);
            assert_eq!(x.cuda().queued().unwrap().device(), second);
            // A number is that device, in every scope.
            assert_eq!(x.cuda_on(0).queued().unwrap().device(), first);
        });
        assert_eq!(x.cuda().queued().unwrap().device(), first);
    });
}

/// X17, as far as it concerns devices: moving there and back keeps the values, and moving to where
/// a tensor is returns the tensor. `cuda`, `cuda_on` and `cpu` name devices of the default runtime.
#[test]
fn there_and_back() {
    in_child(&[("SOFTCUDA_DEVICES", "2")], || {
        let cpu = Device::open("cpu").unwrap();
        let x = Tensor::new([1.5, -2.0, 3.25], &cpu).queued().unwrap();
        let there = x.cuda().queued().unwrap();
        assert!(there.cuda().queued().unwrap().shares_memory(&there));
        assert!(x.cpu().queued().unwrap().shares_memory(&x));
        let far = there.cuda_on(1).queued().unwrap();
        let back = far.cpu().queued().unwrap();
        assert!(!back.shares_memory(&x));
        assert_eq!(back.to_vec::<f32>().blocking_wait().unwrap(), [1.5, -2.0, 3.25]);
        let sum = (&there + &far.cuda()) - &there;
        assert_eq!(sum.cpu().to_vec::<f32>().blocking_wait().unwrap(), [1.5, -2.0, 3.25]);
    });
}

/// With `to_copies`, a CPU device shows what a program does that changes a moved tensor in place.
#[test]
fn a_setting_makes_moves_to_the_same_device_copies() {
    for (builder, is_shared) in [(Runtime::builder(), true), (Runtime::builder().to_copies(), false)] {
        let runtime = builder.build().unwrap();
        let cpu = runtime.device(DeviceId::Cpu(0)).unwrap();
        let x = Tensor::new([[1.5, -2.0, 3.25]], &cpu).queued().unwrap();
        for (n, of) in [&x, &x.t().queued().unwrap()].into_iter().enumerate() {
            for moved in [of.cpu(), of.to(&cpu), of.to((DType::F32, &cpu)), of.to(of)] {
                let moved = moved.queued().unwrap();
                assert_eq!(moved.shares_memory(&x), is_shared);
                assert_eq!((moved.shape(), moved.is_contiguous()), (of.shape(), n == 0));
                assert_eq!(moved.contiguous().to_vec::<f32>().blocking_wait().unwrap(), [1.5, -2.0, 3.25]);
            }
        }
        // On a GPU, no copy is made without the name of a device.
        assert!(x.to(DType::F32).queued().unwrap().shares_memory(&x));
        x.cpu().add_(1.0).queued().unwrap();
        let expected = if is_shared { [2.5, -1.0, 4.25] } else { [1.5, -2.0, 3.25] };
        assert_eq!(x.to_vec::<f32>().blocking_wait().unwrap(), expected);

        let mut layer = Linear::new(2, 1, &cpu).unwrap();
        let before = layer.parameters();
        layer.cpu().blocking_wait().unwrap();
        for (old, new) in before.iter().zip(layer.parameters()) {
            assert_eq!(old.shares_memory(&new), is_shared);
        }
    }
}

/// X17, the moves by name: they keep the values and the type, and a move to where the tensor is
/// does nothing.
#[test]
fn moves_by_name_keep_the_values() {
    in_child(&[], || {
        let [cpu, gpu] = ["cpu", "cuda:0"].map(|name| Device::open(name).unwrap());
        let x = Tensor::new(MOVED, &cpu).queued().unwrap();
        for (step, moved, device) in
            [("cuda", x.cuda(), &gpu), ("cuda_on", x.cuda_on(0), &gpu), ("cpu", x.cuda().cpu(), &cpu)]
        {
            block_on(is_moved(step, moved, DType::F32, device)).unwrap();
        }
    });
}

/// Copies between GPUs give the same bytes whether or not the GPUs reach each other.
#[test]
fn copies_give_the_same_bytes_with_and_without_peer_access() {
    for reachable in ["1", "0"] {
        in_child(&[("SOFTCUDA_DEVICES", "2"), ("SOFTCUDA_PEER", reachable)], || {
            let access = std::env::var("SOFTCUDA_PEER").unwrap() == "1";
            let [cpu, one, two] = ["cpu", "cuda:0", "cuda:1"].map(|name| Device::open(name).unwrap());
            assert_eq!(one.can_access_peer(&two).unwrap(), access);
            assert!(one.can_access_peer(&one).unwrap() && !one.can_access_peer(&cpu).unwrap());
            let host: Vec<f32> = (0..1000).map(|n| n as f32).collect();
            let x = Tensor::from_host(&host, [1000], &one).queued().unwrap();
            assert_eq!(x.to(&two).to_vec::<f32>().blocking_wait().unwrap(), host);
        });
    }
    let runtime = runtime(2);
    let devices = runtime.devices();
    let [zero, one] = &devices[..] else { panic!("two devices") };
    assert!(zero.can_access_peer(one).unwrap());
}
