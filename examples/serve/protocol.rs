//! Inference requests and responses of the KServe v2 protocol, with the extension for binary
//! tensors.
//!
//! Nothing here waits, or knows of a device. A request that was decoded is valid: its images have
//! 64 grey values each, from 0 to 16.
//!
//! A body is JSON. If the header `Inference-Header-Content-Length` is present, the JSON has that
//! length, and the data of the tensors that name a `binary_data_size` follow it, little-endian and
//! in the order of the JSON.

use crate::network::{DIGITS, PIXELS, f32s};
use crate::refused::Refused;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode, header};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::time::Duration;

/// The name of the model.
pub(crate) const MODEL: &str = "digits";
/// The name of the input.
pub(crate) const INPUT: &str = "pixels";
/// The header with the length of the JSON, if tensors follow it.
pub(crate) const JSON_LENGTH: &str = "inference-header-content-length";
/// The largest grey value. The network was trained with values divided by it.
const WHITE: f32 = 16.0;

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

/// The outputs of an image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row<'a> {
    pub(crate) logits: &'a [f32],
    pub(crate) digit: i64,
    /// The number of rows of its batch.
    pub(crate) batch_rows: usize,
}

/// The body of a response.
#[derive(Debug)]
pub(crate) struct Encoded {
    pub(crate) body: Vec<u8>,
    /// The length of the JSON, if tensors follow it.
    pub(crate) json_len: Option<usize>,
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

    fn check(&self) -> Result<(), Refused> {
        match self {
            Pixels::Json(values) => check(values.iter().copied()),
            Pixels::Binary(bytes) => check(f32s(bytes)),
        }
    }
}

fn scale(values: impl Iterator<Item = f32>, row: &mut [f32]) {
    for (to, value) in row.iter_mut().zip(values) {
        *to = value / WHITE;
    }
}

/// Checks that each value is a grey value.
fn check(mut values: impl Iterator<Item = f32>) -> Result<(), Refused> {
    let is_wrong = |value: &f32| !(0.0..=WHITE).contains(value);
    let mut wrong = 0.0;
    let at = values.position(|value| {
        wrong = value;
        is_wrong(&value)
    });
    match at {
        None => Ok(()),
        Some(at) => Err(Refused::bad(format!(
            "pixel {} of row {} is {wrong}, and grey values are from 0 to {WHITE}; scale the image",
            at % PIXELS,
            at / PIXELS
        ))),
    }
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

type Parameters = Map<String, Value>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestJson {
    id: Option<String>,
    #[serde(default)]
    parameters: Parameters,
    inputs: Vec<InputJson>,
    #[serde(default)]
    outputs: Vec<OutputJson>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InputJson {
    name: String,
    shape: Vec<i64>,
    datatype: String,
    #[serde(default)]
    parameters: Parameters,
    data: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OutputJson {
    name: String,
    #[serde(default)]
    parameters: Parameters,
}

/// Decodes an inference request of at most `max_rows` images.
///
/// # Errors
/// With status 415 for a compressed body; otherwise with 400, and the mistake.
pub(crate) fn decode(headers: &HeaderMap, body: Bytes, max_rows: usize) -> Result<Request, Refused> {
    refuse_compression(headers)?;
    let (json, binary) = split(headers, body)?;
    let request: RequestJson = serde_json::from_slice(&json)
        .map_err(|error| Refused::bad(format!("the JSON is not an inference request: {error}")))?;
    let (timeout, is_binary) = of_request(&request.parameters)?;
    Ok(Request {
        id: request.id.filter(|id| !id.is_empty()),
        outputs: outputs(request.outputs, is_binary)?,
        pixels: pixels(request.inputs, binary, max_rows)?,
        timeout,
    })
}

pub(crate) fn refuse_compression(headers: &HeaderMap) -> Result<(), Refused> {
    match headers.get(header::CONTENT_ENCODING) {
        Some(encoding) if encoding != "identity" => Err(Refused::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            format!(
                "Content-Encoding is {encoding:?}, and compressed requests are not supported; send the body \
                 uncompressed"
            ),
        )),
        _ => Ok(()),
    }
}

/// Splits a body into its JSON and, if the header says that there is, binary data.
fn split(headers: &HeaderMap, mut body: Bytes) -> Result<(Bytes, Option<Bytes>), Refused> {
    let Some(value) = headers.get(JSON_LENGTH) else { return Ok((body, None)) };
    let len = value.to_str().ok().and_then(|text| text.parse::<usize>().ok());
    match len {
        Some(0) => Err(Refused::bad(
            "Inference-Header-Content-Length is 0, and raw binary requests are not supported; send the JSON of \
             the request before its tensors",
        )),
        Some(len) if len <= body.len() => Ok((body.split_to(len), Some(body))),
        _ => Err(Refused::bad(format!(
            "Inference-Header-Content-Length is {value:?}, and the body has {} bytes; expected the number of \
             bytes of the JSON",
            body.len()
        ))),
    }
}

/// Returns the time limit and the form of outputs that a request's parameters set.
fn of_request(parameters: &Parameters) -> Result<(Option<Duration>, bool), Refused> {
    let (mut timeout, mut is_binary) = (None, false);
    for (name, value) in parameters {
        match name.as_str() {
            "timeout" => {
                let micros = value.as_u64().ok_or_else(|| wrong_value(name, value, "whole microseconds"))?;
                // 0 is the default of the server, as for Triton.
                timeout = (micros > 0).then(|| Duration::from_micros(micros));
            }
            "binary_data_output" => is_binary = boolean(name, value)?,
            "sequence_id" if *value != 0 && *value != "" => {
                return Err(unsupported("sequence_id", "the model has no state; leave it out"));
            }
            "priority" if *value != 0 => {
                return Err(unsupported("priority", "requests are answered in their order; leave it out"));
            }
            "sequence_id" | "priority" | "sequence_start" | "sequence_end" => {}
            _ => return Err(unknown(name, "the request", "timeout, binary_data_output")),
        }
    }
    Ok((timeout, is_binary))
}

fn outputs(wanted: Vec<OutputJson>, is_binary: bool) -> Result<Vec<Wanted>, Refused> {
    if wanted.is_empty() {
        return Ok(Output::ALL.map(|output| Wanted { output, is_binary }).to_vec());
    }
    let mut outputs: Vec<Wanted> = Vec::new();
    for OutputJson { name, parameters } in wanted {
        let output = Output::ALL.into_iter().find(|output| output.name() == name);
        let output = output.ok_or_else(|| {
            let known = Output::ALL.map(Output::name).join(", ");
            Refused::bad(format!("the model has no output \"{name}\"; it has {known}"))
        })?;
        if outputs.iter().any(|other| other.output == output) {
            return Err(Refused::bad(format!("output \"{name}\" is named twice; name it once")));
        }
        let mut is_binary = is_binary;
        for (parameter, value) in &parameters {
            match parameter.as_str() {
                "binary_data" => is_binary = boolean(parameter, value)?,
                "classification" if *value == 0 => {}
                "classification" => {
                    return Err(unsupported("classification", "ask for \"digit\" or sort the logits"));
                }
                _ if is_shared_memory(parameter) => return Err(no_shared_memory(parameter)),
                _ => return Err(unknown(parameter, &format!("output \"{name}\""), "binary_data")),
            }
        }
        outputs.push(Wanted { output, is_binary });
    }
    Ok(outputs)
}

/// Returns the images of a request.
fn pixels(inputs: Vec<InputJson>, binary: Option<Bytes>, max_rows: usize) -> Result<Pixels, Refused> {
    if let Some(other) = inputs.iter().find(|input| input.name != INPUT) {
        return Err(Refused::bad(format!("the model has no input \"{}\"; it has {INPUT}", other.name)));
    }
    let [input] = &inputs[..] else {
        return Err(Refused::bad(format!(
            "the request has {} inputs \"{INPUT}\", and 1 is expected; send all images as its rows",
            inputs.len()
        )));
    };
    if input.datatype != "FP32" {
        return Err(Refused::bad(format!(
            "input \"{INPUT}\" is of type \"{}\", and FP32 is expected; convert it",
            input.datatype
        )));
    }
    let rows = rows(&input.shape, max_rows)?;
    let pixels = match (binary_size(&input.parameters)?, &input.data) {
        (Some(size), None) => Pixels::Binary(tensor(size, binary, rows)?),
        (Some(_), Some(_)) => {
            return Err(Refused::bad(
                "input \"pixels\" has data and a binary_data_size; send it in one form",
            ));
        }
        (None, Some(data)) => {
            if let Some(rest) = binary.filter(|binary| !binary.is_empty()) {
                return Err(Refused::bad(format!(
                    "{} bytes follow the JSON, and no input has a binary_data_size; leave them out",
                    rest.len()
                )));
            }
            Pixels::Json(numbers(data, rows)?)
        }
        (None, None) => {
            return Err(Refused::bad(
                "input \"pixels\" has no data; send it in JSON or with a binary_data_size",
            ));
        }
    };
    pixels.check()?;
    Ok(pixels)
}

/// Returns the number of rows of a shape.
fn rows(shape: &[i64], max_rows: usize) -> Result<usize, Refused> {
    let rows = match shape {
        [rows, pixels] if *pixels == PIXELS as i64 && *rows > 0 => usize::try_from(*rows).ok(),
        _ => None,
    };
    let rows = rows.ok_or_else(|| {
        Refused::bad(format!(
            "input \"{INPUT}\" has the shape {shape:?}, and [rows, {PIXELS}] with 1 row or more is expected; \
             correct the shape"
        ))
    })?;
    if rows > max_rows {
        return Err(Refused::bad(format!(
            "the request has {rows} rows, and at most {max_rows} are accepted; split it"
        )));
    }
    Ok(rows)
}

fn binary_size(parameters: &Parameters) -> Result<Option<u64>, Refused> {
    let mut size = None;
    for (name, value) in parameters {
        match name.as_str() {
            "binary_data_size" => {
                size = Some(value.as_u64().ok_or_else(|| wrong_value(name, value, "a number of bytes"))?);
            }
            _ if is_shared_memory(name) => return Err(no_shared_memory(name)),
            _ => return Err(unknown(name, "input \"pixels\"", "binary_data_size")),
        }
    }
    Ok(size)
}

/// Returns the binary data of the input, if the three lengths agree.
fn tensor(size: u64, binary: Option<Bytes>, rows: usize) -> Result<Bytes, Refused> {
    let Some(binary) = binary else {
        return Err(Refused::bad(
            "input \"pixels\" has a binary_data_size, and the request no header \
             Inference-Header-Content-Length; set it to the number of bytes of the JSON",
        ));
    };
    let expected = 4 * PIXELS * rows;
    if size != expected as u64 {
        return Err(Refused::bad(format!(
            "binary_data_size of input \"{INPUT}\" is {size}, and [{rows}, {PIXELS}] of FP32 has {expected} \
             bytes; correct the size or the shape"
        )));
    }
    if binary.len() != expected {
        return Err(Refused::bad(format!(
            "{} bytes follow the JSON, and binary_data_size is {expected}; send as many",
            binary.len()
        )));
    }
    Ok(binary)
}

/// Returns the numbers of a JSON array, which is flat or has an array for each row.
fn numbers(data: &Value, rows: usize) -> Result<Vec<f32>, Refused> {
    let Value::Array(all) = data else {
        return Err(Refused::bad(format!("data of input \"{INPUT}\" is no array; expected an array")));
    };
    let is_nested = all.first().is_some_and(Value::is_array);
    let expected = if is_nested { rows } else { rows * PIXELS };
    if all.len() != expected {
        let what = if is_nested { "rows" } else { "numbers" };
        return Err(Refused::bad(format!(
            "data of input \"{INPUT}\" has {} {what}, and the shape [{rows}, {PIXELS}] has {expected}; correct \
             the data or the shape",
            all.len()
        )));
    }
    let mut numbers = Vec::with_capacity(rows * PIXELS);
    if !is_nested {
        push(&mut numbers, all, 0)?;
        return Ok(numbers);
    }
    for (at, row) in all.iter().enumerate() {
        let row = row.as_array().filter(|row| row.len() == PIXELS).ok_or_else(|| {
            let len = row.as_array().map_or("no array".to_owned(), |row| format!("{} numbers", row.len()));
            Refused::bad(format!("row {at} is {len}, and {PIXELS} numbers are expected; correct the row"))
        })?;
        push(&mut numbers, row, at * PIXELS)?;
    }
    Ok(numbers)
}

#[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
fn push(numbers: &mut Vec<f32>, values: &[Value], first: usize) -> Result<(), Refused> {
    for (at, value) in values.iter().enumerate() {
        let number = value.as_f64().ok_or_else(|| {
            let at = first + at;
            let (pixel, row) = (at % PIXELS, at / PIXELS);
            Refused::bad(format!("pixel {pixel} of row {row} is {value}; expected a number"))
        })?;
        numbers.push(number as f32);
    }
    Ok(())
}

fn boolean(name: &str, value: &Value) -> Result<bool, Refused> {
    value.as_bool().ok_or_else(|| wrong_value(name, value, "true or false"))
}

fn is_shared_memory(name: &str) -> bool {
    name.starts_with("shared_memory_")
}

fn no_shared_memory(name: &str) -> Refused {
    unsupported(name, "shared memory is not supported; send the tensor in the body")
}

fn unsupported(name: &str, why: &str) -> Refused {
    Refused::bad(format!("parameter \"{name}\" is not supported: {why}"))
}

fn wrong_value(name: &str, value: &Value, expected: &str) -> Refused {
    Refused::bad(format!("parameter \"{name}\" is {value}; expected {expected}"))
}

fn unknown(name: &str, place: &str, known: &str) -> Refused {
    Refused::bad(format!("parameter \"{name}\" of {place} is unknown; known are {known}"))
}

#[derive(Serialize)]
struct ResponseJson<'a> {
    model_name: &'static str,
    model_version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    parameters: ResponseParameters,
    outputs: Vec<TensorJson>,
}

#[derive(Serialize)]
struct ResponseParameters {
    /// The size of the batch of each row, separated by commas: a parameter is no array.
    batch_rows: String,
}

#[derive(Serialize)]
struct TensorJson {
    name: &'static str,
    datatype: &'static str,
    shape: Vec<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<BinarySize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Data>,
}

#[derive(Serialize)]
struct BinarySize {
    binary_data_size: usize,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Data {
    Logits(Vec<f32>),
    Digit(Vec<i64>),
}

/// Encodes the response to a request, whose rows were computed by this version.
///
/// # Errors
/// With status 500 if JSON is asked for and a logit is infinite or no number, which JSON cannot
/// say.
pub(crate) fn encode(request: &Request, version: u64, rows: &[Row<'_>]) -> Result<Encoded, Refused> {
    let (mut outputs, mut binary) = (Vec::new(), Vec::new());
    for &Wanted { output, is_binary } in &request.outputs {
        let before = binary.len();
        if is_binary {
            push_binary(&mut binary, output, rows);
        }
        let size = BinarySize { binary_data_size: binary.len() - before };
        outputs.push(TensorJson {
            name: output.name(),
            datatype: output.datatype(),
            shape: [&[rows.len()], output.row_shape()].concat(),
            parameters: is_binary.then_some(size),
            data: if is_binary { None } else { Some(data(output, rows)?) },
        });
    }
    let batches: Vec<_> = rows.iter().map(|row| row.batch_rows.to_string()).collect();
    let response = ResponseJson {
        model_name: MODEL,
        model_version: version.to_string(),
        id: request.id.as_deref(),
        parameters: ResponseParameters { batch_rows: batches.join(",") },
        outputs,
    };
    let mut body = serde_json::to_vec(&response)
        .map_err(|error| Refused::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    let json_len = request.outputs.iter().any(|wanted| wanted.is_binary).then_some(body.len());
    body.append(&mut binary);
    Ok(Encoded { body, json_len })
}

fn push_binary(binary: &mut Vec<u8>, output: Output, rows: &[Row<'_>]) {
    for row in rows {
        match output {
            Output::Logits => binary.extend(row.logits.iter().flat_map(|logit| logit.to_le_bytes())),
            Output::Digit => binary.extend(row.digit.to_le_bytes()),
        }
    }
}

fn data(output: Output, rows: &[Row<'_>]) -> Result<Data, Refused> {
    if output == Output::Digit {
        return Ok(Data::Digit(rows.iter().map(|row| row.digit).collect()));
    }
    let logits: Vec<f32> = rows.iter().flat_map(|row| row.logits).copied().collect();
    if let Some(at) = logits.iter().position(|logit| !logit.is_finite()) {
        return Err(Refused::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!(
                "logit {} of row {} is {}, which JSON cannot say; ask for binary data, or load smaller weights",
                at % DIGITS,
                at / DIGITS,
                logits[at]
            ),
        ));
    }
    Ok(Data::Logits(logits))
}
