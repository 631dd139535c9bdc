//! The model of each op for `random_calls`: fitting operands, the rule of its shapes, its values.

use crate::host_model::broadcast;
use warpline::Result;
use warpline::prelude::*;

/// The kind of an error, and parts of its text.
pub(crate) type Reason = (ErrorKind, Vec<String>);

pub(crate) const OPS: &[&str] = &[
    "add",
    "exp",
    "log",
    "sqrt",
    "tanh",
    "sigmoid",
    "gelu",
    "relu",
    "softmax",
    "layer_norm",
    "max",
    "max_dim",
    "argmax",
    "sum",
    "mean",
    "sum_rows",
    "index_select",
    "matmul",
    "linear",
    "conv2d",
    "cat",
    "stack",
    "relu_backward",
    "count_equal",
    "cross_entropy",
    "sgd_",
];

/// The operands that may be transposed views.
pub(crate) const TAKES_VIEWS: &[(&str, usize)] = &[("matmul", 0), ("matmul", 1), ("linear", 1)];

#[derive(Clone, Debug)]
pub(crate) struct Operand {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    pub(crate) device: usize,
    pub(crate) transposed: bool,
}

impl Operand {
    fn new(dtype: DType, shape: &[usize]) -> Self {
        Operand { dtype, shape: shape.to_vec(), device: 0, transposed: false }
    }

    /// Returns the elements. They are exact in the operand's type.
    pub(crate) fn values(&self) -> Vec<f64> {
        let count = match self.shape.contains(&0) {
            true => 0,
            false => self.shape.iter().product(),
        };
        let value = |at: usize| ((at * 7 + 3) % 11) as f64;
        let converted = |value: f64| match self.dtype {
            DType::Bool => f64::from(value > 4.0),
            dtype if dtype.is_floating_point() => value / 4.0 - 1.0,
            _ => (value / 3.0).floor(),
        };
        (0..count).map(|at| converted(value(at))).collect()
    }
}

/// A call of an op, with operands that follow from these sizes.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) op: &'static str,
    pub(crate) shape: Vec<usize>,
    pub(crate) sizes: [usize; 5],
    pub(crate) dim: usize,
    pub(crate) stride: [usize; 2],
    pub(crate) padding: [usize; 2],
}

impl Call {
    /// Returns the type that the op takes as its operand `at`, or `None` for any.
    pub(crate) fn dtype(&self, at: usize) -> Option<DType> {
        match (self.op, at) {
            ("add" | "cat" | "stack", _) => None,
            ("index_select" | "cross_entropy", 1) | ("count_equal", _) => Some(DType::I64),
            _ => Some(DType::F32),
        }
    }

    /// Returns operands that fit, if the sizes do.
    pub(crate) fn operands(&self) -> Vec<Operand> {
        let [a, b, c, d, e] = self.sizes;
        let last = self.shape.last().copied().unwrap_or(1);
        let shapes: Vec<Vec<usize>> = match self.op {
            "layer_norm" => vec![self.shape.clone(), vec![last], vec![last]],
            "add" => vec![self.shape.clone(), self.shape[self.dim.min(self.shape.len())..].to_vec()],
            "sum_rows" => vec![vec![a, b]],
            "index_select" => vec![self.shape.clone(), vec![a]],
            "matmul" => vec![vec![a, b], vec![b, c]],
            "linear" => vec![vec![a, b], vec![c, b], vec![c]],
            "conv2d" => vec![vec![a, b, c, d], vec![e, b, 2, 1 + a % 3], vec![e]],
            "cat" => {
                let mut other = self.shape.clone();
                other.iter_mut().skip(self.dim).take(1).for_each(|size| *size = a);
                vec![self.shape.clone(), other]
            }
            "stack" | "relu_backward" | "count_equal" => vec![self.shape.clone(), self.shape.clone()],
            "cross_entropy" => vec![vec![a, b], vec![a]],
            "sgd_" => vec![self.shape.clone(); 3],
            _ => vec![self.shape.clone()],
        };
        let operand =
            |(at, shape): (usize, &Vec<usize>)| Operand::new(self.dtype(at).unwrap_or(DType::F32), shape);
        shapes.iter().enumerate().map(operand).collect()
    }

    /// Returns the shape of the first result, or why the shapes do not fit.
    pub(crate) fn shapes(&self, operands: &[Operand]) -> Result<Vec<usize>, Reason> {
        let all: Vec<&[usize]> = operands.iter().map(|operand| &operand.shape[..]).collect();
        let (x, dim) = (all[0], self.dim);
        let refused = |shapes: &[&[usize]]| {
            Err((ErrorKind::Shape, shapes.iter().map(|shape| format!("{shape:?}")).collect()))
        };
        let without = || [&x[..dim.min(x.len())], x.get(dim + 1..).unwrap_or_default()].concat();
        let is_dim = dim < x.len().max(1);
        match self.op {
            "add" => broadcast(x, all[1]).map_or_else(|| refused(&all), Ok),
            "softmax" if !is_dim => refused(&[x]),
            "max" if x.contains(&0) => refused(&[x]),
            "max_dim" if !is_dim || x.get(dim) == Some(&0) => refused(&[x]),
            "argmax" if x.last() == Some(&0) => refused(&[x]),
            "max" | "sum" | "mean" | "count_equal" if all[1..].iter().all(|y| *y == x) => Ok(vec![]),
            "max_dim" => Ok(without()),
            "argmax" => Ok(x.split_last().map_or(vec![], |(_, outer)| outer.to_vec())),
            "sum_rows" if x.len() != 2 => refused(&[x]),
            "sum_rows" => Ok(vec![x[1]]),
            "layer_norm" if x.is_empty() => refused(&[x]),
            "layer_norm" if all[1] != &x[x.len() - 1..] || all[2] != &x[x.len() - 1..] => refused(&all),
            "index_select" if !is_dim => refused(&[x]),
            "index_select" if all[1].len() > 1 || (x.is_empty() && all[1] != [1] && !all[1].is_empty()) => {
                refused(&all)
            }
            "index_select" if x.is_empty() => Ok(vec![]),
            "index_select" => {
                let count = all[1].first().copied().unwrap_or(1);
                Ok([&x[..dim], &[count], &x[dim + 1..]].concat())
            }
            "matmul" | "linear" if all[..2].iter().any(|y| y.len() != 2) => {
                let other = all.iter().find(|y| y.len() != 2).expect("one of them");
                refused(&[other])
            }
            "matmul" if x[1] != all[1][0] => refused(&all),
            "matmul" => Ok(vec![x[0], all[1][1]]),
            "linear" if x[1] != all[1][1] || all[2] != &all[1][..1] => refused(&all),
            "linear" => Ok(vec![x[0], all[1][0]]),
            "conv2d" => self.convolved(&all),
            "cat" if x.is_empty() => refused(&[x]),
            "cat" if !is_dim => refused(&[x]),
            "cat" => {
                let y = all[1];
                if y.len() != x.len() || (0..x.len()).any(|at| at != dim && x[at] != y[at]) {
                    return refused(&all);
                }
                let mut shape = x.to_vec();
                shape[dim] = shape[dim].saturating_add(y[dim]);
                Ok(shape)
            }
            "stack" if x != all[1] => refused(&all),
            "stack" if dim > x.len() => refused(&[x]),
            "stack" => Ok([&x[..dim], &[2], &x[dim..]].concat()),
            "cross_entropy" if x.len() != 2 => refused(&[x]),
            "cross_entropy" if all[1] != &x[..1] => refused(&all),
            "cross_entropy" => Ok(vec![]),
            "relu_backward" | "count_equal" | "sgd_" => match all.iter().find(|y| **y != x) {
                Some(y) => refused(&[x, y]),
                None => Ok(x.to_vec()),
            },
            _ => Ok(x.to_vec()),
        }
    }

    fn convolved(&self, all: &[&[usize]]) -> Result<Vec<usize>, Reason> {
        let (x, weight, bias) = (all[0], all[1], all[2]);
        let refused = |parts: Vec<String>| Err((ErrorKind::Shape, parts));
        let text = |shape: &[usize]| format!("{shape:?}");
        if !(3..=4).contains(&x.len()) {
            return refused(vec![text(x)]);
        }
        if weight.len() != 4 {
            return refused(vec![text(weight)]);
        }
        let image = &x[x.len() - 3..];
        if weight[1] != image[0] {
            return refused(vec![text(x), text(weight)]);
        }
        let mut out = [0; 2];
        for axis in 0..2 {
            if self.stride[axis] == 0 || weight[2 + axis] == 0 {
                return refused(vec![format!("{:?}", self.stride), text(weight)]);
            }
            let Some(padded) = image[1 + axis].checked_add(2 * self.padding[axis]) else {
                return refused(vec![format!("{:?}", self.padding)]);
            };
            let Some(room) = padded.checked_sub(weight[2 + axis]) else {
                return refused(vec![text(weight), padded.to_string()]);
            };
            out[axis] = room / self.stride[axis] + 1;
        }
        if bias != &weight[..1] {
            return refused(vec![text(weight), text(bias)]);
        }
        Ok([&x[..x.len() - 3], &weight[..1], &out].concat())
    }

    /// Calls the op. Returns the line of the call.
    pub(crate) fn run(&self, operands: &[Tensor]) -> (u32, Result<Vec<Tensor>>) {
        macro_rules! one {
            ($call:expr) => {
                (line!(), $call.queued().map(|x| vec![x]))
            };
        }
        macro_rules! two {
            ($call:expr) => {
                (line!(), $call.queued().map(|(x, y)| vec![x, y]))
            };
        }
        let (x, dim) = (&operands[0], self.dim);
        let y = operands.get(1).unwrap_or(x);
        let z = operands.get(2).unwrap_or(x);
        match self.op {
            "add" => one!(x.add(y)),
            "exp" => one!(x.exp()),
            "log" => one!(x.log()),
            "sqrt" => one!(x.sqrt()),
            "tanh" => one!(x.tanh()),
            "sigmoid" => one!(x.sigmoid()),
            "gelu" => one!(x.gelu()),
            "relu" => one!(x.relu()),
            "softmax" => one!(x.softmax(dim)),
            "layer_norm" => one!(x.layer_norm(y, z, 1e-5)),
            "max" => one!(x.max()),
            "max_dim" => two!(x.max_dim(dim)),
            "argmax" => one!(x.argmax()),
            "sum" => one!(x.sum()),
            "mean" => one!(x.mean()),
            "sum_rows" => one!(x.sum_rows()),
            "index_select" => one!(x.index_select(dim, y)),
            "matmul" => one!(x.matmul(y)),
            "linear" => one!(x.linear(y, z)),
            "conv2d" => one!(x.conv2d(y, Some(z), self.stride, self.padding)),
            "cat" => one!(Tensor::cat([x, y], dim)),
            "stack" => one!(Tensor::stack([x, y], dim)),
            "relu_backward" => one!(x.relu_backward(y)),
            "count_equal" => one!(x.count_equal(y)),
            "cross_entropy" => two!(x.cross_entropy(y)),
            "sgd_" => one!(x.sgd_(y, z, 0.5, 0.25)),
            other => panic!("there is no {other}"),
        }
    }
}

/// Returns the elements of the first result, of a call without a reason against it.
///
/// Returns `None` for add, gelu and the products: `result` would repeat them, and `pytorch` and
/// `random_ops` compare them.
pub(crate) fn result(call: &Call, operands: &[Operand]) -> Option<Vec<f64>> {
    let x = operands[0].values();
    let y = operands.get(1).map(Operand::values).unwrap_or_default();
    let z = operands.get(2).map(Operand::values).unwrap_or_default();
    let shape = &operands[0].shape;
    let each = |f: fn(f64) -> f64| Some(x.iter().map(|&x| f(x)).collect());
    let pairs = || x.iter().copied().zip(y.iter().copied());
    let n = shape.get(call.dim).copied().unwrap_or(1);
    let inner = |skip: usize| match x.is_empty() {
        true => 0,
        false => shape.iter().skip(skip).product::<usize>(),
    };
    let largest = |values: &[f64]| values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    match call.op {
        "exp" => each(f64::exp),
        "log" => each(f64::ln),
        "sqrt" => each(f64::sqrt),
        "tanh" => each(f64::tanh),
        "sigmoid" => each(|x| 1.0 / (1.0 + (-x).exp())),
        "relu" => each(|x| x.max(0.0)),
        "relu_backward" => Some(pairs().map(|(x, y)| if y > 0.0 { x } else { 0.0 }).collect()),
        "sgd_" => {
            let step = |((x, y), z): ((f64, f64), &f64)| x - 0.5 * (0.25 * z + y);
            Some(pairs().zip(&z).map(step).collect())
        }
        "count_equal" => Some(vec![pairs().filter(|(x, y)| x == y).count() as f64]),
        "sum" => Some(vec![x.iter().sum()]),
        "mean" => Some(vec![x.iter().sum::<f64>() / x.len() as f64]),
        "max" => Some(vec![largest(&x)]),
        "softmax" | "max_dim" => {
            let inner = inner(call.dim + 1).max(1);
            let line = |at: usize| -> Vec<f64> {
                let first = at / (n * inner).max(1) * n * inner + at % inner;
                (0..n).map(|k| x[first + k * inner]).collect()
            };
            let of_line = |at: usize| match call.op {
                "softmax" => x[at].exp() / line(at).iter().map(|x| x.exp()).sum::<f64>(),
                _ => largest(&line(at)),
            };
            let is_first = |at: &usize| call.op == "softmax" || (at / inner).is_multiple_of(n);
            Some((0..x.len()).filter(is_first).map(of_line).collect())
        }
        "index_select" => {
            let (inner, outer) = (inner(call.dim + 1), x.len() / (n * inner(call.dim + 1)).max(1));
            let chosen = |row: usize, index: f64, k: usize| {
                let at = (0.0..n as f64).contains(&index).then(|| (row * n + index as usize) * inner + k);
                at.map_or(f64::NAN, |at| x[at])
            };
            let y = &y;
            let of_row =
                |row| y.iter().flat_map(move |&index| (0..inner).map(move |k| chosen(row, index, k)));
            // Without elements, indices are outside, and the slices may still have elements.
            (!x.is_empty()).then(|| (0..outer).flat_map(of_row).collect())
        }
        "cat" | "stack" => {
            let stacked = call.op == "stack";
            let rows: usize = match x.is_empty() && y.is_empty() {
                true => return Some(Vec::new()),
                false => shape[..call.dim].iter().product(),
            };
            debug_assert!(!stacked || x.len() == y.len());
            let part = |values: &[f64], row: usize| {
                let width = values.len() / rows;
                values[row * width..(row + 1) * width].to_vec()
            };
            Some((0..rows).flat_map(|row| [part(&x, row), part(&y, row)].concat()).collect())
        }
        "sum_rows" => {
            let cols = shape[1];
            Some((0..cols).map(|col| x.iter().skip(col).step_by(cols).sum()).collect())
        }
        "layer_norm" if !x.is_empty() => {
            let cols = *shape.last()?;
            let normalized = |row: &[f64]| -> Vec<f64> {
                let mean = row.iter().sum::<f64>() / cols as f64;
                let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / cols as f64;
                let scaled = |(at, x): (usize, &f64)| (x - mean) / (variance + 1e-5).sqrt() * y[at] + z[at];
                row.iter().enumerate().map(scaled).collect()
            };
            Some(x.chunks(cols).flat_map(normalized).collect())
        }
        "conv2d" => Some(convolution(call, operands)),
        _ => None,
    }
}

/// Returns the sum over all products under the weight, by coordinates.
fn convolution(call: &Call, operands: &[Operand]) -> Vec<f64> {
    let (x, weight, bias) = (operands[0].values(), operands[1].values(), operands[2].values());
    let shape = call.shapes(operands).expect("they fit");
    if shape.contains(&0) {
        return Vec::new();
    }
    let [channels, height, width] = operands[0].shape[operands[0].shape.len() - 3..] else { unreachable!() };
    let [outs, _, rows, cols] = operands[1].shape[..] else { unreachable!() };
    let [out_rows, out_cols] = shape[shape.len() - 2..] else { unreachable!() };
    let element = |at: usize| {
        let (col, row) = (at % out_cols, at / out_cols % out_rows);
        let (out, image) = (at / (out_cols * out_rows) % outs, at / (out_cols * out_rows * outs));
        let mut sum = bias[out];
        for (c, i, j) in (0..channels).flat_map(|c| (0..rows * cols).map(move |k| (c, k / cols, k % cols))) {
            let row = (row * call.stride[0] + i).checked_sub(call.padding[0]).filter(|&row| row < height);
            let col = (col * call.stride[1] + j).checked_sub(call.padding[1]).filter(|&col| col < width);
            if let (Some(row), Some(col)) = (row, col) {
                sum += x[((image * channels + c) * height + row) * width + col]
                    * weight[((out * channels + c) * rows + i) * cols + j];
            }
        }
        sum
    };
    (0..shape.iter().product()).map(element).collect()
}
