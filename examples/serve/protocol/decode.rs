//! From the headers and the body of an inference request to its images and options.
//!
//! A name or a parameter that is unknown is refused rather than ignored.

use super::numbers::numbers;
use super::parameters::{
    Parameters, boolean, is_shared_memory, is_zero, no_shared_memory, unknown, unsupported, whole_number,
};
use super::{INPUT, JSON_LENGTH, MODEL, Output, Pixels, Request, Wanted, f32s, is_grey, not_grey};
use crate::headers::number;
use crate::network::PIXELS;
use crate::refused::Refused;
use axum::body::Bytes;
use axum::http::HeaderMap;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::time::Duration;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestJson<'a> {
    id: Option<String>,
    #[serde(borrow, default)]
    parameters: Parameters<'a>,
    inputs: Vec<InputJson<'a>>,
    #[serde(default)]
    outputs: Vec<OutputJson<'a>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InputJson<'a> {
    name: String,
    shape: Vec<i64>,
    datatype: String,
    #[serde(borrow, default)]
    parameters: Parameters<'a>,
    data: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OutputJson<'a> {
    name: String,
    #[serde(borrow, default)]
    parameters: Parameters<'a>,
}

/// Decodes an inference request of at most `max_rows` images.
///
/// # Errors
/// With status 400, and the mistake.
pub(crate) fn decode(headers: &HeaderMap, body: Bytes, max_rows: usize) -> Result<Request, Refused> {
    let (json, binary) = split(headers, body)?;
    let request: RequestJson<'_> = serde_json::from_slice(&json)
        .map_err(|error| Refused::bad(format!("the JSON is not an inference request: {error}")))?;
    let (timeout, is_binary) = of_request(&request.parameters)?;
    Ok(Request {
        id: request.id.filter(|id| !id.is_empty()),
        outputs: outputs(request.outputs, is_binary)?,
        pixels: pixels(request.inputs, binary, max_rows)?,
        timeout,
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LoadJson<'a> {
    #[serde(borrow)]
    parameters: Option<Parameters<'a>>,
}

/// Checks that a request to load has no configuration and no files.
///
/// # Errors
/// With status 400, and the mistake.
pub(crate) fn check_load(body: &[u8]) -> Result<(), Refused> {
    if body.is_empty() {
        return Ok(());
    }
    let request: LoadJson<'_> = serde_json::from_slice(body)
        .map_err(|error| Refused::bad(format!("the JSON is not a request to load \"{MODEL}\": {error}")))?;
    match request.parameters.unwrap_or_default().iter().next() {
        None => Ok(()),
        Some((name, _)) => Err(unsupported(name, "the service reads its own file again; leave it out")),
    }
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
fn of_request(parameters: &Parameters<'_>) -> Result<(Option<Duration>, bool), Refused> {
    let (mut timeout, mut is_binary) = (None, false);
    for (name, value) in parameters.iter() {
        match name {
            "timeout" => {
                let micros = whole_number(name, value, "whole microseconds")?;
                // 0 is the default of the server, as for Triton.
                timeout = (micros > 0).then(|| Duration::from_micros(micros));
            }
            "binary_data_output" => is_binary = boolean(name, value)?,
            "sequence_id" if !is_zero(value) && value.get() != "\"\"" => {
                return Err(unsupported("sequence_id", "the model has no state; leave it out"));
            }
            "priority" if !is_zero(value) => {
                return Err(unsupported("priority", "requests are answered in their order; leave it out"));
            }
            "sequence_id" | "priority" | "sequence_start" | "sequence_end" => {}
            _ => return Err(unknown(name, "the request", "timeout, binary_data_output")),
        }
    }
    Ok((timeout, is_binary))
}

fn outputs(wanted: Vec<OutputJson<'_>>, is_binary: bool) -> Result<Vec<Wanted>, Refused> {
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
        for (parameter, value) in parameters.iter() {
            match parameter {
                "binary_data" => is_binary = boolean(parameter, value)?,
                "classification" if is_zero(value) => {}
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
fn pixels(inputs: Vec<InputJson<'_>>, binary: Option<Bytes>, max_rows: usize) -> Result<Pixels, Refused> {
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
    match (binary_size(&input.parameters)?, input.data) {
        (Some(size), None) => tensor(size, binary, rows).map(Pixels::Binary),
        (Some(_), Some(_)) => {
            Err(Refused::bad("input \"pixels\" has data and a binary_data_size; send it in one form"))
        }
        (None, Some(data)) => {
            if let Some(rest) = binary.filter(|binary| !binary.is_empty()) {
                return Err(Refused::bad(format!(
                    "{} bytes follow the JSON, and no input has a binary_data_size; leave them out",
                    rest.len()
                )));
            }
            numbers(data, rows).map(Pixels::Json)
        }
        (None, None) => {
            Err(Refused::bad("input \"pixels\" has no data; send it in JSON or with a binary_data_size"))
        }
    }
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

fn binary_size(parameters: &Parameters<'_>) -> Result<Option<u64>, Refused> {
    let mut size = None;
    for (name, value) in parameters.iter() {
        match name {
            "binary_data_size" => size = Some(whole_number(name, value, "a number of bytes")?),
            _ if is_shared_memory(name) => return Err(no_shared_memory(name)),
            _ => return Err(unknown(name, "input \"pixels\"", "binary_data_size")),
        }
    }
    Ok(size)
}

/// Returns the binary data of the input, if the three lengths agree and it has grey values alone.
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
    let wrong = f32s(&binary).enumerate().find(|(_, value)| !is_grey(*value));
    match wrong {
        None => Ok(binary),
        Some((at, value)) => Err(not_grey(at, value)),
    }
}
