//! Parts of the programs of PyTorch's CUDA semantics note: the model of two convolutions,
//! parameters by a formula, and checks of what PyTorch computes with them. The binaries `contract`
//! and `semantics` share this file.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]

use serde_json::Value;
use warpline::Result;
use warpline::nn::{Conv2d, DataParallel, Role, Visitor};
use warpline::ops::{normal_, sum};
use warpline::prelude::*;

/// Returns what PyTorch computed, which `modules.py` stores in `modules.json`.
pub(crate) fn stored() -> Value {
    serde_json::from_str(include_str!("modules.json")).expect("what the script wrote")
}

pub(crate) fn floats(value: &Value) -> Vec<f32> {
    value.as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number") as f32).collect()
}

/// Returns the names of tensors.
pub(crate) fn names(tensors: Vec<(String, Tensor)>) -> Vec<String> {
    tensors.into_iter().map(|(name, _)| name).collect()
}

/// Returns the numbers of the formula in `modules.py`.
pub(crate) fn numbers(salt: usize, shape: &[usize], device: &Device) -> Tensor {
    let number = |i| ((i * 37 + salt * 11) % 17) as f32 / 16.0 - 0.5;
    let host: Vec<f32> = (0..shape.iter().product()).map(number).collect();
    Tensor::from_host(&host, shape, device).queued().expect("a tensor")
}

/// Returns the module with the numbers of `modules.py` as parameters.
pub(crate) fn filled<M: Module>(mut module: M) -> M {
    let mut salt = 0..;
    module.visit(&mut Visitor::new(&mut |_, role, tensor| {
        assert_eq!(role, Role::Parameter);
        *tensor = numbers(salt.next().expect("another number"), tensor.shape(), &tensor.device());
    }));
    module
}

/// The article's model of two convolutions.
#[derive(Clone)]
pub(crate) struct Net {
    pub(crate) conv1: Conv2d,
    pub(crate) conv2: Conv2d,
}

impl Net {
    pub(crate) fn new(device: &Device) -> Result<Self> {
        let (conv1, conv2) = (Conv2d::new(1, 20, [5, 5], device)?, Conv2d::new(20, 20, [5, 5], device)?);
        Ok(Net { conv1, conv2 })
    }
}

impl Module for Net {
    fn forward(&self, x: &Tensor) -> Pending<Tensor> {
        x.apply(&self.conv1).relu().apply(&self.conv2).relu()
    }

    fn visit(&mut self, visitor: &mut Visitor<'_>) {
        visitor.module("conv1", &mut self.conv1);
        visitor.module("conv2", &mut self.conv2);
    }
}

/// Checks the output of the model against PyTorch's, bit by bit.
pub(crate) async fn computes_what_pytorch_computes(net: &Net, device: &Device) -> Result<()> {
    let wanted = &stored()["two_convolutions"];
    let image = numbers(100, &[1, 28, 28], device).mul(1.5);
    let first = (&image).apply(&net.conv1).queued()?;
    assert_eq!(first.shape(), [20, 24, 24]);
    let y = image.apply(net).queued()?;
    assert_eq!((y.shape(), y.device()), (&[20, 20, 20][..], device.clone()));
    let y = y.to_vec::<f32>().await?;
    let every_125th: Vec<f32> = y.iter().step_by(125).copied().collect();
    assert_eq!(every_125th, floats(&wanted["every_125th"]));
    assert_eq!(y.iter().map(|&y| f64::from(y)).sum::<f64>(), wanted["sum"].as_f64().unwrap());
    assert!(y.contains(&0.0) && every_125th.iter().any(|&y| y > 1.0), "both sides of relu");
    Ok(())
}

/// Checks that a batch of each size in `sizes` gives the same bits on all devices as on the first.
pub(crate) async fn shared_batches_have_the_same_bits(devices: &[Device], sizes: &[usize]) -> Result<()> {
    let net = Net::new(&devices[0])?;
    let parallel = DataParallel::new(net.clone(), devices)?;
    let replicas = parallel.replicate()?;
    for &rows in sizes {
        let images = Tensor::randn([rows, 1, 12, 12], &devices[0]).queued()?;
        let alone = images.apply(&net).queued()?;
        assert_eq!(alone.shape(), [rows, 20, 4, 4]);
        let alone = bits(&alone).await?;
        for together in [images.apply(&parallel), replicas.forward(&images)] {
            let together = together.queued()?;
            assert_eq!((together.shape()[0], together.device()), (rows, devices[0].clone()));
            assert_eq!(bits(&together).await?, alone, "{rows} rows on {devices:?}");
        }
    }
    Ok(())
}

async fn bits(x: &Tensor) -> Result<Vec<u32>> {
    Ok(x.to_vec::<f32>().await?.into_iter().map(f32::to_bits).collect())
}

/// The numbers of the tensors that `is_moved` checks.
pub(crate) const MOVED: [f64; 3] = [1.5, -2.0, 3.25];

/// Checks the type, the place and the numbers of a tensor that `step` moved or converted. A further
/// move to where it is does nothing.
pub(crate) async fn is_moved(
    step: &str,
    moved: Pending<Tensor>,
    dtype: DType,
    device: &Device,
) -> Result<()> {
    let moved = moved.queued()?;
    assert_eq!((moved.dtype(), moved.device()), (dtype, device.clone()), "{step}");
    assert_eq!(moved.to(DType::F64).to_vec::<f64>().await?, MOVED, "{step}");
    // To where it is, and of the type that it has, is the tensor itself.
    let like = Tensor::empty_like(&moved).queued()?;
    let options: [warpline::TensorOptions; 4] =
        [device.into(), dtype.into(), (dtype, device).into(), (&like).into()];
    for target in options {
        assert!(moved.to(target).queued()?.shares_memory(&moved), "{step}");
    }
    Ok(())
}

/// Fills a matrix on the default stream, and sums it on another stream.
pub(crate) fn sum_on_a_side_stream(device: &Device, with_the_edge: bool) -> Pending<f32> {
    let side = device.stream().label("side").build().unwrap();
    let a = device.alloc::<f32>(100 * 100).unwrap();
    normal_(&a, 42, 0.0, 1.0).queued().unwrap();
    if with_the_edge {
        side.wait_stream(&device.default_stream().unwrap());
    }
    side.enter(|| sum(&a))
}
