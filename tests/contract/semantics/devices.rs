//! Where tensors live: scopes, and copies between devices.

use super::sources;
use crate::support::says;
use crate::{Result, contract, refused};
use warpline::prelude::*;

/// Creates two elements on the current device.
fn here() -> Pending<Tensor> {
    Tensor::new([1.0, 2.0], ())
}

contract! {
    /// X1: the old program across devices. Tensors are made on the current device or on a named
    /// one, and results are where their operands are.
    async fn results_are_where_their_operands_are_in_every_scope([zero, one, two]) {
        let (x, y) = zero.enter(|| (here(), here()));
        let (a, b, c, z, d) = one.enter(|| {
            let a = here().queued().unwrap();
            let b = (&x).to(&one); // `x.cuda()` there
            let c = &a + &b;
            let z = &x + &y;
            let d = Tensor::new([0.0, 0.0], &two);
            (a, b, c, z, d)
        });
        let places = [
            x.as_operand().unwrap().device(),
            y.as_operand().unwrap().device(),
            a.device(),
            b.as_operand().unwrap().device(),
            c.as_operand().unwrap().device(),
            z.as_operand().unwrap().device(),
            d.as_operand().unwrap().device(),
        ];
        assert_eq!(places.map(|device| device.ordinal()), [0, 0, 1, 1, 1, 0, 2]);
        assert_eq!(c.to_vec::<f32>().await?, [2.0, 4.0]);
        assert_eq!(z.to_vec::<f32>().await?, [2.0, 4.0]);
    }

    /// X2: the new program across devices, with `to` and explicit devices inside another's scope.
    async fn a_named_device_wins_over_the_current_one([zero, one, two]) {
        let (x, y) = zero.enter(|| (here().queued().unwrap(), here().queued().unwrap()));
        let inside = one.enter(|| {
            let a = here().queued()?;
            let b = x.to(&one).queued()?;
            let b2 = x.to(&Device::current()?).queued()?;
            let c = (&a + &b).queued()?;
            let z = (&x + &y).queued()?;
            let d = Tensor::randn([2], &two).queued()?;
            let e = y.to(&two).queued()?;
            let f = Tensor::randn([2], &zero).to(&two).queued()?;
            Ok::<_, Error>([a, b, b2, c, z, d, e, f])
        })?;
        let places: Vec<u32> = [&x, &y].into_iter().chain(&inside).map(|x| x.device().ordinal()).collect();
        assert_eq!(places, [0, 0, 1, 1, 1, 1, 0, 2, 2, 2]);
        let [a, _, _, c, z, _, e, _] = &inside;
        for (tensor, expected) in [(a, [1.0, 2.0]), (c, [2.0, 4.0]), (z, [2.0, 4.0]), (e, [1.0, 2.0])] {
            assert_eq!(tensor.to_vec::<f32>().await?, expected);
        }
        // Operands on two devices are refused when the op is called.
        let error = refused(a.add(&x)).await;
        let places = format!("the stream is on {one} and an operand is on {zero}");
        says(&error, ErrorKind::DeviceMismatch, &[&places]);
    }

    /// X19: three ways of making a tensor, in the scopes of two devices.
    async fn all_ways_of_making_a_tensor_follow_the_scope([zero, one]) {
        let host = Tensor::new([5.0], &zero).queued()?;
        for device in [&zero, &one] {
            let made = device.enter(|| -> Result<[Device; 3]> {
                let here = Device::current()?;
                let (buffer, tensor) = (here.alloc::<f32>(1)?, Tensor::ones([1], &here).queued()?);
                Ok([buffer.device(), tensor.device(), host.to(&here).queued()?.device()])
            })?;
            assert_eq!(made, [(); 3].map(|()| device.clone()));
        }
    }

    /// X9: each batch of a loop goes to another device, and the source is unchanged.
    async fn a_loop_moves_each_batch([one, gpu]) {
        for source in sources(&one)? {
            let batch = |n| Tensor::full([4], n as f32, &source).queued();
            let batches = (0..10).map(batch).collect::<Result<Vec<_>>>()?;
            for (n, batch) in batches.iter().enumerate() {
                let moved = batch.to(&gpu).queued()?;
                assert_eq!(moved.device(), gpu);
                let doubled = (&moved * 2.0).to_vec::<f32>().await?;
                assert_eq!(doubled, [2.0 * n as f32; 4]);
                assert_eq!(batch.to_vec::<f32>().await?, [n as f32; 4]);
            }
        }
    }

    /// X10: a scope sets the current device and restores it, also nested and after a panic.
    async fn a_scope_sets_the_current_device_and_restores_it([zero, one, two]) {
        zero.enter(|| {
            assert_eq!(Device::current().unwrap(), zero);
            one.enter(|| {
                assert_eq!(Device::current().unwrap(), one);
                two.enter(|| assert_eq!(Device::current().unwrap(), two));
                assert_eq!(Device::current().unwrap(), one);
            });
            assert_eq!(Device::current().unwrap(), zero);
            let panicked = std::panic::catch_unwind(|| two.enter(|| panic!("on purpose")));
            assert!(panicked.is_err());
            assert_eq!(Device::current().unwrap(), zero);
        });
    }
}
