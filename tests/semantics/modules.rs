//! Modules: moves between named devices, layers, recurrent networks, and batches that two GPUs
//! share.

use crate::note::{
    Net, computes_what_pytorch_computes, filled, floats, names, numbers, shared_batches_have_the_same_bits,
    stored,
};
use crate::support::software::in_child;
use crate::support::{block_on, runtime};
use serde_json::Value;
use warpline::Result;
use warpline::nn::{Flatten, LayerNorm, Linear, Relu, Sequential, Visitor};
use warpline::prelude::*;

/// X18, the moves: all parameters go to the GPU and back together, in place. `cuda` and `cpu` name
/// devices of the default runtime.
#[test]
fn a_model_moves_as_a_whole() {
    in_child(&[("SOFTCUDA_DEVICES", "2")], || {
        let [cpu, first, second] = ["cpu", "cuda:0", "cuda:1"].map(|name| Device::open(name).unwrap());
        let mut net = filled(Net::new(&cpu).unwrap());
        let is_on = |net: &Net, device: &Device| {
            assert!(net.parameters().iter().all(|tensor| tensor.device() == *device));
            block_on(computes_what_pytorch_computes(net, device)).unwrap();
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

/// X5: a tensor and a network move if CUDA is available, and stay on the CPU otherwise. `cuda`
/// names a device of the default runtime.
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

/// X8, the network: an empty tensor on a device that is a value, and a network that goes there. The
/// values come from names of devices of the default runtime.
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

/// X24, the model: it goes to the best device, which is the CPU where there is no GPU. The
/// environment sets the number of GPUs.
#[test]
fn a_model_goes_to_the_best_device() {
    for (devices, best) in [("1", "cuda:0"), ("0", "cpu:0")] {
        in_child(&[("SOFTCUDA_DEVICES", devices), ("BEST", best)], || {
            let best = Device::best().unwrap();
            assert_eq!(best.to_string(), std::env::var("BEST").unwrap());
            let mut net = filled(Net::new(&Device::open("cpu").unwrap()).unwrap());
            net.to(&best).queued().unwrap();
            block_on(computes_what_pytorch_computes(&net, &best)).unwrap();
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

/// X21 on two GPUs, with and without access to each other's memory. The environment sets peer
/// access.
#[test]
fn a_batch_on_two_gpus_has_the_bits_of_one() {
    for reachable in ["1", "0"] {
        in_child(&[("SOFTCUDA_DEVICES", "2"), ("SOFTCUDA_PEER", reachable)], || {
            let devices = ["cuda:0", "cuda:1"].map(|name| Device::open(name).unwrap());
            block_on(shared_batches_have_the_same_bits(&devices, &[5, 2, 1, 0])).unwrap();
        });
    }
}
