//! Batches that several devices share: sizes of the parts, output devices, errors.

use crate::support::{block_on, refusal, runtime, says, within_a_minute};
use std::sync::{Arc, Barrier};
use warpline::nn::{DataParallel, Linear, Visitor};
use warpline::prelude::*;

fn devices(count: u32) -> (Runtime, Vec<Device>) {
    let runtime = runtime(count);
    let devices = runtime.devices();
    (runtime, devices)
}

fn bits(x: &Tensor) -> Vec<u32> {
    block_on(x.to_vec::<f32>()).unwrap().into_iter().map(f32::to_bits).collect()
}

/// Returns, for each row of its input, the number of rows that it got and the number of its device.
#[derive(Clone)]
struct Counts(Tensor);

impl Module for Counts {
    fn forward(&self, x: &Tensor) -> Pending<Tensor> {
        let counts = [x.shape()[0] as f32, x.device().ordinal() as f32];
        x.new_zeros([x.shape()[0], 2]).add(Tensor::new(counts, &x.device()))
    }

    fn visit(&mut self, visitor: &mut Visitor<'_>) {
        visitor.buffer("nothing", &mut self.0);
    }
}

#[test]
fn a_batch_is_split_as_by_torch_chunk() {
    let (_runtime, devices) = devices(3);
    let module = Counts(Tensor::zeros([1], &devices[0]).queued().unwrap());
    let parallel = DataParallel::new(module, &devices).unwrap();
    let cases: [(usize, &[usize]); 7] =
        [(9, &[3, 3, 3]), (8, &[3, 3, 2]), (7, &[3, 3, 1]), (4, &[2, 2]), (2, &[1, 1]), (1, &[1]), (0, &[])];
    for (rows, parts) in cases {
        let x = Tensor::zeros([rows, 5], &devices[0]).queued().unwrap();
        let y = x.apply(&parallel).queued().unwrap();
        assert_eq!((y.shape(), y.device()), (&[rows, 2][..], devices[0].clone()));
        let part = |(device, &rows): (usize, &usize)| [rows as f32, device as f32].repeat(rows);
        let wanted: Vec<f32> = parts.iter().enumerate().flat_map(part).collect();
        assert_eq!(block_on(y.to_vec::<f32>()).unwrap(), wanted, "{rows} rows");
    }
}

/// Waits, on the device, until all devices have come to its work.
#[derive(Clone)]
struct Meets(Tensor, Arc<Barrier>);

impl Module for Meets {
    fn forward(&self, x: &Tensor) -> Pending<Tensor> {
        let (stream, barrier) = (Stream::current(&x.device()).unwrap(), self.1.clone());
        stream.call(move || barrier.wait()).detach();
        x.mul(2.0)
    }

    fn visit(&mut self, visitor: &mut Visitor<'_>) {
        visitor.buffer("nothing", &mut self.0);
    }
}

#[test]
fn all_devices_compute_at_the_same_time() {
    within_a_minute(|| {
        let runtime = Runtime::builder().cpu_devices(2).workers(2).build().unwrap();
        let devices = runtime.devices();
        let nothing = Tensor::zeros([1], &devices[0]).queued().unwrap();
        let module = Meets(nothing, Arc::new(Barrier::new(2)));
        let parallel = DataParallel::new(module, &devices).unwrap();
        let x = Tensor::ones([4, 3], &devices[0]).queued().unwrap();
        let y = x.apply(&parallel).queued().unwrap();
        assert_eq!(y.to_vec::<f32>().blocking_wait().unwrap(), [2.0; 12]);
    });
}

#[test]
fn products_have_the_same_bits_in_every_split() {
    let (_runtime, devices) = devices(3);
    for (inputs, outputs) in [(513, 129), (64, 1), (1, 70)] {
        let net = Linear::new(inputs, outputs, &devices[0]).unwrap();
        let x = Tensor::randn([301, inputs], &devices[0]).queued().unwrap();
        let alone = bits(&x.apply(&net).queued().unwrap());
        for count in [2, 3] {
            let parallel = DataParallel::new(net.clone(), &devices[..count]).unwrap();
            assert_eq!(bits(&x.apply(&parallel).queued().unwrap()), alone, "{inputs} {outputs} {count}");
        }
    }
}

#[test]
fn inputs_and_outputs_may_be_on_any_device() {
    let (_runtime, devices) = devices(3);
    let net = Linear::new(4, 3, &devices[0]).unwrap();
    let x = Tensor::randn([5, 4], &devices[2]).queued().unwrap();
    let alone = bits(&x.to(&devices[0]).apply(&net).queued().unwrap());
    let parallel = DataParallel::new(net, &devices[..2]).unwrap().output_device(&devices[2]);
    for rows in [5, 1] {
        let y = x.narrow(0, 0, rows).apply(&parallel).queued().unwrap();
        assert_eq!(y.device(), devices[2]);
        assert_eq!(bits(&y), alone[..rows * 3]);
    }
    // A transposed input is first copied into row-major order.
    let columns = x.t().contiguous().t().queued().unwrap();
    assert!(!columns.is_contiguous());
    assert_eq!(bits(&columns.apply(&parallel).queued().unwrap()), alone);
}

#[test]
fn a_forward_uses_the_parameters_of_its_moment_and_replicas_keep_theirs() {
    let (_runtime, devices) = devices(2);
    let net = Linear::new(4, 3, &devices[0]).unwrap();
    let bias = net.bias.clone().unwrap();
    let x = Tensor::zeros([2, 4], &devices[0]).queued().unwrap();
    let parallel = DataParallel::new(net, &devices).unwrap();
    bias.fill_(1.0).queued().unwrap();
    let replicas = parallel.replicate().unwrap();
    bias.fill_(2.0).queued().unwrap();
    let first = |y: Pending<Tensor>| block_on(y.to_vec::<f32>()).unwrap()[5];
    assert_eq!((first(x.apply(&parallel)), first(replicas.forward(&x))), (2.0, 1.0));
    let refreshed = parallel.replicate().unwrap();
    assert_eq!(first(refreshed.forward(&x)), 2.0);
}

#[test]
fn the_host_waits_for_nothing_and_all_devices_work() {
    let (_runtime, devices) = devices(2);
    let net = Linear::new(4, 3, &devices[0]).unwrap();
    let x = Tensor::zeros([4, 4], &devices[0]).queued().unwrap();
    let gates = [0, 1].map(|n| devices[n].default_stream().unwrap().hold().unwrap());
    // It returns although neither device can run.
    let mut y = x.apply(&DataParallel::new(net, &devices).unwrap());
    assert!(!y.query().unwrap());
    gates.into_iter().for_each(|gate| gate.open());
    assert_eq!(block_on(y).unwrap().shape(), [4, 3]);
}

#[test]
fn bad_devices_modules_and_inputs_are_refused_with_both_sides() {
    let (_runtime, devices) = devices(2);
    let net = Linear::new(4, 3, &devices[1]).unwrap();
    let refused = |devices: &[Device]| DataParallel::new(net.clone(), devices).err().expect("refused");
    says(&refused(&[]), ErrorKind::InvalidArgument, &["DataParallel (", "there are no devices"]);
    let twice = [devices[1].clone(), devices[1].clone()];
    says(&refused(&twice), ErrorKind::InvalidArgument, &["cpu:1 is among the devices twice"]);
    let text = "weight is on cpu:1, and the first device is cpu:0";
    says(&refused(&devices), ErrorKind::DeviceMismatch, &[text]);

    let mut net = net;
    net.to(&devices[0]).queued().unwrap();
    let mut parallel = DataParallel::new(net, &devices).unwrap();
    let scalar = Tensor::ones([], &devices[0]).queued().unwrap();
    says(&refusal(scalar.apply(&parallel)), ErrorKind::Shape, &["the input is a scalar"]);
    // With one part and with several, the error names the line that applies the module.
    for (rows, part) in [(1, "[1, 2]"), (3, "[2, 2]")] {
        let narrow = Tensor::ones([rows, 2], &devices[0]).queued().unwrap();
        let here = format!("tests/tensors/data_parallel.rs:{}", line!() + 1);
        says(&refusal(narrow.apply(&parallel)), ErrorKind::Shape, &["linear", part, "[3, 4]", &here]);
    }
    let unseen = devices.iter().map(|device| block_on(device.synchronize()));
    assert!(unseen.into_iter().all(|unseen| unseen.is_ok()), "one mistake is one error");
    assert_eq!(parallel.named_parameters()[0].0, "module.weight");
    // The module moved away after it was wrapped.
    parallel.to(&devices[1]).queued().unwrap();
    let error = refusal(Tensor::ones([3, 4], &devices[0]).apply(&parallel));
    says(&error, ErrorKind::DeviceMismatch, &["weight is on cpu:1, and the first device is cpu:0"]);
}

#[test]
fn outputs_that_cannot_be_joined_are_refused_with_both_shapes() {
    /// Returns the input's transpose, or its sum, so the rows are not those of the input.
    #[derive(Clone)]
    struct Wrong(bool);
    impl Module for Wrong {
        fn forward(&self, x: &Tensor) -> Pending<Tensor> {
            if self.0 { x.sum() } else { x.t().contiguous() }
        }
        fn visit(&mut self, _visitor: &mut Visitor<'_>) {}
    }
    let (_runtime, devices) = devices(2);
    let x = Tensor::ones([3, 2], &devices[0]).queued().unwrap();
    for (sums, shapes) in [(true, "[] and []"), (false, "[2, 2] and [2, 1]")] {
        let parallel = DataParallel::new(Wrong(sums), &devices).unwrap();
        says(&refusal(x.apply(&parallel)), ErrorKind::Shape, &[shapes, "dimension 0"]);
    }
}
