//! Inference requests and responses of the KServe v2 protocol, with the extension for binary
//! tensors.
//!
//! Nothing here waits, or knows of a device. A request that was decoded is valid: its images have
//! 64 grey values each, from 0 to 16.
//!
//! A body is JSON. If the header `Inference-Header-Content-Length` is present, the JSON has that
//! length, and the data of the tensors that name a `binary_data_size` follow it, little-endian and
//! in the order of the JSON.

mod decode;
mod encode;
mod numbers;
mod parameters;

pub(crate) use decode::{check_load, decode};
pub(crate) use encode::{Row, encode};

use crate::network::{DIGITS, PIXELS};
use crate::refused::Refused;
use axum::body::Bytes;
use std::fmt::Display;
use std::time::Duration;

/// The name of the model.
pub(crate) const MODEL: &str = "digits";
/// The name of the input.
pub(crate) const INPUT: &str = "pixels";
/// The header with the length of the JSON, if tensors follow it.
pub(crate) const JSON_LENGTH: &str = "inference-header-content-length";
/// The largest grey value. The network was trained with values divided by it.
const LARGEST: f32 = 16.0;

/// An inference request.
#[derive(Debug, PartialEq)]
pub(crate) struct Request {
    pub(crate) id: Option<String>,
    pub(crate) pixels: Pixels,
    /// The outputs that were asked for, in the order of the request.
    pub(crate) outputs: Vec<Wanted>,
    /// The parameter `timeout`.
    pub(crate) timeout: Option<Duration>,
}

/// The grey values of one or more images.
#[derive(Debug, PartialEq)]
pub(crate) enum Pixels {
    Json(Vec<f32>),
    Binary(Bytes),
}

/// An output of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    Logits,
    Digit,
}

/// An output, and the form in which the client wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) output: Output,
    pub(crate) is_binary: bool,
}

impl Pixels {
    /// Returns the number of images.
    pub(crate) fn rows(&self) -> usize {
        match self {
            Pixels::Json(values) => values.len() / PIXELS,
            Pixels::Binary(bytes) => bytes.len() / (4 * PIXELS),
        }
    }

    /// Writes an image as the network takes it: grey values divided by 16, as in its training.
    pub(crate) fn write(&self, image: usize, row: &mut [f32]) {
        match self {
            Pixels::Json(values) => scale(values[image * PIXELS..].iter().copied(), row),
            Pixels::Binary(bytes) => scale(f32s(&bytes[4 * image * PIXELS..]), row),
        }
    }
}

fn scale(values: impl Iterator<Item = f32>, row: &mut [f32]) {
    for (to, value) in row.iter_mut().zip(values) {
        *to = value / LARGEST;
    }
}

/// Returns the numbers that little-endian bytes hold.
fn f32s(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]))
}

fn is_grey(value: f32) -> bool {
    (0.0..=LARGEST).contains(&value)
}

/// Refuses a number that is not a grey value, or not finite.
fn not_grey(at: usize, value: impl Display) -> Refused {
    let (pixel, row) = (at % PIXELS, at / PIXELS);
    Refused::bad(format!(
        "pixel {pixel} of row {row} is {value}, and grey values are from 0 to {LARGEST}; scale the image"
    ))
}

/// Returns the first characters of what a client sent, for an error.
fn start_of(text: &str) -> &str {
    text.char_indices().nth(40).map_or(text, |(end, _)| &text[..end])
}

impl Output {
    pub(crate) const ALL: [Output; 2] = [Output::Logits, Output::Digit];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Output::Logits => "logits",
            Output::Digit => "digit",
        }
    }

    pub(crate) fn datatype(self) -> &'static str {
        match self {
            Output::Logits => "FP32",
            Output::Digit => "INT64",
        }
    }

    /// Returns the shape of the output of one image.
    pub(crate) fn row_shape(self) -> &'static [usize] {
        match self {
            Output::Logits => &[DIGITS],
            Output::Digit => &[],
        }
    }
}
