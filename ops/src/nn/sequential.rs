//! Modules that are applied one after the other.

use super::{Apply, Module, Visitor};
use crate::Tensor;
use warpline_runtime::Pending;

/// Applies modules one after the other, as `torch.nn.Sequential`. Their names are `0`, `1`, ….
///
/// The error of a layer inside names its own source line, since it is called through
/// `dyn Module`. Elsewhere, the errors of layers name the line that applies the layer.
///
/// ```
/// use warpline::nn::{Flatten, Linear, Relu, Sequential};
/// use warpline::prelude::*;
///
/// # fn main() -> warpline::Result<()> {
/// let device = Device::best()?;
/// let net = Sequential::new()
///     .add(Flatten)
///     .add(Linear::new(784, 128, &device)?)
///     .add(Relu)
///     .add(Linear::new(128, 10, &device)?);
/// let y = Tensor::rand([32, 28, 28], &device).apply(&net).queued()?;
/// assert_eq!(y.shape(), [32, 10]);
/// assert_eq!(net.named_parameters()[0].0, "1.weight");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Sequential {
    modules: Vec<Box<dyn Module>>,
}

impl Sequential {
    /// Creates a sequence without modules, which returns its input.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the sequence with `module` at its end.
    #[expect(clippy::should_implement_trait, reason = "a sum of sequences would mean something else")]
    #[must_use]
    pub fn add(mut self, module: impl Module) -> Self {
        self.modules.push(Box::new(module));
        self
    }

    /// Returns the number of modules.
    pub fn len(&self) -> usize {
        self.modules.len()
    }

    /// Returns whether there are no modules.
    pub fn is_empty(&self) -> bool {
        self.modules.is_empty()
    }
}

impl Module for Sequential {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Pending<Tensor> {
        self.modules.iter().fold(Pending::ready(x.clone()), |x, module| x.apply(module))
    }

    fn visit(&mut self, visitor: &mut Visitor<'_>) {
        for (i, module) in self.modules.iter_mut().enumerate() {
            visitor.module(&i.to_string(), module);
        }
    }
}
