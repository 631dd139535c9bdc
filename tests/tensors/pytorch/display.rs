//! The text of tensors, compared with PyTorch's, which `generate_display.py` stores in
//! `display.json`.

use super::sizes;
use serde_json::Value;
use warpline::Result;
use warpline::prelude::*;

/// The minimum number of cases.
const CASES: usize = 200;

fn parsed(number: &Value) -> f64 {
    number.as_str().expect("text").parse().expect("a number")
}

/// Returns the tensor of a case.
fn tensor(case: &Value, device: &Device) -> Result<Tensor> {
    let (name, shape) = (case["dtype"].as_str().expect("a type"), sizes(&case["shape"]));
    let dtype = DType::ALL.into_iter().find(|dtype| dtype.to_string() == name).expect("one of the types");
    let numbers: Vec<f64> = match case["data"].as_array() {
        Some(data) => data.iter().map(parsed).collect(),
        None => {
            let (start, step) = (parsed(&case["start"]), parsed(&case["step"]));
            (0..shape.iter().product::<usize>()).map(|n| n as f64 * step + start).collect()
        }
    };
    let x = Tensor::new(numbers, (dtype, device)).reshape(shape);
    if case["t"] == true { x.t().queued() } else { x.queued() }
}

#[test]
fn the_text_of_a_tensor_is_pytorchs() {
    let runtime = crate::support::runtime(1);
    let device = runtime.device(DeviceId::Cpu(0)).unwrap();
    let stored: Value = serde_json::from_str(include_str!("display.json")).expect("what the script wrote");
    let cases = stored["cases"].as_array().expect("a list");
    assert!(cases.len() >= CASES, "{} cases, {CASES} are wanted", cases.len());
    for case in cases {
        let x = tensor(case, &device).unwrap();
        let text = x.display().blocking_wait().unwrap().to_string();
        let wanted = case["text"].as_str().expect("text");
        assert_eq!(text, wanted, "\n{text}\nand PyTorch has\n{wanted}\nfor {:?} {}", x, case["shape"]);
    }
}

#[test]
fn the_text_names_the_device_unless_it_is_the_first_cpu() -> Result<()> {
    let runtime = crate::support::runtime(2);
    let [zero, one] = [0, 1].map(|n| runtime.device(DeviceId::Cpu(n)).unwrap());
    let text = |x: Pending<Tensor>| Ok::<_, Error>(x.display().blocking_wait()?.to_string());
    assert_eq!(text(Tensor::new([1, 2], &zero))?, "tensor([1, 2])");
    assert_eq!(text(Tensor::new([1, 2], &one))?, "tensor([1, 2], device='cpu:1')");
    let x = Tensor::new([0.5], (DType::F16, &one));
    assert_eq!(text(x)?, "tensor([0.5000], device='cpu:1', dtype=f16)");
    let x = Tensor::empty([0, 3], (DType::I64, &one));
    assert_eq!(text(x)?, "tensor([], device='cpu:1', size=(0, 3), dtype=i64)");
    // A part that does not fit begins a line.
    let x = Tensor::new([0.5; 8], (DType::F64, &one));
    let numbers = "0.5000, 0.5000, 0.5000, 0.5000, 0.5000, 0.5000, 0.5000, 0.5000";
    assert_eq!(text(x)?, format!("tensor([{numbers}],\n       device='cpu:1', dtype=f64)"));
    Ok(())
}

#[test]
fn the_type_is_named_unless_it_is_the_default_one_where_display_is_called() -> Result<()> {
    let runtime = crate::support::runtime(1);
    let device = runtime.device(DeviceId::Cpu(0))?;
    let [single, double] =
        [DType::F32, DType::F64].map(|dtype| Tensor::new([1.5], (dtype, &device)).queued().unwrap());
    let text = |x: &Tensor| x.display().map(|text| text.to_string());
    assert_eq!(text(&single).blocking_wait()?, "tensor([1.5000])");
    assert_eq!(text(&double).blocking_wait()?, "tensor([1.5000], dtype=f64)");
    let (single, double) = DType::F64.enter(|| (text(&single), text(&double)));
    assert_eq!(single.blocking_wait()?, "tensor([1.5000], dtype=f32)");
    assert_eq!(double.blocking_wait()?, "tensor([1.5000])");
    Ok(())
}

/// Of a large tensor, the device copies the edges, and only these are read.
#[test]
fn printing_a_large_tensor_reads_little_of_it() -> Result<()> {
    crate::support::software::in_child(&[], || {
        let runtime = Runtime::builder().pinned_cap(1 << 20).build().unwrap();
        let device = runtime.device(DeviceId::Cuda(0)).unwrap();
        let x = Tensor::zeros([3, 1 << 21], &device).queued().unwrap();
        // All of it does not fit into the pinned pool, through which it would be read.
        assert_eq!(x.to_vec::<f32>().blocking_wait().unwrap_err().kind(), ErrorKind::OutOfMemory);
        let text = x.display().blocking_wait().unwrap().to_string();
        let row = "[0., 0., 0.,  ..., 0., 0., 0.]";
        let expected = format!("tensor([{row},\n        {row},\n        {row}], device='cuda:0')");
        assert_eq!(text, expected);
    });
    Ok(())
}
