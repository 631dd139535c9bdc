//! Random calls of single ops, right and wrong ones, on two devices and with sizes up to 2⁴⁰.
//!
//! A call starts from operands that fit, and some of them are changed: another shape, type or
//! device, or a transposed view. The test collects all reasons for which the call is wrong. Without
//! a reason it must give the shape and values of a plain computation in `f64`. With reasons the
//! error must be one of them: its kind, the op, the line, and both shapes, types or devices.

use crate::single_ops::{Call, OPS, Operand, Reason, TAKES_VIEWS, result};
use crate::support::{refusal, runtime, says, within_a_minute};
use proptest::prelude::*;
use warpline::Result;
use warpline::prelude::*;
use warpline_test_counts::count;

/// More elements than this are not allocated by any machine that runs the tests.
const TOO_MANY: usize = 1 << 36;

#[derive(Clone, Debug)]
enum Change {
    Shape(Vec<usize>),
    Type(DType),
    Device,
    Transposed,
}

fn sizes() -> impl Strategy<Value = usize> {
    prop_oneof![
        2 => Just(0), 4 => Just(1), 6 => 2..5usize,
        1 => prop::sample::select(vec![1 << 32, 1 << 40, 1 << 63, usize::MAX]),
    ]
}

fn changes() -> impl Strategy<Value = Vec<(usize, Change)>> {
    let change = prop_oneof![
        2 => prop::collection::vec(sizes(), 0..5).prop_map(Change::Shape),
        1 => prop::sample::select(&DType::ALL[..]).prop_map(Change::Type),
        1 => Just(Change::Device),
        1 => Just(Change::Transposed),
    ];
    prop_oneof![2 => Just(Vec::new()), 3 => prop::collection::vec((0..3usize, change), 1..3)]
}

fn calls() -> impl Strategy<Value = (Call, Vec<(usize, Change)>)> {
    let pair = || [0..4usize, 0..4];
    let sizes = (prop::collection::vec(sizes(), 0..5), prop::array::uniform5(sizes()));
    (prop::sample::select(OPS), sizes, 0..4usize, pair(), pair(), changes()).prop_map(
        |(op, (shape, sizes), dim, stride, padding, changes)| {
            (Call { op, shape, sizes, dim, stride, padding }, changes)
        },
    )
}

/// Returns the number of elements, if a usize counts it.
fn elements(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size))
}

/// Returns the tensor, or `None` if it cannot exist. It has no more than 10 000 elements, so that
/// programs are fast.
fn made(operand: &Operand, devices: &[Device]) -> Result<Option<Tensor>> {
    if elements(&operand.shape).is_none_or(|elements| elements > 10_000) {
        return Ok(None);
    }
    let (shape, values) = (&operand.shape, operand.values());
    let stored: Vec<usize> = match operand.transposed {
        true => shape.iter().rev().copied().collect(),
        false => shape.clone(),
    };
    // The values of a view are those of its memory in the view's order.
    let memory = match (operand.transposed, &shape[..]) {
        (true, &[rows, cols]) if !values.is_empty() => {
            (0..values.len()).map(|at| values[at % rows * cols + at / rows]).collect()
        }
        _ => values,
    };
    let x = Tensor::new(&memory[..], (operand.dtype, &devices[operand.device])).reshape(stored);
    if operand.transposed { x.t().queued().map(Some) } else { x.queued().map(Some) }
}

/// Returns the reasons that concern types, devices and views.
fn common_reasons(call: &Call, operands: &[Operand]) -> Vec<Reason> {
    let mut reasons = Vec::new();
    for (at, operand) in operands.iter().enumerate() {
        if let Some(wanted) = call.dtype(at).filter(|wanted| *wanted != operand.dtype) {
            let parts = [operand.dtype, wanted].map(|dtype| dtype.to_string());
            reasons.push((ErrorKind::DTypeMismatch, parts.into()));
        }
        if operand.transposed && !TAKES_VIEWS.contains(&(call.op, at)) {
            reasons.push((ErrorKind::Shape, vec!["transposed".into(), format!("{:?}", operand.shape)]));
        }
    }
    if operands.iter().any(|operand| operand.device != operands[0].device) {
        reasons.push((ErrorKind::DeviceMismatch, vec!["cpu:0".into(), "cpu:1".into()]));
    }
    reasons
}

fn run(call: &Call, changes: &[(usize, Change)]) -> Result<()> {
    let runtime = runtime(2);
    let devices = runtime.devices();
    let mut operands = call.operands();
    for (at, change) in changes {
        let at = at % operands.len();
        let operand = &mut operands[at];
        match change {
            Change::Shape(shape) => operand.shape.clone_from(shape),
            Change::Type(dtype) => operand.dtype = *dtype,
            Change::Device => operand.device = 1,
            Change::Transposed => {}
        }
        let wants_view = matches!(change, Change::Transposed);
        operand.transposed = (operand.transposed || wants_view) && operand.shape.len() == 2;
    }
    let mut tensors = Vec::new();
    for operand in &operands {
        let Some(tensor) = made(operand, &devices)? else { return Ok(()) };
        tensors.push(tensor);
    }

    let mut reasons = common_reasons(call, &operands);
    let wanted = match call.shapes(&operands) {
        Err(reason) => {
            reasons.push(reason);
            None
        }
        Ok(shape) => {
            match elements(&shape) {
                None => reasons.push((ErrorKind::OutOfMemory, vec![format!("{shape:?}")])),
                Some(elements) if elements > TOO_MANY => reasons.push((ErrorKind::OutOfMemory, vec![])),
                // Would be right, and take long.
                Some(elements) if elements > 10_000 => return Ok(()),
                _ => {}
            }
            Some(shape)
        }
    };
    let (line, outcome) = call.run(&tensors);
    match outcome {
        Err(error) => {
            let text = error.to_string();
            let place = format!("(tests/tensors/single_ops.rs:{line})");
            // Memory for a result is allocated at the line of the op.
            let named = text.contains(call.op) || error.kind() == ErrorKind::OutOfMemory;
            assert!(named && text.contains(&place), "{} at {place} is not named in {text:?}", call.op);
            let fits = |(kind, parts): &Reason| {
                error.kind() == *kind && parts.iter().all(|part| text.contains(part))
            };
            assert!(reasons.iter().any(fits), "{text:?} is none of {reasons:?}");
        }
        Ok(got) => {
            assert!(reasons.is_empty(), "accepted, with {got:?}, although {reasons:?}");
            let shape = wanted.expect("there is no reason");
            assert_eq!(got[0].shape(), shape);
            let Some(wanted) = result(call, &operands) else { return Ok(()) };
            let values = got[0].to(DType::F64).to_vec::<f64>().blocking_wait()?;
            assert_eq!(values.len(), wanted.len());
            for (value, wanted) in values.iter().zip(&wanted) {
                // Sums have at most 10⁴ terms of size below 20. Most results are exact.
                let near = (value - wanted).abs() <= 2e-5 * wanted.abs().max(1.0);
                let same = value == wanted || (value.is_nan() && wanted.is_nan());
                assert!(near || same, "{value}, and the model has {wanted}");
            }
        }
    }
    Ok(())
}

#[test]
fn every_single_call_gives_its_values_or_an_error_with_a_reason() {
    let config =
        ProptestConfig { cases: count(1_000, 4_000), failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |((call, changes) in calls())| {
        within_a_minute(move || run(&call, &changes).unwrap());
    });
}

/// Ops that launched nothing did not look at the devices of their operands.
#[test]
fn operands_on_two_devices_are_refused_also_without_elements() {
    let runtime = runtime(2);
    let [one, two] = [0, 1].map(|n| runtime.device(DeviceId::Cpu(n)).unwrap());
    let zeros = |shape: &[usize], device: &Device| Tensor::zeros(shape, device).queued().unwrap();
    let (x, y) = (zeros(&[0], &one), zeros(&[1], &two));
    let (image, weight, bias) = (zeros(&[0, 1, 2, 2], &one), zeros(&[1, 1, 1, 1], &one), zeros(&[1], &two));
    let errors = [
        refusal(x.add(&y)),
        refusal(Tensor::cat([&x, &y.narrow(0, 0, 0).queued().unwrap()], 0)),
        refusal(image.conv2d(&weight, Some(&bias), [1, 1], [0, 0])),
    ];
    for error in errors {
        says(&error, ErrorKind::DeviceMismatch, &["the stream is on cpu:0 and an operand is on cpu:1"]);
    }
}
