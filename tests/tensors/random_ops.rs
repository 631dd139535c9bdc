//! Random programs of tensor ops, compared with a plain model on the host.
//!
//! Every call gives the model's result, or an error that names the op, the line, and what does not
//! fit: both shapes or both types. Refused are operands that do not fit. The library may also
//! refuse transposed views, and memory that overlaps other memory of the same op.

use crate::host_model::{Binary, Model, Value, broadcast, kind};
use crate::support::{runtime, within_a_minute};
use half::{bf16, f16};
use proptest::prelude::*;
use warpline::prelude::*;
use warpline::{Result, Scalar};

/// The number of random programs.
const CASES: u32 = 128;

/// A number beside a tensor.
#[derive(Clone, Copy, Debug)]
enum Number {
    Float(f64),
    Integer(i64),
    Truth(bool),
}

/// How a tensor is given another shape.
#[derive(Clone, Copy, Debug)]
enum NewShape {
    Flat,
    Reversed,
    TooLong,
}

/// One op. Operands are numbers of tensors, modulo how many there are.
#[derive(Clone, Copy, Debug)]
enum Step {
    Binary(Binary, bool, usize, usize),
    WithNumber(Binary, bool, usize, Number),
    To(usize, DType),
    Copy(usize, usize),
    T(usize),
    Reshape(usize, NewShape),
    Narrow(usize, usize, usize),
    Contiguous(usize),
    Sum(usize),
    Mean(usize),
    /// The flag transposes the second matrix.
    Matmul(usize, usize, bool),
}

/// A tensor to begin with.
#[derive(Clone, Debug)]
struct Start {
    dtype: DType,
    shape: Vec<usize>,
    seed: u32,
}

fn dtypes() -> impl Strategy<Value = DType> {
    prop_oneof![Just(DType::F32), prop::sample::select(&DType::ALL[..])]
}

fn sizes() -> impl Strategy<Value = usize> {
    prop_oneof![1 => Just(0), 3 => Just(1), 4 => Just(2), 3 => Just(3)]
}

/// Returns tensors most of whose shapes can be broadcast together: those of parts of one shape,
/// with ones in it.
fn starts() -> impl Strategy<Value = Vec<Start>> {
    let one = (dtypes(), 0..5usize, any::<[bool; 4]>(), any::<u32>(), prop::collection::vec(sizes(), 0..=4));
    let all = prop::collection::vec((one, prop::bool::weighted(0.15)), 2..5);
    let common =
        prop_oneof![prop::collection::vec(sizes(), 0..=4), (sizes(), sizes()).prop_map(|(m, n)| vec![m, n])];
    (common, all).prop_map(|(common, all)| {
        let start =
            |((dtype, missing, ones, seed, other), is_other): ((_, usize, [bool; 4], _, Vec<_>), bool)| {
                let part = &common[missing.saturating_sub(2).min(common.len())..];
                let with_ones = part.iter().zip(ones).map(|(&size, one)| if one { 1 } else { size });
                let shape = if is_other { other } else { with_ones.collect() };
                Start { dtype, shape, seed }
            };
        all.into_iter().map(start).collect()
    })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let op = || prop::sample::select(vec![Binary::Add, Binary::Sub, Binary::Mul, Binary::Div]);
    let number = prop_oneof![
        prop::sample::select(vec![0.5, -2.0, 0.1, 0.0]).prop_map(Number::Float),
        (-3..4i64).prop_map(Number::Integer),
        any::<bool>().prop_map(Number::Truth),
    ];
    let new_shape = prop::sample::select(vec![NewShape::Flat, NewShape::Reversed, NewShape::TooLong]);
    let at = || 0..16usize;
    let step = prop_oneof![
        6 => (op(), any::<bool>(), at(), at()).prop_map(|(op, place, x, y)| Step::Binary(op, place, x, y)),
        2 => (op(), any::<bool>(), at(), number).prop_map(|(op, place, x, a)| Step::WithNumber(op, place, x, a)),
        2 => (at(), dtypes()).prop_map(|(x, dtype)| Step::To(x, dtype)),
        2 => (at(), at()).prop_map(|(y, x)| Step::Copy(y, x)),
        2 => at().prop_map(Step::T),
        2 => (at(), new_shape).prop_map(|(x, shape)| Step::Reshape(x, shape)),
        2 => (at(), 0..3usize, 0..3usize).prop_map(|(x, start, len)| Step::Narrow(x, start, len)),
        1 => at().prop_map(Step::Contiguous),
        1 => at().prop_map(Step::Sum),
        1 => at().prop_map(Step::Mean),
        3 => (at(), at(), any::<bool>()).prop_map(|(x, y, t)| Step::Matmul(x, y, t)),
    ];
    prop::collection::vec(step, 1..14)
}

/// The model's expectation of a call.
enum Expected {
    Result(Model),
    /// The result, or a refusal.
    MayBeRefused(Model),
    /// A refusal whose text has these parts.
    Refused(Vec<String>),
    /// Elements up to their tolerance. They are `f32`.
    Near(Vec<usize>, Vec<(f64, f64)>),
}

/// Returns the elements of a tensor of any type and layout.
fn elements(x: &Tensor) -> Result<Vec<Value>> {
    let x = x.contiguous().queued()?;
    macro_rules! read {
        ($ty:ty, $convert:expr) => {
            x.to_vec::<$ty>().blocking_wait()?.into_iter().map($convert).collect()
        };
    }
    Ok(match x.dtype() {
        DType::F32 => read!(f32, |x| Value::Float(x.into())),
        DType::F64 => read!(f64, Value::Float),
        DType::F16 => read!(f16, |x| Value::Float(x.into())),
        DType::BF16 => read!(bf16, |x| Value::Float(x.into())),
        DType::I64 => read!(i64, Value::Integer),
        DType::I32 => read!(i32, |x| Value::Integer(x.into())),
        DType::I16 => read!(i16, |x| Value::Integer(x.into())),
        DType::I8 => read!(i8, |x| Value::Integer(x.into())),
        DType::U8 => read!(u8, |x| Value::Integer(x.into())),
        DType::Bool => read!(bool, |x| Value::Integer(x.into())),
        other => panic!("the model has no {other}"),
    })
}

fn check(got: &Tensor, model: &Model) -> Result<()> {
    assert_eq!((got.dtype(), got.shape()), (model.dtype, &model.shape[..]));
    let (got, wanted) = (elements(got)?, model.values());
    let equal = got.len() == wanted.len() && got.iter().zip(&wanted).all(|(got, wanted)| got.same(*wanted));
    assert!(equal, "{got:?}, and the model has {wanted:?}");
    Ok(())
}

impl Start {
    fn create(&self, device: &Device) -> Result<(Tensor, Model)> {
        let mut state = self.seed | 1;
        let values: Vec<f64> = (0..self.shape.iter().product())
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                f64::from(state >> 27) / 4.0 - if self.dtype == DType::U8 { 0.0 } else { 4.0 }
            })
            .collect();
        let tensor = Tensor::new(&values[..], (self.dtype, device)).reshape(&self.shape[..]).queued()?;
        let values = values.into_iter().map(|value| Value::Float(value).to(self.dtype)).collect();
        Ok((tensor, Model::new(self.dtype, self.shape.clone(), values)))
    }
}

/// Returns what is expected of z ← x ∘ y, or of x ← x ∘ y.
fn expected_binary(op: Binary, in_place: bool, x: &Model, y: &Model) -> Expected {
    let (types, shapes) = ([x.dtype, y.dtype], [format!("{:?}", x.shape), format!("{:?}", y.shape)]);
    if op == Binary::Sub && types.contains(&DType::Bool) {
        return Expected::Refused(vec!["bool".to_owned()]);
    }
    let result = x.result_type(op, y);
    if in_place && kind(result) > kind(x.dtype) {
        return Expected::Refused([result, x.dtype].map(|dtype| dtype.to_string()).into());
    }
    match broadcast(&x.shape, &y.shape) {
        Some(shape) if !in_place || shape == x.shape => {}
        _ => return Expected::Refused(shapes.into()),
    }
    let z = x.binary(op, y, result);
    let odd = x.transposed || y.transposed || (in_place && x.overlaps(y) && !x.is_same(y));
    if odd { Expected::MayBeRefused(z) } else { Expected::Result(z) }
}

fn expected_with_number(op: Binary, in_place: bool, x: &Model, a: Number) -> Expected {
    let (of_a, value) = match a {
        Number::Float(value) => (DType::F32, Value::Float(value)),
        Number::Integer(value) => (DType::I64, Value::Integer(value)),
        Number::Truth(value) => (DType::Bool, Value::Integer(value.into())),
    };
    if op == Binary::Sub && (x.dtype == DType::Bool || of_a == DType::Bool) {
        return Expected::Refused(vec!["bool".to_owned()]);
    }
    let mut result = if kind(of_a) > kind(x.dtype) { of_a } else { x.dtype };
    if op == Binary::Div && !result.is_floating_point() {
        result = DType::F32;
    }
    if in_place && kind(result) > kind(x.dtype) {
        return Expected::Refused([result, x.dtype].map(|dtype| dtype.to_string()).into());
    }
    let z = x.with_number(op, value, result);
    if x.transposed { Expected::MayBeRefused(z) } else { Expected::Result(z) }
}

fn expected_copy(y: &Model, x: &Model) -> Expected {
    if broadcast(&x.shape, &y.shape).as_ref() != Some(&y.shape) {
        return Expected::Refused([&x.shape, &y.shape].map(|shape| format!("{shape:?}")).into());
    }
    let copy = Model::new(x.dtype, y.shape.clone(), x.expanded(&y.shape));
    let odd = x.transposed || y.transposed || (x.overlaps(y) && !x.is_same(y));
    if odd { Expected::MayBeRefused(copy) } else { Expected::Result(copy) }
}

fn expected_product(x: &Model, y: &Model) -> Expected {
    let shapes = [&x.shape, &y.shape];
    if let Some(other) = shapes.iter().find(|shape| shape.len() != 2) {
        return Expected::Refused(vec![format!("{other:?}")]);
    }
    if x.shape[1] != y.shape[0] {
        return Expected::Refused(shapes.map(|shape| format!("{shape:?}")).into());
    }
    Expected::Near(vec![x.shape[0], y.shape[1]], x.matmul(y))
}

/// Calls an op. Evaluates to its line and the `Pending`.
macro_rules! at {
    ($call:expr) => {
        (line!(), $call)
    };
}

/// Calls `$op`, or its form in place, with the operand `$y`.
macro_rules! called {
    ($op:expr, $in_place:expr, $x:expr, $y:expr) => {
        match ($op, $in_place) {
            (Binary::Add, false) => ("add", at!($x.add($y))),
            (Binary::Sub, false) => ("sub", at!($x.sub($y))),
            (Binary::Mul, false) => ("mul", at!($x.mul($y))),
            (Binary::Div, false) => ("div", at!($x.div($y))),
            (Binary::Add, true) => ("add_", at!($x.add_($y))),
            (Binary::Sub, true) => ("sub_", at!($x.sub_($y))),
            (Binary::Mul, true) => ("mul_", at!($x.mul_($y))),
            (Binary::Div, true) => ("div_", at!($x.div_($y))),
        }
    };
}

type Called = (&'static str, (u32, Pending<Tensor>));

/// Runs one step. Adds its result, unless that is one of the tensors.
fn run(step: Step, tensors: &mut Vec<(Tensor, Model)>) -> Result<()> {
    let count = tensors.len();
    let of = |index: usize| tensors[index % count].clone();
    let narrowed = |(start, len): (usize, usize), x: &Model| {
        let rows = x.shape.first().copied();
        match rows {
            Some(rows) if start + len <= rows && x.transposed => Expected::MayBeRefused(x.clone()),
            Some(rows) if start + len <= rows => Expected::Result(x.narrow(start, len)),
            _ => Expected::Refused(vec![format!("{:?}", x.shape)]),
        }
    };
    let (mut written, mut is_new) = (None, true);
    let ((op, (line, pending)), expected): (Called, Expected) = match step {
        Step::Binary(op, in_place, x, y) => {
            let ((x, of_x), (y, of_y)) = (of(x), of(y));
            let expected = expected_binary(op, in_place, &of_x, &of_y);
            written = in_place.then_some(of_x);
            (called!(op, in_place, x, &y), expected)
        }
        Step::WithNumber(op, in_place, x, a) => {
            let (x, of_x) = of(x);
            let expected = expected_with_number(op, in_place, &of_x, a);
            written = in_place.then_some(of_x);
            let a: Scalar = match a {
                Number::Float(value) => value.into(),
                Number::Integer(value) => value.into(),
                Number::Truth(value) => value.into(),
            };
            (called!(op, in_place, x, a), expected)
        }
        Step::Copy(y, x) => {
            let ((y, of_y), (x, of_x)) = (of(y), of(x));
            let expected = expected_copy(&of_y, &of_x);
            written = Some(of_y);
            (("copy_", at!(y.copy_(&x))), expected)
        }
        Step::To(x, dtype) => {
            let (x, of_x) = of(x);
            let model = if of_x.dtype == dtype { of_x } else { of_x.converted(dtype) };
            // A copy of a transposed view is transposed, which the model of the copy is not.
            is_new = !model.transposed && x.is_contiguous();
            (("to", at!(x.to(dtype))), Expected::Result(model))
        }
        Step::T(x) => {
            let (x, of_x) = of(x);
            let expected = match of_x.shape.len() {
                0..=2 => Expected::Result(of_x.t()),
                _ => Expected::Refused(vec![format!("{:?}", of_x.shape)]),
            };
            (("t", at!(x.t())), expected)
        }
        Step::Reshape(x, how) => {
            let (x, of_x) = of(x);
            let shape = match how {
                NewShape::Flat => vec![of_x.len()],
                NewShape::Reversed => of_x.shape.iter().rev().copied().collect(),
                NewShape::TooLong => vec![of_x.len() + 1],
            };
            let shapes = [&of_x.shape, &shape].map(|shape| format!("{shape:?}"));
            let expected = match how {
                NewShape::TooLong => Expected::Refused(shapes.into()),
                _ if of_x.transposed => {
                    Expected::MayBeRefused(Model::new(of_x.dtype, shape.clone(), of_x.values()))
                }
                _ => Expected::Result(of_x.reshape(shape.clone())),
            };
            (("reshape", at!(x.reshape(shape))), expected)
        }
        Step::Narrow(x, start, len) => {
            let (x, of_x) = of(x);
            let expected = narrowed((start, len), &of_x);
            (("narrow", at!(x.narrow(0, start, len))), expected)
        }
        Step::Contiguous(x) => {
            let (x, of_x) = of(x);
            let model = match of_x.transposed {
                true => Model::new(of_x.dtype, of_x.shape.clone(), of_x.values()),
                false => of_x,
            };
            (("contiguous", at!(x.contiguous())), Expected::Result(model))
        }
        Step::Sum(x) | Step::Mean(x) => {
            let (x, of_x) = of(x);
            if of_x.dtype != DType::F32 || of_x.transposed {
                return Ok(());
            }
            let (sum, size) = of_x.sum();
            if matches!(step, Step::Sum(_)) {
                (("sum", at!(x.sum())), Expected::Near(vec![], vec![(sum, size)]))
            } else {
                let n = of_x.len() as f64;
                (("mean", at!(x.mean())), Expected::Near(vec![], vec![(sum / n, size / n)]))
            }
        }
        Step::Matmul(x, y, t) => {
            let ((x, of_x), (mut y, mut of_y)) = (of(x), of(y));
            if t && of_y.shape.len() == 2 {
                (y, of_y) = (y.t().queued()?, of_y.t());
            }
            if [&of_x, &of_y].iter().any(|x| x.dtype != DType::F32) {
                return Ok(());
            }
            (("matmul", at!(x.matmul(&y))), expected_product(&of_x, &of_y))
        }
    };
    let outcome = pending.blocking_wait();
    let refused = |error: &Error, parts: &[String]| {
        let text = error.to_string();
        let place = format!("(tests/tensors/random_ops.rs:{line})");
        assert!(text.contains(op) && text.contains(&place), "{op} at {place} is not named in {text:?}");
        // If there are two reasons, either may be named.
        let is_view = text.contains("is a transposed view");
        for part in parts.iter().filter(|_| !is_view) {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
    };
    match (expected, outcome) {
        (Expected::Refused(parts), Err(error)) => refused(&error, &parts),
        (Expected::Refused(parts), Ok(got)) => panic!("accepted, with {got:?}; {parts:?} do not fit"),
        (Expected::MayBeRefused(_), Err(error)) => refused(&error, &[]),
        (Expected::MayBeRefused(model), Ok(got)) if written.is_none() => {
            assert_eq!(elements(&got)?.len(), model.len());
        }
        (Expected::Result(model) | Expected::MayBeRefused(model), Ok(got)) => {
            if let Some(written) = written {
                let values: Vec<_> =
                    model.values().into_iter().map(|value| value.to(written.dtype)).collect();
                written.write(&values);
                return check(&got, &written);
            }
            check(&got, &model)?;
            if is_new {
                tensors.push((got, model));
            }
        }
        (Expected::Near(shape, wanted), Ok(got)) => {
            assert_eq!((got.dtype(), got.shape()), (DType::F32, &shape[..]));
            let values = elements(&got)?;
            for (value, (wanted, size)) in values.iter().zip(wanted) {
                let Value::Float(value) = *value else { panic!("an f32 is no integer") };
                // Either is within k·u·Σ|terms| of the exact sum, and there are at most 81 terms.
                // Sums near the largest f32 may overflow on the way.
                let near = (value - wanted).abs() <= 2.0 * 81.0 * 2f64.powi(-24) * size + 1e-37;
                let may_overflow = !size.is_finite() || size > 1e37;
                assert!(near || may_overflow, "{value}, and the model has {wanted}");
            }
            // The model goes on with the library's rounding.
            tensors.push((got, Model::new(DType::F32, shape, values)));
        }
        (_, Err(error)) => panic!("refused: {error}"),
    }
    Ok(())
}

fn run_program(starts: &[Start], steps: &[Step]) -> Result<()> {
    let runtime = runtime(1);
    let device = runtime.device(DeviceId::Cpu(0))?;
    let mut tensors: Vec<_> = starts.iter().map(|start| start.create(&device)).collect::<Result<_>>()?;
    for step in steps {
        run(*step, &mut tensors)?;
    }
    // Also those that no op returned, but that share memory with one that was written.
    tensors.iter().try_for_each(|(tensor, model)| check(tensor, model))
}

#[test]
fn every_call_gives_the_result_of_the_model_or_an_error_with_its_reason() {
    within_a_minute(|| {
        let config = ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() };
        proptest!(config, |(starts in starts(), steps in steps())| {
            run_program(&starts, &steps).unwrap();
        });
    });
}
