//! The values of every op, compared with PyTorch's, which `pytorch/generate.py` stores in
//! `pytorch/cases.json`.
//!
//! Results are equal if nothing is rounded, or if each element is rounded once. NaN equals NaN, and
//! zeros of either sign are equal. Rounded sums and functions such as exp differ by at most the
//! case's tolerance, which the script derives.

mod display;
mod types;

use serde_json::Value;
use std::sync::OnceLock;
use warpline::Result;
use warpline::prelude::*;

fn cases(op: &str, least: usize) -> Vec<&'static Value> {
    static STORED: OnceLock<Value> = OnceLock::new();
    let stored = STORED
        .get_or_init(|| serde_json::from_str(include_str!("cases.json")).expect("what the script wrote"));
    let cases: Vec<_> =
        stored["cases"].as_array().expect("a list").iter().filter(|case| case["op"] == op).collect();
    assert!(cases.len() >= least, "{op}: {} cases, {least} are wanted", cases.len());
    cases
}

fn number(value: &Value) -> f32 {
    match value.as_str() {
        Some("nan") => f32::NAN,
        Some("inf") => f32::INFINITY,
        Some("-inf") => f32::NEG_INFINITY,
        _ => value.as_f64().expect("a number") as f32,
    }
}

fn sizes(value: &Value) -> Vec<usize> {
    let sizes = value.as_array().expect("a list").iter();
    sizes.map(|size| size.as_u64().expect("a size") as usize).collect()
}

fn integers(value: &Value) -> Vec<i64> {
    value.as_array().expect("a list").iter().map(|x| x.as_i64().expect("an integer")).collect()
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().expect("a list").iter().map(number).collect()
}

/// Returns the stored tensor, on the device.
fn tensor(stored: &Value, device: &Device) -> Result<Tensor> {
    let shape = sizes(&stored["shape"]);
    let tensor = match stored["dtype"].as_str() {
        Some("i64") => Tensor::from_host(&integers(&stored["data"]), shape, device),
        _ => Tensor::from_host(&floats(&stored["data"]), shape, device),
    };
    if stored["t"] == true { tensor.t().queued() } else { tensor.queued() }
}

/// A function that runs the op on the inputs of a case.
type Run = fn(&[Value], &Device) -> Result<Vec<Tensor>>;

fn check(op: &str, least: usize, run: Run) {
    let runtime = crate::support::runtime(1);
    let device = runtime.device(DeviceId::Cpu(0)).unwrap();
    for case in cases(op, least) {
        let inputs = case["inputs"].as_array().expect("a list");
        let got = run(inputs, &device).unwrap_or_else(|error| panic!("{case}: {error}"));
        let wanted = case["outputs"].as_array().expect("a list");
        assert_eq!(got.len(), wanted.len(), "{case}");
        for (got, wanted) in got.iter().zip(wanted) {
            assert_eq!(got.shape(), sizes(&wanted["shape"]), "{case}");
            if wanted["dtype"] == "i64" {
                assert_eq!(got.to_vec::<i64>().blocking_wait().unwrap(), integers(&wanted["data"]), "{case}");
            } else {
                let tolerance = case["tolerance"].as_f64().expect("a number");
                let relative = case["relative"].as_f64().unwrap_or(0.0);
                let got = got.to_vec::<f32>().blocking_wait().unwrap();
                for (got, wanted) in got.iter().zip(floats(&wanted["data"])) {
                    let tolerance = tolerance.max(relative * f64::from(wanted).abs());
                    assert!(agree(*got, wanted, tolerance), "{got}, PyTorch has {wanted}: {case}");
                }
            }
        }
    }
}

fn agree(got: f32, wanted: f32, tolerance: f64) -> bool {
    let near = (f64::from(got) - f64::from(wanted)).abs() <= tolerance;
    got == wanted || (got.is_nan() && wanted.is_nan()) || (near && wanted.is_finite())
}

/// Makes a test for each op, from the minimum number of its cases and an expression that calls it
/// on the inputs of a case.
macro_rules! ops {
    ($least:literal cases each; $($name:ident: |$inputs:ident, $device:ident| $run:expr;)*) => {$(
        #[test]
        fn $name() {
            check(stringify!($name), $least, |$inputs, $device| $run);
        }
    )*};
}

mod nn;

/// Returns the inputs, each as a tensor.
fn tensors<const N: usize>(inputs: &[Value], device: &Device) -> Result<[Tensor; N]> {
    let all: Vec<_> = inputs.iter().map(|input| tensor(input, device)).collect::<Result<_>>()?;
    Ok(all.try_into().expect("as many as the op takes"))
}

fn one(result: Pending<Tensor>) -> Result<Vec<Tensor>> {
    Ok(vec![result.queued()?])
}

/// Checks that an op and its form in place agree, and returns the op's result.
fn both(
    x: &Tensor,
    new: Pending<Tensor>,
    in_place: fn(&Tensor, &Value, &Device) -> Result<()>,
    y: &Value,
) -> Result<Vec<Tensor>> {
    let device = x.device();
    let copy = Tensor::empty_like(x).copy_(x).queued()?;
    let new = new.queued()?;
    in_place(&copy, y, &device)?;
    assert_eq!(elements(&new)?, elements(&copy)?);
    Ok(vec![new])
}

/// Returns the elements as text, in which all NaNs are alike.
fn elements(x: &Tensor) -> Result<String> {
    Ok(match x.dtype() {
        DType::F32 => format!("{:?}", x.to_vec::<f32>().blocking_wait()?),
        _ => format!("{:?}", x.to_vec::<i64>().blocking_wait()?),
    })
}

/// Calls `$op` with the number `$y`, as an integer or as a float.
macro_rules! with_number {
    ($x:expr, $op:ident, $y:expr) => {
        if let Some(y) = $y.as_i64() { $x.$op(y) } else { $x.$op(number($y)) }
    };
}

fn integer(value: &Value) -> usize {
    value.as_u64().expect("a count") as usize
}

ops! {
    20 cases each;
    copy: |inputs, device| {
        let [x] = tensors(inputs, device)?;
        one(Tensor::empty_like(&x).copy_(&x))
    };
    full: |inputs, device| {
        let shape: Vec<usize> = integers(&inputs[0]["data"]).iter().map(|&size| size as usize).collect();
        one(match inputs[1].as_i64() {
            Some(value) => Tensor::full(shape, value, device),
            None => Tensor::full(shape, number(&inputs[1]), device),
        })
    };
    contiguous: |inputs, device| {
        let [x] = tensors(inputs, device)?;
        assert!(!x.is_contiguous());
        one(x.contiguous())
    };
    reshape: |inputs, device| {
        let shape: Vec<usize> = integers(&inputs[1]["data"]).iter().map(|&size| size as usize).collect();
        one(tensor(&inputs[0], device)?.reshape(shape))
    };
    narrow: |inputs, device| one(tensor(&inputs[0], device)?.narrow(0, integer(&inputs[1]), integer(&inputs[2])));
    add: |inputs, device| {
        let [x, y] = tensors(inputs, device)?;
        both(&x, x.add(&y), |x, y, device| x.add_(&tensor(y, device)?).queued().map(drop), &inputs[1])
    };
    sub: |inputs, device| {
        let [x, y] = tensors(inputs, device)?;
        both(&x, x.sub(&y), |x, y, device| x.sub_(&tensor(y, device)?).queued().map(drop), &inputs[1])
    };
    mul: |inputs, device| {
        let [x, y] = tensors(inputs, device)?;
        both(&x, x.mul(&y), |x, y, device| x.mul_(&tensor(y, device)?).queued().map(drop), &inputs[1])
    };
    add_scalar: |inputs, device| {
        let x = tensor(&inputs[0], device)?;
        both(&x, with_number!(x, add, &inputs[1]), |x, y, _| with_number!(x, add_, y).queued().map(drop), &inputs[1])
    };
    sub_scalar: |inputs, device| {
        let x = tensor(&inputs[0], device)?;
        both(&x, with_number!(x, sub, &inputs[1]), |x, y, _| with_number!(x, sub_, y).queued().map(drop), &inputs[1])
    };
    mul_scalar: |inputs, device| {
        let x = tensor(&inputs[0], device)?;
        both(&x, with_number!(x, mul, &inputs[1]), |x, y, _| with_number!(x, mul_, y).queued().map(drop), &inputs[1])
    };
    relu: |inputs, device| one(tensor(&inputs[0], device)?.relu());
    relu_backward: |inputs, device| {
        let [grad, y] = tensors(inputs, device)?;
        one(grad.relu_backward(&y))
    };
    matmul: |inputs, device| {
        let [a, b] = tensors(inputs, device)?;
        one(a.matmul(&b))
    };
    linear: |inputs, device| {
        let [x, w, bias] = tensors(inputs, device)?;
        one(x.linear(&w, &bias))
    };
    sum: |inputs, device| one(tensor(&inputs[0], device)?.sum());
    mean: |inputs, device| one(tensor(&inputs[0], device)?.mean());
    sum_rows: |inputs, device| one(tensor(&inputs[0], device)?.sum_rows());
    argmax: |inputs, device| one(tensor(&inputs[0], device)?.argmax());
    count_equal: |inputs, device| {
        let [x, y] = tensors(inputs, device)?;
        one(x.count_equal(&y))
    };
    cross_entropy: |inputs, device| {
        let [logits, labels] = tensors(inputs, device)?;
        let (loss, grad) = logits.cross_entropy(&labels).queued()?;
        Ok(vec![loss, grad])
    };
    sgd: |inputs, device| {
        let [param, first, second, third] = tensors(&inputs[..4], device)?;
        let (lr, momentum) = (number(&inputs[4]), number(&inputs[5]));
        let velocity = Tensor::zeros(param.shape(), device).queued()?;
        for grad in [first, second, third] {
            param.sgd_(&grad, &velocity, lr, momentum).queued()?;
        }
        Ok(vec![param, velocity])
    };
}
