//! Tensor ops on vectors of the host, as plainly as possible: what `random_ops` compares with.

use half::{bf16, f16};
use std::cell::RefCell;
use std::rc::Rc;
use warpline::DType;

/// An element. The first kind holds those of all floating-point types, the second one integers and
/// truth values, which are 0 and 1.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value {
    Float(f64),
    Integer(i64),
}

impl Value {
    fn float(self) -> f64 {
        match self {
            Value::Float(value) => value,
            Value::Integer(value) => value as f64,
        }
    }

    /// Converts once: an integer of more than 24 bits is not rounded to `f64` in between.
    fn single(self) -> f32 {
        match self {
            Value::Float(value) => value as f32,
            Value::Integer(value) => value as f32,
        }
    }

    /// Returns this element as one of another type.
    pub(crate) fn to(self, dtype: DType) -> Value {
        macro_rules! integer {
            ($ty:ty) => {
                match self {
                    Value::Float(value) => i64::from(value as $ty),
                    Value::Integer(value) => i64::from(value as $ty),
                }
            };
        }
        match dtype {
            DType::F32 => Value::Float(self.single().into()),
            DType::F64 => Value::Float(self.float()),
            DType::F16 => Value::Float(f16::from_f32(self.single()).into()),
            DType::BF16 => Value::Float(bf16::from_f32(self.single()).into()),
            DType::I64 => Value::Integer(integer!(i64)),
            DType::I32 => Value::Integer(integer!(i32)),
            DType::I16 => Value::Integer(integer!(i16)),
            DType::I8 => Value::Integer(integer!(i8)),
            DType::U8 => Value::Integer(integer!(u8)),
            DType::Bool => Value::Integer((self.float() != 0.0).into()),
            other => panic!("the model has no {other}"),
        }
    }

    /// Returns true if both are equal, or both NaN.
    pub(crate) fn same(self, other: Value) -> bool {
        match (self, other) {
            (Value::Float(one), Value::Float(other)) => one == other || (one.is_nan() && other.is_nan()),
            (Value::Integer(one), Value::Integer(other)) => one == other,
            _ => false,
        }
    }
}

/// An op with two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binary {
    Add,
    Sub,
    Mul,
    Div,
}

impl Binary {
    /// Computes in `result`, a 16-bit one in `f32` and integers in `i64`. The operands are
    /// converted already.
    fn of(self, x: Value, y: Value, result: DType) -> Value {
        macro_rules! float {
            ($x:expr, $y:expr) => {
                match self {
                    Binary::Add => $x + $y,
                    Binary::Sub => $x - $y,
                    Binary::Mul => $x * $y,
                    Binary::Div => $x / $y,
                }
            };
        }
        let value = match (x, y) {
            (Value::Integer(x), Value::Integer(y)) => Value::Integer(match self {
                Binary::Add => x.wrapping_add(y),
                Binary::Sub => x.wrapping_sub(y),
                Binary::Mul => x.wrapping_mul(y),
                Binary::Div => panic!("a quotient is a floating-point number"),
            }),
            _ if result == DType::F64 => Value::Float(float!(x.float(), y.float())),
            _ => Value::Float(f64::from(float!(x.single(), y.single()))),
        };
        value.to(result)
    }
}

/// A tensor: a part of a vector that views share.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    memory: Rc<RefCell<Vec<Value>>>,
    start: usize,
    pub(crate) transposed: bool,
}

/// Returns the rank of the kind of a type: truth values, integers, floating-point numbers.
pub(crate) fn kind(dtype: DType) -> u8 {
    match dtype {
        DType::Bool => 0,
        _ if dtype.is_floating_point() => 2,
        _ => 1,
    }
}

/// Returns the shape to which both are broadcast.
pub(crate) fn broadcast(x: &[usize], y: &[usize]) -> Option<Vec<usize>> {
    let dims = x.len().max(y.len());
    let padded = |shape: &[usize]| [vec![1; dims - shape.len()], shape.to_vec()].concat();
    let both = padded(x).into_iter().zip(padded(y));
    both.map(|sizes| match sizes {
        (a, b) if a == b => Some(a),
        (1, other) | (other, 1) => Some(other),
        _ => None,
    })
    .collect()
}

impl Model {
    pub(crate) fn new(dtype: DType, shape: Vec<usize>, values: Vec<Value>) -> Self {
        assert_eq!(values.len(), shape.iter().product::<usize>());
        Model { dtype, shape, memory: Rc::new(RefCell::new(values)), start: 0, transposed: false }
    }

    pub(crate) fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the place in memory of the element at `index` in row-major order.
    fn place(&self, index: usize) -> usize {
        match (self.transposed, &self.shape[..]) {
            (true, &[rows, cols]) => self.start + index % cols * rows + index / cols,
            _ => self.start + index,
        }
    }

    /// Returns the elements in row-major order.
    pub(crate) fn values(&self) -> Vec<Value> {
        let memory = self.memory.borrow();
        (0..self.len()).map(|index| memory[self.place(index)]).collect()
    }

    pub(crate) fn write(&self, values: &[Value]) {
        let mut memory = self.memory.borrow_mut();
        for (index, value) in values.iter().enumerate() {
            memory[self.place(index)] = *value;
        }
    }

    /// Returns true if both have bytes in common.
    pub(crate) fn overlaps(&self, other: &Model) -> bool {
        let ends = (self.start + self.len(), other.start + other.len());
        Rc::ptr_eq(&self.memory, &other.memory) && self.start < ends.1 && other.start < ends.0
    }

    pub(crate) fn is_same(&self, other: &Model) -> bool {
        self.overlaps(other) && self.start == other.start && self.len() == other.len()
    }

    /// Returns the elements repeated to `shape`, which they fit.
    pub(crate) fn expanded(&self, shape: &[usize]) -> Vec<Value> {
        let (values, missing) = (self.values(), shape.len() - self.shape.len());
        let at = |index: usize| {
            let (mut rest, mut stride, mut place) = (index, 1, 0);
            for dim in (missing..shape.len()).rev() {
                let size = self.shape[dim - missing];
                place += if size == 1 { 0 } else { rest % shape[dim] * stride };
                (rest, stride) = (rest / shape[dim], stride * size);
            }
            values[place]
        };
        (0..shape.iter().product()).map(at).collect()
    }

    pub(crate) fn converted(&self, dtype: DType) -> Self {
        let values = self.values().into_iter().map(|value| value.to(dtype)).collect();
        Model::new(dtype, self.shape.clone(), values)
    }

    pub(crate) fn t(&self) -> Self {
        let shape = self.shape.iter().rev().copied().collect();
        Model { shape, transposed: self.transposed != (self.shape.len() == 2), ..self.clone() }
    }

    pub(crate) fn reshape(&self, shape: Vec<usize>) -> Self {
        Model { shape, ..self.clone() }
    }

    pub(crate) fn narrow(&self, start: usize, len: usize) -> Self {
        let width: usize = self.shape[1..].iter().product();
        let shape = [&[len], &self.shape[1..]].concat();
        Model { shape, start: self.start + start * width, ..self.clone() }
    }

    /// Returns the type of the result of `op`.
    pub(crate) fn result_type(&self, op: Binary, other: &Model) -> DType {
        let (x, y) = (self.dtype, other.dtype);
        let promoted = match (self.shape.is_empty(), other.shape.is_empty()) {
            (false, true) if kind(x) >= kind(y) => x,
            (true, false) if kind(y) >= kind(x) => y,
            _ => x.promote(y),
        };
        if op == Binary::Div && !promoted.is_floating_point() { DType::F32 } else { promoted }
    }

    /// Returns x ∘ y in the type `result`, of operands that fit.
    pub(crate) fn binary(&self, op: Binary, other: &Model, result: DType) -> Model {
        let shape = broadcast(&self.shape, &other.shape).expect("operands that fit");
        let operands = self.expanded(&shape).into_iter().zip(other.expanded(&shape));
        let values = operands.map(|(x, y)| op.of(x.to(result), y.to(result), result)).collect();
        Model::new(result, shape, values)
    }

    /// Returns x ∘ a in the type `result`. The number is not rounded to a 16-bit type.
    pub(crate) fn with_number(&self, op: Binary, a: Value, result: DType) -> Model {
        let a = if result.is_floating_point() { a.to(DType::F64) } else { a.to(result) };
        let values = self.values().into_iter().map(|x| op.of(x.to(result), a, result)).collect();
        Model::new(result, self.shape.clone(), values)
    }

    /// Returns the product of two matrices in `f64`, and the sum of the sizes of its terms.
    pub(crate) fn matmul(&self, other: &Model) -> Vec<(f64, f64)> {
        let (rows, inner, cols) = (self.shape[0], self.shape[1], other.shape[1]);
        let (x, y) = (self.values(), other.values());
        let element = |index: usize| {
            let (row, col) = (index / cols, index % cols);
            let terms = (0..inner).map(|k| x[row * inner + k].float() * y[k * cols + col].float());
            terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()))
        };
        (0..rows * cols).map(element).collect()
    }

    /// Returns the sum of all elements, and of their sizes.
    pub(crate) fn sum(&self) -> (f64, f64) {
        let values = self.values().into_iter().map(Value::float);
        values.fold((0.0, 0.0), |(sum, size), value| (sum + value, size + value.abs()))
    }
}
