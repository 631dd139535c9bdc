//! Modules: a model and its parameters, moves, recurrent networks, and batches that several devices
//! share.

use crate::support::software::in_child;
use crate::support::{block_on, runtime};
use serde_json::Value;
use warpline::Result;
use warpline::nn::{Conv2d, DataParallel, Flatten, LayerNorm, Linear, Relu, Role, Sequential, Visitor};
use warpline::prelude::*;

/// Returns what PyTorch computed, which `modules.py` stores in `modules.json`.
fn stored() -> Value {
    serde_json::from_str(include_str!("modules.json")).expect("what the script wrote")
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number") as f32).collect()
}

/// Returns the names of tensors.
fn names(tensors: Vec<(String, Tensor)>) -> Vec<String> {
    tensors.into_iter().map(|(name, _)| name).collect()
}

/// Returns the numbers of the formula in `modules.py`.
fn numbers(salt: usize, shape: &[usize], device: &Device) -> Tensor {
    let number = |i| ((i * 37 + salt * 11) % 17) as f32 / 16.0 - 0.5;
    let host: Vec<f32> = (0..shape.iter().product()).map(number).collect();
    Tensor::from_host(&host, shape, device).queued().expect("a tensor")
}

/// Returns the module with the numbers of `modules.py` as parameters.
fn filled<M: Module>(mut module: M) -> M {
    let mut salt = 0..;
    module.visit(&mut Visitor::new(&mut |_, role, tensor| {
        assert_eq!(role, Role::Parameter);
        *tensor = numbers(salt.next().expect("another number"), tensor.shape(), &tensor.device());
    }));
    module
}

/// The article's model of two convolutions.
#[derive(Clone)]
struct Net {
    conv1: Conv2d,
    conv2: Conv2d,
}

impl Net {
    fn new(device: &Device) -> Result<Self> {
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
fn computes_what_pytorch_computes(net: &Net, device: &Device) {
    let wanted = &stored()["two_convolutions"];
    let image = numbers(100, &[1, 28, 28], device).mul(1.5);
    let first = (&image).apply(&net.conv1).queued().unwrap();
    assert_eq!(first.shape(), [20, 24, 24]);
    let y = image.apply(net).queued().unwrap();
    assert_eq!((y.shape(), y.device()), (&[20, 20, 20][..], device.clone()));
    let y = block_on(y.to_vec::<f32>()).unwrap();
    let every_125th: Vec<f32> = y.iter().step_by(125).copied().collect();
    assert_eq!(every_125th, floats(&wanted["every_125th"]));
    assert_eq!(y.iter().map(|&y| f64::from(y)).sum::<f64>(), wanted["sum"].as_f64().unwrap());
    assert!(y.contains(&0.0) && every_125th.iter().any(|&y| y > 1.0), "both sides of relu");
}

/// X18: the model of two convolutions: its parameters, and its output.
#[test]
fn a_model_of_two_convolutions_computes_what_it_does_in_pytorch() {
    let runtime = runtime(1);
    let device = runtime.devices().remove(0);
    let net = filled(Net::new(&device).unwrap());
    let wanted = &stored()["two_convolutions"];
    assert_eq!(net.parameter_count() as u64, wanted["parameters"].as_u64().unwrap());
    assert_eq!((net.conv1.parameter_count(), net.parameter_count()), (520, 10_540));
    let [weight, bias] = &net.conv1.parameters()[..] else { panic!("a weight and a bias") };
    assert_eq!((weight.shape(), bias.shape()), (&[20, 1, 5, 5][..], &[20][..]));
    let all: Vec<Value> = names(net.named_parameters()).into_iter().map(Value::from).collect();
    assert_eq!(wanted["names"].as_array().unwrap(), &all);
    assert!(net.named_buffers().is_empty());
    computes_what_pytorch_computes(&net, &device);
}

/// X18, the moves: all parameters go to the GPU and back together, in place.
#[test]
fn a_model_moves_as_a_whole() {
    in_child(&[("SOFTCUDA_DEVICES", "2")], || {
        let [cpu, first, second] = ["cpu", "cuda:0", "cuda:1"].map(|name| Device::open(name).unwrap());
        let mut net = filled(Net::new(&cpu).unwrap());
        let is_on = |net: &Net, device: &Device| {
            assert!(net.parameters().iter().all(|tensor| tensor.device() == *device));
            computes_what_pytorch_computes(net, device);
        };
        net.cuda().blocking_wait().unwrap();
        is_on(&net, &first);
        net.to(&second).queued().unwrap();
        is_on(&net, &second);
        let there = net.parameters();
        net.to(&second).queued().unwrap();
        assert!(there.iter().zip(net.parameters()).all(|(old, new)| old.shares_memory(&new)), "no copies");
        net.cpu().queued().unwrap();
        is_on(&net, &cpu);
        second.enter(|| net.cuda().queued()).unwrap();
        is_on(&net, &second);
    });
}

/// Runs the program of X5 with and without its flag, and returns both outputs.
fn moved_if(available: bool, cpu: &Device) -> Vec<f32> {
    let mut x = numbers(7, &[8, 42], cpu);
    let mut net = filled(Linear::new(42, 3, cpu).unwrap());
    if available {
        x = x.cuda().queued().unwrap();
        net.cuda().queued().unwrap();
    }
    let y = x.apply(&net).queued().unwrap();
    let wanted = if available { "cuda:0" } else { "cpu:0" };
    for tensor in [&x, &net.weight, net.bias.as_ref().unwrap(), &y] {
        assert_eq!(tensor.device().to_string(), wanted);
    }
    assert_eq!(y.shape(), [8, 3]);
    y.to_vec::<f32>().blocking_wait().unwrap()
}

/// X5: a tensor and a network move if CUDA is available, and stay on the CPU otherwise.
#[test]
fn a_tensor_and_a_network_move_if_cuda_is_available() {
    in_child(&[], || {
        let cpu = Device::open("cpu").unwrap();
        let available = warpline::cuda::is_available();
        assert!(available);
        // The numbers are exact, so both devices have the same bits.
        assert_eq!(moved_if(available, &cpu), moved_if(!available, &cpu));
    });
}

/// X8, the network: an empty tensor on a device that is a value, and a network that goes there.
#[test]
fn a_network_goes_to_the_device_that_is_a_value() {
    in_child(&[], || {
        for name in ["cpu", "cuda"] {
            let device = Device::open(name).unwrap();
            let x = Tensor::empty([8, 42], &device).queued().unwrap();
            assert_eq!((x.shape(), x.device()), (&[8, 42][..], device.clone()));
            let mut net = Linear::new(42, 3, &Device::open("cpu").unwrap()).unwrap();
            net.to(&device).queued().unwrap();
            let y = x.zero_().apply(&net).queued().unwrap();
            assert_eq!((y.shape(), y.device()), (&[8, 3][..], device));
            let bias = net.bias.as_ref().unwrap().to_vec::<f32>().blocking_wait().unwrap();
            assert_eq!(y.to_vec::<f32>().blocking_wait().unwrap(), bias.repeat(8), "0·wᵀ + bias");
        }
    });
}

/// X24, the model: it goes to the best device, which is the CPU where there is no GPU.
#[test]
fn a_model_goes_to_the_best_device() {
    for (devices, best) in [("1", "cuda:0"), ("0", "cpu:0")] {
        in_child(&[("SOFTCUDA_DEVICES", devices), ("BEST", best)], || {
            let best = Device::best().unwrap();
            assert_eq!(best.to_string(), std::env::var("BEST").unwrap());
            let mut net = filled(Net::new(&Device::open("cpu").unwrap()).unwrap());
            net.to(&best).queued().unwrap();
            computes_what_pytorch_computes(&net, &best);
        });
    }
}

/// The layers agree with PyTorch's, and so do their names.
#[test]
fn layers_compute_what_they_do_in_pytorch() {
    let runtime = runtime(1);
    let device = runtime.devices().remove(0);
    let net = Sequential::new()
        .add(Linear::new(6, 5, &device).unwrap())
        .add(Relu)
        .add(LayerNorm::new(5, &device).unwrap())
        .add(Flatten)
        .add(Linear::new(15, 4, &device).unwrap());
    let net = filled(net);
    let wanted = &stored()["layers"];
    let all: Vec<Value> = names(net.state_dict()).into_iter().map(Value::from).collect();
    assert_eq!(wanted["names"].as_array().unwrap(), &all);
    let y = numbers(100, &[2, 3, 6], &device).apply(&net).queued().unwrap();
    assert_eq!(y.shape(), [2, 4]);
    are_near(&block_on(y.to_vec::<f32>()).unwrap(), &floats(&wanted["output"]));
}

/// Checks that each number is within 1e-6 of its magnitude, or within 1e-6 if it is small. The sums
/// have at most 15 terms near 1, so either side is off by less than 15 units of 2⁻²⁴.
fn are_near(got: &[f32], wanted: &[f32]) {
    assert_eq!(got.len(), wanted.len());
    for (got, wanted) in got.iter().zip(wanted) {
        assert!((got - wanted).abs() <= 1e-6 * wanted.abs().max(1.0), "{got}, PyTorch has {wanted}");
    }
}

/// The note's recurrent network.
#[derive(Clone)]
struct Rnn {
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor,
    bias_hh: Tensor,
    activation: fn(Pending<Tensor>) -> Pending<Tensor>,
}

impl Rnn {
    fn new(inputs: usize, units: usize, device: &Device) -> Result<Self> {
        let zeros = |shape: &[usize]| Tensor::zeros(shape, device).queued();
        let weights = (zeros(&[units, inputs])?, zeros(&[units, units])?);
        let biases = (zeros(&[units])?, zeros(&[units])?);
        Ok(Rnn {
            weight_ih: weights.0,
            weight_hh: weights.1,
            bias_ih: biases.0,
            bias_hh: biases.1,
            activation: |x| x.tanh(),
        })
    }
}

impl Module for Rnn {
    /// Returns the last hidden state for inputs \[steps, rows, inputs\]. The first one is zeros of
    /// the type and on the device of the inputs.
    fn forward(&self, x: &Tensor) -> Pending<Tensor> {
        let &[steps, rows, inputs] = x.shape() else { panic!("{x:?} is not [steps, rows, inputs]") };
        (0..steps).fold(x.new_zeros([rows, self.bias_hh.len()]), |h, step| {
            let x = x.narrow(0, step, 1).reshape([rows, inputs]);
            let sum = x.linear(&self.weight_ih, &self.bias_ih) + h.linear(&self.weight_hh, &self.bias_hh);
            (self.activation)(sum)
        })
    }

    fn visit(&mut self, visitor: &mut Visitor<'_>) {
        visitor.parameter("weight_ih", &mut self.weight_ih);
        visitor.parameter("weight_hh", &mut self.weight_hh);
        visitor.parameter("bias_ih", &mut self.bias_ih);
        visitor.parameter("bias_hh", &mut self.bias_hh);
    }
}

/// A recurrent network whose hidden state comes from `new_zeros` runs where its input is.
#[test]
fn the_hidden_state_of_a_recurrent_network_is_made_beside_its_input() {
    in_child(&[], || {
        let devices = ["cpu", "cuda:0"].map(|name| Device::open(name).unwrap());
        let mut rnn = filled(Rnn::new(3, 4, &devices[0]).unwrap());
        for device in &devices {
            rnn.to(device).queued().unwrap();
            let x = numbers(100, &[5, 2, 3], device);
            rnn.activation = |x| x.tanh();
            let h = x.apply(&rnn).queued().unwrap();
            assert_eq!((h.shape(), h.device()), (&[2, 4][..], device.clone()));
            are_near(&h.to_vec().blocking_wait().unwrap(), &floats(&stored()["rnn_tanh"]));
            rnn.activation = |x| x.relu();
            let h = x.apply(&rnn).to_vec().blocking_wait().unwrap();
            are_near(&h, &floats(&stored()["rnn_relu"]));
        }
    });
}

/// Checks that a batch of each size in `sizes` gives the same bits on all devices as on the first.
fn shared_batches_have_the_same_bits(devices: &[Device], sizes: &[usize]) {
    let net = Net::new(&devices[0]).unwrap();
    let parallel = DataParallel::new(net.clone(), devices).unwrap();
    let replicas = parallel.replicate().unwrap();
    for &rows in sizes {
        let images = Tensor::randn([rows, 1, 12, 12], &devices[0]).queued().unwrap();
        let alone = images.apply(&net).queued().unwrap();
        assert_eq!(alone.shape(), [rows, 20, 4, 4]);
        let alone = bits(&alone);
        for together in [images.apply(&parallel), replicas.forward(&images)] {
            let together = together.queued().unwrap();
            assert_eq!((together.shape()[0], together.device()), (rows, devices[0].clone()));
            assert_eq!(bits(&together), alone, "{rows} rows on {devices:?}");
        }
    }
}

fn bits(x: &Tensor) -> Vec<u32> {
    x.to_vec::<f32>().blocking_wait().unwrap().into_iter().map(f32::to_bits).collect()
}

/// X21: a model on several devices gives the bits that it gives on one.
#[test]
fn a_batch_on_several_devices_has_the_bits_of_one_device() {
    let runtime = runtime(3);
    let devices = runtime.devices();
    // Also fewer rows than devices, numbers of rows that they do not divide, and no rows.
    shared_batches_have_the_same_bits(&devices[..2], &[8, 7, 2, 1, 0]);
    shared_batches_have_the_same_bits(&devices, &[9, 8, 7, 4, 2, 1, 0]);
    shared_batches_have_the_same_bits(&devices[..1], &[3, 0]);
}

/// X21 on two GPUs, without and with access to each other's memory.
#[test]
fn a_batch_on_two_gpus_has_the_bits_of_one() {
    for reachable in ["1", "0"] {
        in_child(&[("SOFTCUDA_DEVICES", "2"), ("SOFTCUDA_PEER", reachable)], || {
            let devices = ["cuda:0", "cuda:1"].map(|name| Device::open(name).unwrap());
            shared_batches_have_the_same_bits(&devices, &[5, 2, 1, 0]);
        });
    }
}
