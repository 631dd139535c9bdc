//! The text of a tensor, as PyTorch prints it with its default options.
//!
//! One style holds for all numbers of a tensor: fixed-point, scientific, or whole numbers with a
//! point. The shown finite numbers other than 0 decide it. All are padded to the width of the
//! widest of these.

use super::{DType, Shape};
use std::fmt;

/// The number of elements above which only the edges are shown.
pub(super) const SUMMARIZED_ABOVE: usize = 1000;
/// The number of indices shown at each end of a long dimension.
pub(super) const EDGE: usize = 3;
const DECIMALS: usize = 4;
const LINE_WIDTH: usize = 80;
const PREFIX: &str = "tensor(";

/// A tensor as text. See [`TensorOps::display`](super::TensorOps::display).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorDisplay {
    text: String,
}

impl fmt::Display for TensorDisplay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Elements on the host. Each kind holds those of all its types.
pub(super) enum Elements {
    Floats(Vec<f64>),
    Integers(Vec<i64>),
    Truths(Vec<bool>),
}

/// The place of each shown element among the elements on the host.
pub(super) struct Layout {
    /// The sizes of the tensor.
    pub(super) shape: Shape,
    /// The sizes of what is on the host: all indices of a dimension, or its edges.
    pub(super) kept: Shape,
    /// The distances on the host between neighbours along each dimension.
    pub(super) strides: Shape,
}

impl Layout {
    fn is_summarized(&self) -> bool {
        self.shape.iter().product::<usize>() > SUMMARIZED_ABOVE
    }

    /// Returns the shown indices of a dimension, and `None` for the gap between its edges.
    fn shown(&self, dim: usize) -> Vec<Option<usize>> {
        let (size, kept) = (self.shape[dim], self.kept[dim]);
        if self.is_summarized() && size > 2 * EDGE {
            let edges = ((0..EDGE).map(Some), (kept - EDGE..kept).map(Some));
            return edges.0.chain([None]).chain(edges.1).collect();
        }
        (0..size).map(Some).collect()
    }

    /// Returns the places of all shown elements.
    fn all_shown(&self) -> Vec<usize> {
        (0..self.shape.len()).fold(vec![0], |places, dim| {
            let indices: Vec<usize> = self.shown(dim).into_iter().flatten().collect();
            let along = |place| indices.iter().map(move |index| place + index * self.strides[dim]);
            places.into_iter().flat_map(along).collect()
        })
    }
}

/// The style of the numbers of a tensor.
#[derive(Clone, Copy)]
enum Style {
    /// All digits and no more, for integers and truth values.
    Plain,
    /// Floating-point numbers that are all whole.
    Whole,
    Fixed,
    Scientific,
}

/// The elements of a tensor with their style.
struct Numbers {
    elements: Elements,
    style: Style,
    width: usize,
}

impl Numbers {
    fn new(elements: Elements, shown: &[usize]) -> Self {
        let mut numbers = Numbers { elements, style: Style::Plain, width: 1 };
        let mut measured = shown.to_vec();
        if let Elements::Floats(values) = &numbers.elements {
            measured.retain(|&place| values[place] != 0.0 && values[place].is_finite());
            numbers.style = style(measured.iter().map(|&place| values[place]));
        }
        let widths = measured.iter().map(|&place| numbers.unpadded(place).chars().count());
        numbers.width = widths.max().unwrap_or(1);
        numbers
    }

    fn unpadded(&self, place: usize) -> String {
        match &self.elements {
            Elements::Floats(values) => float(values[place], self.style),
            Elements::Integers(values) => values[place].to_string(),
            Elements::Truths(values) => if values[place] { "True" } else { "False" }.to_owned(),
        }
    }

    fn padded(&self, place: usize) -> String {
        format!("{:>width$}", self.unpadded(place), width = self.width)
    }
}

/// Returns the style for these numbers, which are finite and not 0.
fn style(values: impl Iterator<Item = f64> + Clone) -> Style {
    let sizes = values.clone().map(f64::abs);
    let (smallest, largest) = (sizes.clone().fold(f64::INFINITY, f64::min), sizes.fold(0.0, f64::max));
    // Without any number the smallest one is infinite, so the quotient is 0.
    if largest / smallest > 1e3 || largest > 1e8 || smallest < 1e-4 {
        Style::Scientific
    } else if values.map(f64::fract).all(|rest| rest == 0.0) {
        Style::Whole
    } else {
        Style::Fixed
    }
}

fn float(value: f64, style: Style) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    match style {
        Style::Plain => value.to_string(),
        Style::Whole => format!("{value:.0}."),
        Style::Fixed => format!("{value:.DECIMALS$}"),
        Style::Scientific => {
            let text = format!("{value:.DECIMALS$e}");
            let (digits, exponent) = text.split_once('e').expect("this format has an exponent");
            let exponent: i32 = exponent.parse().expect("an integer");
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
        }
    }
}

/// Returns the text of a tensor. `device` is its device, if that is named.
pub(super) fn text(
    elements: Elements,
    layout: &Layout,
    dtype: DType,
    default: DType,
    device: Option<&str>,
) -> TensorDisplay {
    let sizes: &[usize] = &layout.shape;
    let is_empty = sizes.contains(&0);
    let mut body = String::new();
    match is_empty {
        true => body.push_str("[]"),
        false => {
            let numbers = Numbers::new(elements, &layout.all_shown());
            nested(&mut body, &numbers, layout, 0, 0, PREFIX.len());
        }
    }
    let mut parts = Vec::new();
    parts.extend(device.map(|device| format!("device='{device}'")));
    if is_empty && sizes.len() != 1 {
        // A shape without elements has more than one size, so there is no `(0,)`.
        let sizes: Vec<_> = sizes.iter().map(usize::to_string).collect();
        parts.push(format!("size=({})", sizes.join(", ")));
    }
    let is_implied = dtype == default || (!is_empty && matches!(dtype, DType::I64 | DType::Bool));
    parts.extend((!is_implied).then(|| format!("dtype={dtype}")));
    TensorDisplay { text: with_parts(body, &parts) }
}

/// Appends the part of the tensor from `place` on, whose first dimension is `dim`.
fn nested(out: &mut String, numbers: &Numbers, layout: &Layout, dim: usize, place: usize, indent: usize) {
    let dims = layout.shape.len();
    if dim == dims {
        out.push_str(&numbers.padded(place));
        return;
    }
    let is_row = dim + 1 == dims;
    let per_line = match is_row {
        true => (LINE_WIDTH.saturating_sub(indent) / (numbers.width + 2)).max(1),
        false => 1,
    };
    let new_line = "\n".repeat((dims - dim - 1).max(1)) + &" ".repeat(indent + 1);
    out.push('[');
    for (n, index) in layout.shown(dim).into_iter().enumerate() {
        if n > 0 {
            out.push(',');
            out.push_str(if n % per_line == 0 { &new_line } else { " " });
        }
        match index {
            Some(index) => {
                nested(out, numbers, layout, dim + 1, place + index * layout.strides[dim], indent + 1);
            }
            None => out.push_str(if is_row { " ..." } else { "..." }),
        }
    }
    out.push(']');
}

/// Returns the text with its last parts, on new lines where they do not fit.
fn with_parts(body: String, parts: &[String]) -> String {
    let mut text = format!("{PREFIX}{body}");
    // PyTorch counts two characters more than the last line has.
    let mut used = text.len() - text.rfind('\n').map_or(0, |at| at + 1) + 2;
    for part in parts {
        if used + part.len() + 2 > LINE_WIDTH {
            text.push_str(&format!(",\n{}{part}", " ".repeat(PREFIX.len())));
            used = PREFIX.len() + part.len();
        } else {
            text.push_str(&format!(", {part}"));
            used += part.len() + 2;
        }
    }
    text + ")"
}
