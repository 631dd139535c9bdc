//! A module on several devices, each of which computes a part of the batch.

use super::{Apply, Module, Visitor};
use crate::{Shape, Tensor, TensorOps, TensorOptions};
use warpline_runtime::{Device, Error, ErrorKind, Pending, Refusal, Result, Site};

/// Splits each batch among several devices, as `torch.nn.DataParallel`.
///
/// The module stays on the first device. [`forward`](Module::forward) splits its input along
/// dimension 0, copies the parts and the module to the devices, enqueues the module's ops on all of
/// them, and gathers the outputs on the output device. Nothing waits on the host, so one thread
/// keeps all devices busy.
///
/// The parts have ⌈n / devices⌉ rows, but the last one may have fewer, as from `torch.chunk`. With
/// few rows, not every device gets a part. A batch without rows goes to the first device. The input
/// may be on any device of the runtime.
///
/// The module is copied each time, so a forward uses the current parameters.
/// [`replicate`](Self::replicate) makes copies that are used again, for a module that does not
/// change.
///
/// # Same bits
/// The output has the bits that the module computes on one device, if it computes each row by
/// itself, in an order that does not depend on the number of rows, and all devices are alike. The
/// layers here do, except for products by cuBLAS: it may select another order of additions for
/// another number of rows. A CPU device and a GPU differ in the last bits.
///
/// # Ordering
/// Copies between the devices are ordered as by [`TensorOps::to`], on the current stream of each
/// device, which also runs the module's ops.
///
/// # Examples
/// ```
/// use warpline::nn::{DataParallel, Linear};
/// use warpline::prelude::*;
///
/// # fn main() -> warpline::Result<()> {
/// let runtime = Runtime::builder().cpu_devices(2).build()?;
/// let devices = runtime.devices();
/// let net = Linear::new(8, 3, &devices[0])?;
/// let x = Tensor::randn([5, 8], &devices[0]).queued()?;
/// let alone = x.apply(&net).to_vec::<f32>().blocking_wait()?;
///
/// let net = DataParallel::new(net, &devices)?; // 3 rows on one device, 2 on the other
/// assert_eq!(x.apply(&net).to_vec::<f32>().blocking_wait()?, alone);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct DataParallel<M> {
    module: M,
    devices: Vec<Device>,
    output: Device,
}

impl<M: Module + Clone> DataParallel<M> {
    /// Wraps `module` for `devices`. The first one is also the output device.
    ///
    /// # Errors
    /// `InvalidArgument` if there are no devices, or one is named twice; `DeviceMismatch` if a
    /// parameter or a buffer is not on the first device.
    #[track_caller]
    pub fn new(module: M, devices: &[Device]) -> Result<Self> {
        let refused = |why: String| {
            Err(Error::new(ErrorKind::InvalidArgument, format!("{}: {why}", Site::here(&"DataParallel"))))
        };
        let Some(first) = devices.first() else {
            return refused("there are no devices; pass at least one".to_owned());
        };
        let twice = devices.iter().enumerate().find(|(i, device)| devices[..*i].contains(device));
        if let Some((_, device)) = twice {
            return refused(format!("{device} is among the devices twice; pass each device once"));
        }
        let parallel = DataParallel { module, devices: devices.to_vec(), output: first.clone() };
        parallel.check(Site::here(&"DataParallel"))?;
        Ok(parallel)
    }

    /// Returns the same with another output device, which need not be among the devices.
    #[must_use]
    pub fn output_device(mut self, device: &Device) -> Self {
        self.output = device.clone();
        self
    }

    /// Returns the module on the first device.
    pub fn module(&self) -> &M {
        &self.module
    }

    /// Returns the module, as [`module`](Self::module).
    pub fn into_module(self) -> M {
        self.module
    }

    /// Copies the module to all devices, for use in several forwards.
    ///
    /// The first device uses the module's own tensors. After a change of the parameters, call this
    /// again: the other devices keep those of this moment.
    ///
    /// # Errors
    /// The errors of [`Module::to`]; `DeviceMismatch` if a parameter or a buffer is not on the
    /// first device.
    #[track_caller]
    pub fn replicate(&self) -> Result<Replicas<M>> {
        self.replicas(self.devices.len())
    }

    /// Copies the module to the first `count` devices.
    #[track_caller]
    fn replicas(&self, count: usize) -> Result<Replicas<M>> {
        self.check(Site::here(&"DataParallel"))?;
        let mut replicas = Vec::with_capacity(count);
        for device in &self.devices[..count] {
            let mut replica = self.module.clone();
            replica.to(device).queued()?;
            replicas.push((device.clone(), replica));
        }
        Ok(Replicas { replicas, output: self.output.clone() })
    }

    fn check(&self, site: Site) -> Result<()> {
        let first = &self.devices[0];
        match self.module.state_dict().iter().find(|(_, tensor)| tensor.device() != *first) {
            None => Ok(()),
            Some((name, tensor)) => {
                let why = format!(
                    "{site}: {name} is on {}, and the first device is {first}; move the module there \
                     with .to",
                    tensor.device()
                );
                Err(Error::new(ErrorKind::DeviceMismatch, why))
            }
        }
    }
}

impl<M: Module + Clone> Module for DataParallel<M> {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Pending<Tensor> {
        match self.replicas(parts(x, self.devices.len()).len().max(1)) {
            Ok(replicas) => replicas.forward(x),
            Err(error) => Pending::refused(error),
        }
    }

    fn visit(&mut self, visitor: &mut Visitor<'_>) {
        visitor.module("module", &mut self.module);
    }
}

/// A module on several devices, made by [`DataParallel::replicate`].
///
/// A later change of the [`DataParallel`]'s parameters, in place, reaches the first device alone.
#[derive(Clone)]
pub struct Replicas<M> {
    replicas: Vec<(Device, M)>,
    output: Device,
}

impl<M: Module> Replicas<M> {
    /// Computes the output for `x`, as the forward of [`DataParallel`] but without copying the
    /// module.
    ///
    /// # Errors
    /// In the `Pending`: the errors of the module and of copies between devices; `Shape` if `x` or
    /// the outputs have no dimension 0, or the outputs of two parts differ in another dimension.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Pending<Tensor> {
        let site = Site::here(&"DataParallel");
        if x.shape().is_empty() {
            let why = format!("{site}: the input is a scalar, and is split along dimension 0; reshape it");
            return Pending::refused(Error::new(ErrorKind::Shape, why));
        }
        let x = x.contiguous();
        let held = match x.as_operand() {
            Ok(held) => held,
            Err(refusal) => return refusal.pass_on(),
        };
        let parts = parts(held, self.replicas.len());
        if parts.len() == 1 {
            let (device, replica) = &self.replicas[0];
            return x.to(device).apply(replica).to(&self.output);
        }
        // All parts are sent before any work on them: a copy waits for all earlier work of both
        // devices. Each call only enqueues.
        // Loops: errors then name the caller's line, which closures do not know.
        let mut sent = Vec::with_capacity(parts.len());
        for ((start, len), (device, _)) in parts.into_iter().zip(&self.replicas) {
            match held.narrow(0, start, len).to(device).into_operand() {
                Ok(part) => sent.push(part),
                Err(refusal) => return refusal.pass_on(),
            }
        }
        let mut outputs = Vec::with_capacity(sent.len());
        for (part, (_, replica)) in sent.iter().zip(&self.replicas) {
            match part.apply(replica).into_operand() {
                Ok(output) => outputs.push(output),
                Err(refusal) => return refusal.pass_on(),
            }
        }
        gather(site, &outputs, &self.output)
    }
}

/// Returns the first row and the number of rows of each part, for at most `devices` devices.
///
/// The sizes are those of `torch.chunk`. Without rows there is one part.
fn parts(x: &Tensor, devices: usize) -> Vec<(usize, usize)> {
    let rows = x.shape().first().copied().unwrap_or(0);
    let most = rows.div_ceil(devices).max(1);
    (0..rows.max(1)).step_by(most).map(|start| (start, most.min(rows - start))).collect()
}

/// Copies `outputs`, one below the other, into one tensor on `device`.
#[track_caller]
fn gather(site: Site, outputs: &[Tensor], device: &Device) -> Pending<Tensor> {
    let (shape, options) = match joined_shape(site, outputs) {
        Ok(shape) => (shape, TensorOptions { dtype: Some(outputs[0].dtype()), device: Some(device.clone()) }),
        Err(error) => return Pending::refused(error),
    };
    let whole = match Tensor::empty(shape, options).into_operand() {
        Ok(whole) => whole,
        Err(refusal) => return Refusal::pass_on(refusal),
    };
    let (mut start, mut copies) = (0, Vec::with_capacity(outputs.len()));
    for output in outputs {
        let rows = output.shape()[0];
        copies.push(whole.narrow(0, start, rows).copy_(output.contiguous()));
        start += rows;
    }
    Pending::join_all(copies).with(whole)
}

/// Returns the shape of `tensors` one below the other.
fn joined_shape(site: Site, tensors: &[Tensor]) -> Result<Shape> {
    let first = tensors[0].shape();
    let rest = |x: &Tensor| x.shape().get(1..).map(<[usize]>::to_vec);
    if let Some(misfit) = tensors.iter().find(|x| rest(x).is_none() || rest(x) != rest(&tensors[0])) {
        let why = format!(
            "{site}: the outputs of two parts have the shapes {first:?} and {:?}, and are joined along \
             dimension 0; return a tensor with a row for each row of the input",
            misfit.shape()
        );
        return Err(Error::new(ErrorKind::Shape, why));
    }
    let mut shape = first.to_vec();
    shape[0] = tensors.iter().map(|x| x.shape()[0]).sum();
    Ok(shape.into())
}
