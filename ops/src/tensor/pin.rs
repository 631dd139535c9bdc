//! Copies of tensors in page-locked memory of the host.

use super::call::{Call, Outcome};
use super::element::with_element;
use super::{Tensor, TensorElement};
use warpline_runtime::{Device, DeviceId, ErrorKind, Result};

/// Copies `x`, which is on `cpu:0`, into page-locked memory.
#[track_caller]
pub(super) fn pin(x: &Tensor) -> Outcome {
    let device = x.device();
    let call = Call::new(&"pin_memory", &device)?;
    if device.id() != DeviceId::Cpu(0) {
        let why = format!(
            "the tensor is on {device}, and only memory of the host, cpu:0, can be page-locked; call \
             .cpu() first"
        );
        return Err(call.refuse(ErrorKind::DeviceMismatch, &why));
    }
    let pool = page_locking(&device).map_err(|error| call.refused(error))?;
    let stream = call.stream();
    let instead = "fill memory from device.pinned(len).await and call Tensor::from_pinned instead";
    with_element!(x.dtype(), T => {
        let from = T::buffer(&x.storage).expect("it has this type");
        let host = pool.blocking_pinned_for(call.site(), instead, from.len());
        let host = host.map_err(|error| call.refused(error))?;
        let to = stream.buffer_from_pinned(host).map_err(|error| call.refused(error))?;
        let copied = stream.at(call.site()).copy_buffer(&to, from);
        let (shape, transposed) = (x.shape.clone(), x.transposed);
        Ok(copied.with(Tensor { storage: T::storage(to), shape, transposed }))
    })
}

/// Returns the device whose pool provides the memory: a CUDA device, if there is one.
fn page_locking(host: &Device) -> Result<Device> {
    match host.current_cuda() {
        Err(error) if error.kind() == ErrorKind::NoSuchDevice => Ok(host.clone()),
        found => found,
    }
}
