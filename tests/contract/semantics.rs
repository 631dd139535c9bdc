//! Programs of PyTorch's CUDA semantics note whose devices may be of any backend. The first line of
//! each test's docs names the program by its number in `docs/semantics.md`. The test binary
//! `semantics` has the other programs.

use crate::refused;
use crate::support::says;
use crate::{Result, contract};
use warpline::prelude::*;

/// Creates two elements on the current device.
fn here() -> Pending<Tensor> {
    Tensor::new([1.0, 2.0], ())
}

contract! {
    /// X1: the old program across devices. Tensors are made on the current device or on a named one,
    /// and results are where their operands are.
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
        says(&error, ErrorKind::DeviceMismatch, &[&format!("the stream is on {one} and an operand is on {zero}")]);
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
}
