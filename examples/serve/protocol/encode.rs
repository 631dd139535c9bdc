//! From the outputs of the model to the body of a response.

use super::{MODEL, Output, Request, Wanted};
use crate::network::DIGITS;
use crate::refused::Refused;
use axum::http::StatusCode;
use serde::Serialize;

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
/// represent.
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
                "logit {} of row {} is {}, which JSON cannot represent; ask for binary data, or load other weights",
                at % DIGITS,
                at / DIGITS,
                logits[at]
            ),
        ));
    }
    Ok(Data::Logits(logits))
}
