//! Modules: what moves with them, initial values, and state in files.

use crate::support::{block_on, refusal, runtime, says};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use warpline::nn::{Conv2d, Flatten, LayerNorm, Linear, Relu, Sequential, Visitor};
use warpline::nn::{load_safetensors, to_safetensors};
use warpline::prelude::*;

fn two_devices() -> (Runtime, [Device; 2]) {
    let runtime = runtime(2);
    let devices = runtime.devices().try_into().expect("two devices");
    (runtime, devices)
}

fn elements(x: &Tensor) -> Vec<f32> {
    block_on(x.to_vec::<f32>()).unwrap()
}

/// A module with tensors of several types, of which two are the same.
#[derive(Clone)]
struct Mixed {
    weight: Tensor,
    tied: Tensor,
    steps: Tensor,
    mask: Tensor,
}

impl Mixed {
    fn new(device: &Device) -> Self {
        let weight = Tensor::from_host(&[1.5_f32, -2.0, 0.25], [3], device).queued().unwrap();
        Mixed {
            tied: weight.clone(),
            weight,
            steps: Tensor::from_host(&[7_i64], [], device).queued().unwrap(),
            mask: Tensor::from_host(&[true, false], [2], device).queued().unwrap(),
        }
    }
}

impl Module for Mixed {
    fn forward(&self, x: &Tensor) -> Pending<Tensor> {
        x.mul(&self.weight)
    }

    fn visit(&mut self, visitor: &mut Visitor<'_>) {
        visitor.parameter("weight", &mut self.weight);
        visitor.parameter("tied", &mut self.tied);
        visitor.buffer("steps", &mut self.steps);
        visitor.buffer("mask", &mut self.mask);
    }
}

#[test]
fn a_conversion_changes_floating_point_tensors_and_keeps_shared_ones_shared() {
    let (_runtime, [one, two]) = two_devices();
    let mut module = Mixed::new(&one);
    let before = module.clone();
    assert_eq!(module.parameter_count(), 3, "a tensor of two names counts once");
    module.to((DType::F16, &two)).blocking_wait().unwrap();
    assert_eq!((module.weight.dtype(), module.steps.dtype()), (DType::F16, DType::I64));
    assert!(module.state_dict().iter().all(|(_, tensor)| tensor.device() == two));
    assert!(module.weight.shares_memory(&module.tied));
    assert_eq!(elements(&module.weight.to(DType::F32).queued().unwrap()), [1.5, -2.0, 0.25]);
    assert_eq!(block_on(module.steps.item::<i64>()).unwrap(), 7);
    assert_eq!(block_on(module.mask.to_vec::<bool>()).unwrap(), [true, false]);
    // An earlier clone keeps its tensors.
    assert_eq!((before.weight.dtype(), before.weight.device()), (DType::F32, one));
}

#[test]
fn a_move_that_is_refused_leaves_the_module_as_it_was() {
    let (_runtime, [one, _]) = two_devices();
    let mut module = Mixed::new(&one);
    let error = refusal(module.to(DType::I64));
    says(&error, ErrorKind::DTypeMismatch, &["to (tests/tensors/modules.rs:", "the type is i64"]);

    let other = runtime(1);
    let elsewhere = other.devices().remove(0);
    let line = line!() + 1;
    let error = refusal(module.to(&elsewhere));
    says(&error, ErrorKind::DeviceMismatch, &[&format!("tests/tensors/modules.rs:{line}")]);
    assert!(module.state_dict().iter().all(|(_, tensor)| tensor.device() == one));

    // The first tensor can be converted, the second cannot: another stream still writes it.
    let side = one.new_stream().unwrap();
    let mut net = Linear::new(2, 2, &one).unwrap();
    side.wait_for(net.bias.as_ref().unwrap());
    side.enter(|| net.bias.as_ref().unwrap().zero_().queued()).unwrap();
    assert_eq!(refusal(net.to(DType::F64)).kind(), ErrorKind::Unordered);
    assert_eq!((net.weight.dtype(), net.bias.as_ref().unwrap().dtype()), (DType::F32, DType::F32));
}

#[test]
fn the_refused_move_of_a_tensor_with_two_names_is_reported_once() {
    let (_runtime, [one, _]) = two_devices();
    let mut module = Mixed::new(&one);
    let side = one.new_stream().unwrap();
    side.wait_for(&module.weight);
    side.enter(|| module.weight.zero_().queued()).unwrap();
    let stream = Stream::current(&one).unwrap();
    assert_eq!(refusal(module.to(DType::F64)).kind(), ErrorKind::Unordered);
    // An error that is still unseen would be returned here.
    block_on(stream.synchronize()).unwrap();
}

#[test]
fn errors_of_layers_name_the_line_that_applies_them() {
    let (_runtime, [one, _]) = two_devices();
    let layer = Linear::new(3, 2, &one).unwrap();
    let x = Tensor::ones([4, 5], &one).queued().unwrap();
    let there = |error: Error, line: u32| {
        let place = format!("linear on stream \"default\" (tests/tensors/modules.rs:{line})");
        says(&error, ErrorKind::Shape, &[&place]);
    };
    there(refusal(x.apply(&layer)), line!());
    there(refusal(layer.forward(&x)), line!());
    // Also inside the forward of a module of the program.
    #[derive(Clone)]
    struct Outer(Linear);
    const INNER: u32 = line!() + 3;
    impl Module for Outer {
        fn forward(&self, x: &Tensor) -> Pending<Tensor> {
            x.relu().apply(&self.0).relu()
        }
        fn visit(&mut self, visitor: &mut Visitor<'_>) {
            visitor.module("0", &mut self.0);
        }
    }
    there(refusal(x.apply(&Outer(layer))), INNER);
    let error = refusal(x.apply(&Sequential::new().add(Linear::new(3, 2, &one).unwrap())));
    says(&error, ErrorKind::Shape, &["linear on stream \"default\" (", "nn/linear.rs:"]);
    let scalar = Tensor::ones([], &one).queued().unwrap();
    says(&refusal(scalar.apply(&Flatten)), ErrorKind::Shape, &["Flatten (tests", "shape [], and at least 2"]);
    // Beside a size of 0 the others may be anything.
    let none = Tensor::empty([0, 1 << 40, 1 << 40], &one).queued().unwrap();
    says(&refusal(none.apply(&Flatten)), ErrorKind::Shape, &["Flatten (tests", "columns cannot be counted"]);
    let text = block_on(none.display()).unwrap().to_string();
    assert_eq!(text, "tensor([], size=(0, 1099511627776, 1099511627776))");
}

#[test]
fn a_linear_layer_applies_to_the_last_dimension() {
    let (_runtime, [device, _]) = two_devices();
    let mut layer = Linear::new(2, 3, &device).unwrap();
    layer.weight.copy_(Tensor::new([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], &device)).queued().unwrap();
    layer.bias.as_ref().unwrap().copy_(Tensor::new([0.0, 0.0, 10.0], &device)).queued().unwrap();
    let rows = [1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
    let x = Tensor::from_host(&rows, [2, 2, 2], &device).queued().unwrap();
    let y = x.apply(&layer).queued().unwrap();
    assert_eq!(y.shape(), [2, 2, 3]);
    let wanted = [1.0, 2.0, 13.0, 3.0, 4.0, 17.0, 5.0, 6.0, 21.0, 7.0, 8.0, 25.0];
    assert_eq!(elements(&y), wanted);
    let one_row = Tensor::new([1.0, 2.0], &device).apply(&layer).queued().unwrap();
    assert_eq!((one_row.shape(), elements(&one_row)), (&[3][..], vec![1.0, 2.0, 13.0]));
    layer.bias = None;
    assert_eq!(elements(&x.apply(&layer).queued().unwrap())[..3], [1.0, 2.0, 3.0]);
    assert_eq!(layer.parameter_count(), 6);
    let none = Tensor::zeros([0, 5, 2], &device).apply(&layer).queued().unwrap();
    assert_eq!(none.shape(), [0, 5, 3]);
}

#[test]
fn initial_values_are_uniform_up_to_the_bound_and_come_from_the_generator() {
    let (_runtime, [device, _]) = two_devices();
    let make = || {
        device.generator().manual_seed(3);
        let linear = Linear::new(64, 100, &device).unwrap();
        let conv = Conv2d::new(4, 100, [4, 4], &device).unwrap();
        [linear.parameters(), conv.parameters()].concat()
    };
    // 64 inputs, and 4·4·4 of them, have the bound 1/8.
    for (first, second) in make().iter().zip(make()) {
        let numbers = elements(first);
        assert_eq!(numbers, elements(&second), "of one seed");
        let largest = numbers.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
        assert!(largest <= 0.125 && largest > 0.115, "{largest}");
        let mean = numbers.iter().sum::<f32>() / numbers.len() as f32;
        // The standard deviation of the mean of 100 numbers is 0.0072.
        assert!(mean.abs() < 0.03, "{mean}");
    }
    let norm = LayerNorm::new(3, &device).unwrap();
    assert_eq!((elements(&norm.weight), elements(&norm.bias)), (vec![1.0; 3], vec![0.0; 3]));
}

fn classifier(device: &Device) -> Sequential {
    Sequential::new()
        .add(Flatten)
        .add(Linear::new(6, 4, device).unwrap())
        .add(Relu)
        .add(LayerNorm::new(4, device).unwrap())
}

#[test]
fn state_goes_to_a_file_and_into_a_module_on_another_device() {
    let (_runtime, [one, two]) = two_devices();
    let net = classifier(&one);
    let bytes = block_on(to_safetensors(&net)).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut names = file.names();
    names.sort();
    assert_eq!(names, ["1.bias", "1.weight", "3.bias", "3.weight"]);
    assert_eq!(
        (file.tensor("1.weight").unwrap().shape(), file.tensor("1.weight").unwrap().dtype()),
        (&[4, 6][..], Dtype::F32)
    );

    let copy = classifier(&two);
    let clone = copy.clone();
    block_on(load_safetensors(&copy, &bytes)).unwrap();
    assert!(copy.state_dict().iter().all(|(_, tensor)| tensor.device() == two));
    let x = Tensor::randn([3, 2, 3], &one).queued().unwrap();
    let y = elements(&x.apply(&net).queued().unwrap());
    for loaded in [copy, clone] {
        assert_eq!(elements(&x.to(&two).apply(&loaded).queued().unwrap()), y, "written in place");
    }
}

#[test]
fn every_type_goes_to_a_file_and_back() {
    #[derive(Clone)]
    struct Buffers(Vec<Tensor>);
    impl Module for Buffers {
        fn forward(&self, x: &Tensor) -> Pending<Tensor> {
            Pending::ready(x.clone())
        }
        fn visit(&mut self, visitor: &mut Visitor<'_>) {
            for (i, tensor) in self.0.iter_mut().enumerate() {
                visitor.buffer(&i.to_string(), tensor);
            }
        }
    }
    let (_runtime, [device, _]) = two_devices();
    let numbers = Tensor::new([[1.0, 0.0, 3.0], [4.0, 5.0, 6.0]], &device).queued().unwrap();
    let mut tensors: Vec<_> = DType::ALL.iter().map(|&dtype| numbers.to(dtype).queued().unwrap()).collect();
    tensors.push(numbers.t().queued().unwrap()); // stored in row-major order
    tensors.push(Tensor::zeros([0, 3], &device).queued().unwrap());
    let module = Buffers(tensors);
    let bytes = block_on(to_safetensors(&module)).unwrap();
    assert_eq!(
        bytes,
        safetensors::serialize(SafeTensors::deserialize(&bytes).unwrap().tensors(), None).unwrap()
    );
    let empty = |x: &Tensor| Tensor::zeros(x.shape(), (x.dtype(), &device)).queued().unwrap();
    let copy = Buffers(module.0.iter().map(empty).collect());
    block_on(load_safetensors(&copy, &bytes)).unwrap();
    for (tensor, copy) in module.0.iter().zip(&copy.0) {
        let [tensor, copy] = [tensor, copy].map(|x| x.contiguous().to(DType::F32).queued().unwrap());
        assert_eq!(elements(&tensor), elements(&copy));
    }
    says(&refusal(load_safetensors(&module, &bytes)), ErrorKind::Shape, &["10 is a transposed view"]);
}

#[test]
fn a_large_state_goes_to_a_file_in_pieces() {
    let (_runtime, [device, _]) = two_devices();
    let net = Linear::new(1 << 10, 1 << 11, &device).unwrap();
    block_on(device.synchronize()).unwrap();
    let mut file = tokio_test::task::spawn(to_safetensors(&net));
    let mut polls = 0;
    let bytes = loop {
        polls += 1;
        match file.poll() {
            std::task::Poll::Ready(bytes) => break bytes.unwrap(),
            std::task::Poll::Pending => block_on(device.synchronize()).unwrap(),
        }
    };
    assert!(bytes.len() > 8 << 20);
    assert!(polls > 16, "8 MiB are read and then appended in pieces of 1 MiB, in {polls} polls");
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let (numbers, _) = file.tensor("weight").unwrap().data().as_chunks::<4>();
    let numbers: Vec<_> = numbers.iter().map(|&number| f32::from_le_bytes(number)).collect();
    assert_eq!(numbers, elements(&net.weight));
}

/// Returns a file with a tensor of zeros for each name, type and shape.
fn file(tensors: &[(&str, Dtype, &[usize])]) -> Vec<u8> {
    let zeros = [0; 1000];
    let views = tensors.iter().map(|&(name, dtype, shape)| {
        let len = shape.iter().product::<usize>() * dtype.bitsize() / 8;
        (name.to_owned(), TensorView::new(dtype, shape.to_vec(), &zeros[..len]).unwrap())
    });
    safetensors::serialize(views, None).unwrap()
}

/// Returns a file with this header and data.
fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// Returns a header whose tensors are each as long as can be.
fn eight_long_tensors() -> String {
    const LONGEST_BYTES: u64 = u64::MAX / 8;
    let tensors = (0..8).map(|i| {
        let (from, to) = (i * LONGEST_BYTES, (i + 1) * LONGEST_BYTES);
        format!(r#""{i}":{{"dtype":"U8","shape":[{LONGEST_BYTES}],"data_offsets":[{from},{to}]}}"#)
    });
    format!("{{{}}}", tensors.collect::<Vec<_>>().join(","))
}

#[test]
fn a_module_with_one_name_for_two_tensors_has_no_file() {
    #[derive(Clone)]
    struct Twice(Tensor, Tensor);
    impl Module for Twice {
        fn forward(&self, x: &Tensor) -> Pending<Tensor> {
            x.mul(&self.0)
        }
        fn visit(&mut self, visitor: &mut Visitor<'_>) {
            visitor.parameter("weight", &mut self.0);
            visitor.parameter("weight", &mut self.1);
        }
    }
    let (_runtime, [device, _]) = two_devices();
    let [one, two] = [1.0_f32, 2.0].map(|x| Tensor::full([], x, &device).queued().unwrap());
    let module = Twice(one, two);
    let text = "two tensors of the module are named weight";
    says(&block_on(to_safetensors(&module)).unwrap_err(), ErrorKind::Data, &[text]);
    let bytes = file(&[("weight", Dtype::F32, &[])]);
    says(&refusal(load_safetensors(&module, &bytes)), ErrorKind::Data, &[text]);
}

#[test]
fn a_file_that_does_not_fit_is_refused_and_changes_nothing() {
    let (_runtime, [device, _]) = two_devices();
    let net = Linear::new(3, 2, &device).unwrap();
    let before = elements(&net.weight);
    let (weight, bias) = (("weight", Dtype::F32, &[2, 3][..]), ("bias", Dtype::F32, &[2][..]));
    let layers: Vec<_> = (0..20).map(|i| format!("layer.{i:02}")).collect();
    let layers: Vec<_> = layers.iter().map(|name| (&**name, Dtype::F32, &[][..])).collect();
    let cases = [
        (file(&[weight]), ErrorKind::Data, "missing: bias; unexpected: none"),
        (
            file(&[weight, bias, ("scale", Dtype::F32, &[])]),
            ErrorKind::Data,
            "missing: none; unexpected: scale",
        ),
        (file(&[weight, ("1.bias", Dtype::F32, &[2])]), ErrorKind::Data, "missing: bias; unexpected: 1.bias"),
        (
            file(&[("weight", Dtype::F32, &[3, 2]), bias]),
            ErrorKind::Shape,
            "weight has shape [3, 2] in the file and [2, 3] in the module",
        ),
        (
            file(&[weight, ("bias", Dtype::F16, &[2])]),
            ErrorKind::DTypeMismatch,
            "bias is F16 in the file and F32 in the module",
        ),
        (b"not a file".to_vec(), ErrorKind::Data, "the bytes are not a safetensors file"),
        (file(&[weight, bias])[..40].to_vec(), ErrorKind::Data, "the bytes are not a safetensors file"),
        (
            with_header(r#"{"weight":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#, &[0; 2]),
            ErrorKind::Data,
            "(its header describes 3 bytes of data, and 2 follow it)",
        ),
        // The length of the data plus that of the header is not a usize.
        (
            with_header(&eight_long_tensors(), &[]),
            ErrorKind::Data,
            "(its header describes 18446744073709551608 bytes of data, and 0 follow it)",
        ),
        // Names from a file can be long, many, and not printable.
        (
            file(&[weight, bias, (&format!("\u{1b}[31m{}", "x".repeat(200)), Dtype::F32, &[])]),
            ErrorKind::Data,
            &format!("unexpected: \\u{{1b}}[31m{}…; pass", "x".repeat(95)),
        ),
        (file(&layers), ErrorKind::Data, "layer.06, layer.07 and 12 more; pass"),
    ];
    for (bytes, kind, text) in cases {
        let error = refusal(load_safetensors(&net, &bytes));
        says(&error, kind, &["load_safetensors (tests/tensors/modules.rs:", text]);
    }
    assert_eq!(elements(&net.weight), before);
    block_on(load_safetensors(&net, &file(&[bias, weight]))).unwrap();
    assert_eq!(elements(&net.weight), [0.0; 6]);
}

#[test]
fn bytes_that_are_no_booleans_are_refused() {
    let (_runtime, [device, _]) = two_devices();
    let module = Mixed::new(&device);
    let bytes = block_on(to_safetensors(&module)).unwrap();
    let mask = SafeTensors::deserialize(&bytes).unwrap().tensor("mask").unwrap().data().as_ptr();
    let at = mask as usize - bytes.as_ptr() as usize;
    let mut broken = bytes.clone();
    broken[at] = 2;
    says(&refusal(load_safetensors(&module, &broken)), ErrorKind::Data, &["mask holds bytes"]);
}
