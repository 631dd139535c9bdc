//! The type and device of a tensor that is made or converted.

use super::{DType, Tensor};
use warpline_runtime::{Device, Result};

/// The element type and the device of a new tensor. Each may be left open.
///
/// Made from a device, a type, both in a tuple, another tensor (its type and device), or `()`.
///
/// # Defaults
/// A factory uses the type of its values if no type is given, which for floating-point numbers is
/// [`DType::default_float`]. It uses [`Device::current`] if no device is given.
/// [`to`](super::TensorOps::to) keeps what is not given.
///
/// # Examples
/// ```
/// use warpline::{DType, Device, Tensor};
/// # fn main() -> warpline::Result<()> {
/// let device = Device::best()?;
/// let x = Tensor::zeros([2, 3], (DType::F64, &device)).queued()?;
/// let y = Tensor::ones([2], &x).queued()?; // f64, beside x
/// assert_eq!((y.dtype(), y.device()), (DType::F64, device.clone()));
/// let z = device.enter(|| Tensor::zeros([2], ())).queued()?; // f32, on the current device
/// assert_eq!((z.dtype(), z.device()), (DType::F32, device));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct TensorOptions {
    /// The element type.
    pub dtype: Option<DType>,
    /// The device.
    pub device: Option<Device>,
}

impl TensorOptions {
    /// Returns the device, or the current one.
    pub(super) fn device(&self) -> Result<Device> {
        self.device.clone().map_or_else(Device::current, Ok)
    }

    /// Returns true if `x` has the type, is on the device, and is not to be copied there.
    pub(super) fn is_met_by(&self, x: &Tensor) -> bool {
        self.dtype.is_none_or(|dtype| dtype == x.dtype())
            && self.device.as_ref().is_none_or(|device| *device == x.device() && !device.to_copies())
    }
}

impl From<()> for TensorOptions {
    fn from((): ()) -> Self {
        TensorOptions::default()
    }
}

impl From<&Device> for TensorOptions {
    fn from(device: &Device) -> Self {
        TensorOptions { dtype: None, device: Some(device.clone()) }
    }
}

impl From<DType> for TensorOptions {
    fn from(dtype: DType) -> Self {
        TensorOptions { dtype: Some(dtype), device: None }
    }
}

impl From<(DType, &Device)> for TensorOptions {
    fn from((dtype, device): (DType, &Device)) -> Self {
        TensorOptions { dtype: Some(dtype), device: Some(device.clone()) }
    }
}

impl From<(&Device, DType)> for TensorOptions {
    fn from((device, dtype): (&Device, DType)) -> Self {
        (dtype, device).into()
    }
}

impl From<&Tensor> for TensorOptions {
    fn from(like: &Tensor) -> Self {
        TensorOptions { dtype: Some(like.dtype()), device: Some(like.device()) }
    }
}
