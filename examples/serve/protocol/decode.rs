//! From the headers and the body of an inference request to its images and options.
//!
//! A name or a parameter that is unknown is refused rather than ignored.

use super::{INPUT, JSON_LENGTH, Output, Pixels, Request, Wanted};
use crate::headers::number;
use crate::network::PIXELS;
use crate::refused::Refused;
use axum::body::Bytes;
use axum::http::HeaderMap;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::time::Duration;

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
/// With status 400, and the mistake.
pub(crate) fn decode(headers: &HeaderMap, body: Bytes, max_rows: usize) -> Result<Request, Refused> {
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

/// Splits a body into its JSON and, if the header says that there is, binary data.
fn split(headers: &HeaderMap, mut body: Bytes) -> Result<(Bytes, Option<Bytes>), Refused> {
    let Some(len) = number(headers, JSON_LENGTH, "the number of bytes of the JSON")? else {
        return Ok((body, None));
    };
    match usize::try_from(len) {
        Ok(0) => Err(Refused::bad(
            "Inference-Header-Content-Length is 0, and raw binary requests are not supported; send the JSON \
             of the request before its tensors",
        )),
        Ok(len) if len <= body.len() => Ok((body.split_to(len), Some(body))),
        _ => Err(Refused::bad(format!(
            "Inference-Header-Content-Length is {len}, and the body has {} bytes; expected the number of \
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
        return Err(Refused::bad(format!("data of input \"{INPUT}\" is not an array; expected an array")));
    };
    let is_nested = all.first().is_some_and(Value::is_array);
    let expected = if is_nested { rows } else { rows * PIXELS };
    if all.len() != expected {
        let what = if is_nested { "rows" } else { "numbers" };
        return Err(Refused::bad(format!(
            "data of input \"{INPUT}\" has {} {what}, and the shape [{rows}, {PIXELS}] has {expected}; \
             correct the data or the shape",
            all.len()
        )));
    }
    let mut numbers = Vec::with_capacity(rows * PIXELS);
    if !is_nested {
        push(&mut numbers, all, 0)?;
        return Ok(numbers);
    }
    for (at, row) in all.iter().enumerate() {
        let Value::Array(row) = row else {
            return Err(Refused::bad(format!("row {at} is not an array; expected {PIXELS} numbers")));
        };
        if row.len() != PIXELS {
            return Err(Refused::bad(format!(
                "row {at} has {} numbers, and {PIXELS} are expected; correct the row",
                row.len()
            )));
        }
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
