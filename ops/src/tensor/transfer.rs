//! Copies of tensors between devices.
//!
//! A copy between devices is ordered by itself: it runs after all work so far on the current
//! streams of both devices, and later work on both runs after it. So a program that uses one stream
//! per device needs no edges of its own, as in PyTorch. `copy_buffer_peer` adds no edges.
//!
//! The copy is on the current stream of the source's device. If that is a CPU device and the
//! destination's is not, it is on the destination's: a CPU device copies only to CPU devices.

use super::call::{Call, Outcome};
use super::cast::convert;
use super::element::{Storage, with_element};
use super::{Tensor, TensorElement, TensorOptions};
use std::borrow::Cow;
use warpline_runtime::{Buffer, Device, DeviceId, Edge, Element, Pending, Result, Site, Stream};

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
    fn copy<T: Element>(&self, call: &Call<'_>, to: &Buffer<T>, from: &Buffer<T>, value: Tensor) -> Outcome {
        let (copies, other) = (self.copies.at(call.site()), self.other.at(call.site()));
        let edge = |edge: Edge| edge.queued().map_err(|error| call.refused(error));
        edge(copies.wait_stream(&self.other))?;
        let copied = copies.copy_buffer_peer(to, from);
        // Also behind a refused copy: the edge tells later work there what was not written.
        match edge(other.wait_stream(&self.copies)) {
            Ok(()) => Ok(copied.with(value)),
            Err(refusal) => {
                // The caller gets this error for the whole call.
                drop(copied.queued());
                Err(refusal)
            }
        }
    }
}

/// Copies `x` to `device`, the other one of the crossing. The copy has the layout of `x`.
pub(super) fn moved(call: &Call<'_>, crossing: &Crossing, x: &Tensor, device: &Device) -> Outcome {
    let site = Site::at(&"alloc", call.site().location);
    with_element!(x.dtype(), T => {
        let from = T::buffer(&x.storage).expect("it has this type");
        let to = Stream::current(device).and_then(|stream| stream.at(site).alloc(from.len()));
        let to = to.map_err(|error| call.refused(error))?;
        let (shape, transposed) = (x.shape.clone(), x.transposed);
        let value = Tensor { storage: T::storage(to.clone()), shape, transposed };
        crossing.copy(call, &to, from, value)
    })
}

/// Copies `x` to the device that it is on, on its current stream.
fn copied_in_place(site: Site, x: &Tensor) -> Outcome {
    let call = Call::on(site, Stream::current(&x.device())?, []);
    let storage = Storage::alloc(&call, x.dtype(), x.len())?;
    let copied = call.stream().at(site).copy_buffer::<u8>(&storage.words(), &x.storage.words());
    Ok(copied.with(Tensor { storage, shape: x.shape.clone(), transposed: x.transposed }))
}

/// Returns `x` with the type and on the device that `options` name: `x` itself if it has both and
/// `RuntimeBuilder::to_copies` does not ask for a copy.
///
/// The conversion comes first, on the current stream of the device of `x`.
#[track_caller]
pub(super) fn to(op: &'static &'static str, x: &Tensor, options: &TensorOptions) -> Outcome {
    let (site, here) = (Site::here(op), x.device());
    let there = options.device.as_ref().unwrap_or(&here);
    let converts = options.dtype.is_some_and(|dtype| dtype != x.dtype());
    if !converts && *there == here {
        return match options.device.is_some() && here.to_copies() {
            true => copied_in_place(site, x),
            false => Ok(Pending::ready(x.clone())),
        };
    }
    let mut x = Cow::Borrowed(x);
    if let Some(dtype) = options.dtype.filter(|_| converts) {
        let call = Call::on(site, Stream::current(&here)?, []);
        let storage = Storage::alloc(&call, dtype, x.len())?;
        let value = Tensor { storage: storage.clone(), shape: x.shape.clone(), transposed: x.transposed };
        let done = convert(&call, &x.storage, &storage).with(value);
        if *there == here {
            return Ok(done);
        }
        x = Cow::Owned(call.through(done)?);
    }
    let crossing = Crossing::new(&here, there)?;
    let call = Call::on(site, crossing.copies().clone(), []);
    moved(&call, &crossing, &x, there)
}

/// Copies `x` into `y`, which is on another device and has the type and shape of `x`: y ← x.
pub(super) fn copy(call: &Call<'_>, crossing: &Crossing, y: &Tensor, x: &Tensor) -> Outcome {
    crossing.copy::<u8>(call, &y.storage.words(), &x.storage.words(), y.clone())
}
