//! Element types, promotion, broadcasting, conversion and constructors, compared with PyTorch's,
//! which `generate_types.py` stores in `types.json`.
//!
//! Results are equal element by element, because nothing is summed. NaN equals NaN, and zeros of
//! either sign are equal.

use half::{bf16, f16};
use serde_json::Value;
use std::fmt::Debug;
use std::str::FromStr;
use std::sync::OnceLock;
use warpline::prelude::*;
use warpline::{Result, Scalar, TensorElement, TensorOptions};

/// The minimum number of cases per group.
const CASES: usize = 40;

fn cases(group: &str) -> Vec<&'static Value> {
    static STORED: OnceLock<Value> = OnceLock::new();
    let stored = STORED
        .get_or_init(|| serde_json::from_str(include_str!("types.json")).expect("what the script wrote"));
    let cases: Vec<_> =
        stored["cases"].as_array().expect("a list").iter().filter(|case| case["group"] == group).collect();
    assert!(cases.len() >= CASES, "{group}: {} cases, {CASES} are wanted", cases.len());
    cases
}

/// Evaluates `$body` with `$ty` as the element type named `$dtype`.
macro_rules! with_type {
    ($dtype:expr, $ty:ident => $body:expr) => {
        with_type!(@ $dtype, $ty => $body, F32 f32, F64 f64, F16 f16, BF16 bf16, I64 i64, I32 i32,
            I16 i16, I8 i8, U8 u8, Bool bool)
    };
    (@ $dtype:expr, $ty:ident => $body:expr, $($variant:ident $of:ty),*) => {
        match $dtype {
            $(DType::$variant => {
                type $ty = $of;
                $body
            })*
            other => panic!("no element type is called {other}"),
        }
    };
}

fn dtype(stored: &Value) -> DType {
    let name = stored.as_str().expect("a type");
    DType::ALL.into_iter().find(|dtype| dtype.to_string() == name).expect("one of the types")
}

fn shape(stored: &Value) -> Vec<usize> {
    let sizes = stored["shape"].as_array().expect("a list").iter();
    sizes.map(|size| size.as_u64().expect("a size") as usize).collect()
}

fn elements<T: FromStr<Err: Debug>>(stored: &Value) -> Vec<T> {
    let text = stored["data"].as_str().expect("text");
    text.split_whitespace().map(|number| number.parse().expect("an element")).collect()
}

/// Returns the stored tensor, on the device.
fn tensor(stored: &Value, device: &Device) -> Result<Tensor> {
    with_type!(dtype(&stored["dtype"]), T => {
        Tensor::from_host(&elements::<T>(stored), shape(stored), device).queued()
    })
}

/// Returns the stored number, of the kind in which it is written.
fn scalar(stored: &Value) -> Scalar {
    let text = stored.as_str().expect("a number");
    if let Ok(value) = text.parse::<i64>() {
        return value.into();
    }
    match text.parse::<bool>() {
        Ok(value) => value.into(),
        Err(_) => text.parse::<f64>().expect("a number").into(),
    }
}

/// Returns true if both are equal, or both are NaN.
fn same<T: PartialEq>(one: &T, other: &T) -> bool {
    #[allow(clippy::eq_op, reason = "NaN differs from itself")]
    let both_nan = one != one && other != other;
    one == other || both_nan
}

fn compare<T>(got: &Tensor, wanted: &Value, case: &Value)
where
    T: TensorElement + FromStr<Err: Debug> + PartialEq + Debug,
{
    let (got, wanted) = (got.to_vec::<T>().blocking_wait().unwrap(), elements::<T>(wanted));
    let equal = got.len() == wanted.len() && got.iter().zip(&wanted).all(|(got, wanted)| same(got, wanted));
    assert!(equal, "{got:?}, and PyTorch has {wanted:?}: {case}");
}

/// Returns what the op of a case returns.
fn result(case: &Value, device: &Device) -> Result<Tensor> {
    let x = || tensor(&case["x"], device);
    macro_rules! binary {
        ($op:ident) => {
            if case["y"].is_string() {
                x()?.$op(scalar(&case["y"]))
            } else {
                x()?.$op(&tensor(&case["y"], device)?)
            }
        };
    }
    let op = case["op"].as_str().expect("a name");
    let result = match op {
        "add" => binary!(add),
        "sub" => binary!(sub),
        "mul" => binary!(mul),
        "div" => binary!(div),
        "add_" => binary!(add_),
        "sub_" => binary!(sub_),
        "mul_" => binary!(mul_),
        "div_" => binary!(div_),
        "to" => x()?.to(dtype(&case["dtype"])),
        "copy_" => x()?.copy_(&tensor(&case["y"], device)?),
        "fill_" => x()?.fill_(scalar(&case["value"])),
        "arange" => {
            let [start, end, step] = ["start", "end", "step"].map(|name| scalar(&case[name]));
            let options = TensorOptions { dtype: case.get("dtype").map(dtype), device: Some(device.clone()) };
            Tensor::arange(start, end, step, options)
        }
        _ => panic!("no op is called {op}"),
    };
    result.queued()
}

fn check(group: &str) {
    let runtime = crate::support::runtime(1);
    let device = runtime.device(DeviceId::Cpu(0)).unwrap();
    for case in cases(group) {
        let got = result(case, &device).unwrap_or_else(|error| panic!("{case}: {error}"));
        let wanted = &case["output"];
        assert_eq!((got.dtype(), got.shape()), (dtype(&wanted["dtype"]), &shape(wanted)[..]), "{case}");
        with_type!(got.dtype(), T => compare::<T>(&got, wanted, case));
    }
}

/// Makes a test for each group of cases.
macro_rules! groups {
    ($($name:ident),*) => {$(
        #[test]
        fn $name() {
            check(stringify!($name));
        }
    )*};
}
groups!(division, promotion, in_place, broadcasting, conversion, copies, ranges, fills);

/// C++ leaves these conversions undefined, and PyTorch's results differ between processors.
#[test]
fn a_float_out_of_the_range_of_an_integer_becomes_the_nearest_end_and_nan_becomes_zero() -> Result<()> {
    let runtime = crate::support::runtime(1);
    let device = runtime.device(DeviceId::Cpu(0))?;
    let floats = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e30, -1e30];
    for of in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        let x = Tensor::new(floats, (of, &device)).queued()?;
        macro_rules! ends {
            ($($ty:ident),*) => {$(
                let (low, high) = ($ty::MIN, $ty::MAX);
                let got = x.to($ty::DTYPE).to_vec::<$ty>().blocking_wait()?;
                assert_eq!(got, [0, high, low, high, low], "{of}");
            )*};
        }
        ends!(i64, i32, i16, i8, u8);
    }
    // The first numbers beyond a range.
    let x = Tensor::new([128.0, -129.0, 255.9, 256.0, -1.0, -0.9], (DType::F32, &device)).queued()?;
    assert_eq!(x.to(DType::I8).to_vec::<i8>().blocking_wait()?, [127, -128, 127, 127, -1, 0]);
    assert_eq!(x.to(DType::U8).to_vec::<u8>().blocking_wait()?, [128, 0, 255, 255, 0, 0]);
    Ok(())
}

/// PyTorch's CPU ops round the number in a sum, and not in a product; its CUDA ops never do.
#[test]
fn a_number_is_not_rounded_to_a_16_bit_type_and_a_tensor_is() -> Result<()> {
    let runtime = crate::support::runtime(1);
    let device = runtime.device(DeviceId::Cpu(0))?;
    let x = Tensor::new([3.0, 5.0, 7.0, 11.0], (DType::F16, &device)).queued()?;
    let tenth = Tensor::new(0.1, &device).queued()?;
    let products = |by: f32| [3.0, 5.0, 7.0, 11.0].map(|x| f16::from_f32(x * by));
    let [exact, rounded] = [0.1, f16::from_f32(0.1).to_f32()].map(products);
    assert_ne!(exact, rounded);
    assert_eq!(x.mul(0.1).to_vec::<f16>().blocking_wait()?, exact);
    assert_eq!(x.mul(&tenth).to_vec::<f16>().blocking_wait()?, rounded);
    Ok(())
}
