//! Copies of tensors between devices.
//!
//! A copy between devices is ordered by itself: it runs after all work so far on the current
//! streams of both devices, and later work on both runs after it. So a program that uses one stream
//! per device needs no edges of its own, as in PyTorch. `copy_buffer_peer` adds no edges.
//!
//! The copy is on the current stream of the source's device. If that is a CPU device and the
//! destination's is not, it is on the destination's: a CPU device copies only to CPU devices.

use super::call::{Call, Outcome};
use super::{Storage, Tensor, TensorElement};
use warpline_runtime::{Buffer, Device, DeviceId, Edge, Result, Site, Stream};

/// The streams of a copy between two devices.
pub(super) struct Crossing {
    /// The stream that copies.
    copies: Stream,
    /// The current stream of the other device.
    other: Stream,
}

impl Crossing {
    /// Returns the streams of a copy from `source` to `destination`.
    pub(super) fn new(source: &Device, destination: &Device) -> Result<Self> {
        let (from, to) = (Stream::current(source)?, Stream::current(destination)?);
        let is_cpu = |device: &Device| matches!(device.id(), DeviceId::Cpu(_));
        Ok(match is_cpu(source) && !is_cpu(destination) {
            true => Crossing { copies: to, other: from },
            false => Crossing { copies: from, other: to },
        })
    }

    pub(super) fn copies(&self) -> &Stream {
        &self.copies
    }

    /// Copies `from` to `to`, with an edge from the other stream before the copy and one to it
    /// after the copy. The `Pending` resolves to `value`.
    fn copy<T: TensorElement>(
        &self,
        call: &Call<'_>,
        to: &Buffer<T>,
        from: &Buffer<T>,
        value: Tensor,
    ) -> Outcome {
        let (copies, other) = (self.copies.at(call.site()), self.other.at(call.site()));
        let edge = |edge: Edge| edge.queued().map_err(|error| call.refused(error));
        edge(copies.wait_stream(&self.other))?;
        let copied = copies.copy_buffer_peer(to, from);
        // Also behind a refused copy: the edge tells later work there what was not written.
        edge(other.wait_stream(&self.copies))?;
        Ok(copied.with(value))
    }

    /// Returns a copy of `x` on `device`.
    fn moved<T: TensorElement>(&self, call: &Call<'_>, x: &Tensor, device: &Device) -> Outcome {
        let from = call.either_way::<T>(x)?;
        let site = Site::at(&"alloc", call.site().location);
        let to = Stream::current(device).and_then(|stream| stream.at(site).alloc(from.len()));
        let to: Buffer<T> = to.map_err(|error| call.refused(error))?;
        let (shape, transposed) = (x.shape.clone(), x.transposed);
        let value = Tensor { storage: T::storage(to.clone()), shape, transposed };
        self.copy(call, &to, from, value)
    }
}

/// Copies `x` to `device`, which is not the device of `x`. The copy has the layout of `x`.
#[track_caller]
pub(super) fn to(op: &'static &'static str, x: &Tensor, device: &Device) -> Outcome {
    let site = Site::here(op);
    let crossing = Crossing::new(&x.device(), device)?;
    let call = Call::on(site, crossing.copies().clone(), []);
    match &x.storage {
        Storage::F32(_) => crossing.moved::<f32>(&call, x, device),
        Storage::I64(_) => crossing.moved::<i64>(&call, x, device),
    }
}

/// Copies `x` into `y`, which is on another device: y ← x.
pub(super) fn copy(call: &Call<'_>, crossing: &Crossing, y: &Tensor, x: &Tensor) -> Outcome {
    match &y.storage {
        Storage::F32(_) => crossing.copy(call, call.operand::<f32>(y)?, call.operand(x)?, y.clone()),
        Storage::I64(_) => crossing.copy(call, call.operand::<i64>(y)?, call.operand(x)?, y.clone()),
    }
}
