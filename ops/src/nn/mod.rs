//! Modules: parts of a neural network, with their parameters.
//!
//! A [`Module`] computes a tensor from a tensor, and names the tensors that it holds. The layers
//! here are modules, and so is a structure of yours that holds modules. Layers, formulas and the
//! names of parameters are PyTorch's. There are no gradients: modules apply networks.
//!
//! ```
//! use warpline::nn::{Conv2d, Visitor};
//! use warpline::prelude::*;
//!
//! #[derive(Clone)]
//! struct Net {
//!     conv1: Conv2d,
//!     conv2: Conv2d,
//! }
//!
//! impl Module for Net {
//!     fn forward(&self, x: &Tensor) -> Pending<Tensor> {
//!         x.apply(&self.conv1).relu().apply(&self.conv2).relu()
//!     }
//!
//!     fn visit(&mut self, visitor: &mut Visitor<'_>) {
//!         visitor.module("conv1", &mut self.conv1);
//!         visitor.module("conv2", &mut self.conv2);
//!     }
//! }
//!
//! # fn main() -> warpline::Result<()> {
//! let cpu = Device::open("cpu")?;
//! let conv = |inputs| Conv2d::new(inputs, 20, [5, 5], &cpu);
//! let mut net = Net { conv1: conv(1)?, conv2: conv(20)? };
//! assert_eq!(net.parameter_count(), 10_540);
//!
//! let device = Device::best()?;
//! net.to(&device).queued()?; // all parameters, in place
//! let images = Tensor::rand([2, 1, 28, 28], &device);
//! let y = images.apply(&net).queued()?;
//! assert_eq!(y.shape(), [2, 20, 20, 20]);
//! # Ok(())
//! # }
//! ```

mod conv;
mod data_parallel;
mod layer_norm;
mod linear;
mod module;
mod moving;
#[cfg(feature = "safetensors")]
mod safetensors;
mod sequential;
mod shapes;

pub use conv::Conv2d;
pub use data_parallel::{DataParallel, Replicas};
pub use layer_norm::LayerNorm;
pub use linear::Linear;
pub use module::{Apply, Module, Role, Visitor};
#[cfg(feature = "safetensors")]
pub use safetensors::{load_safetensors, to_safetensors};
pub use sequential::Sequential;
pub use shapes::{Flatten, Relu};
