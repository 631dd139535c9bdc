//! Decoding and encoding alone, without a service.

use super::*;
use crate::protocol::{JSON_LENGTH, Output, Pixels, Request, Row, Wanted, decode, encode};
use axum::http::HeaderValue;

/// Decodes a body of at most 4 rows, whose JSON has this length.
fn decoded(body: &[u8], json_len: Option<usize>) -> Result<Request, crate::refused::Refused> {
    let mut headers = HeaderMap::new();
    if let Some(len) = json_len {
        headers.insert(JSON_LENGTH, HeaderValue::from(len));
    }
    decode(&headers, Bytes::copy_from_slice(body), 4)
}

#[test]
fn a_request_is_decoded_with_all_its_parts() {
    let images = Numbers(30).images(2);
    let mut json = in_json(&images);
    json["id"] = json!("an id");
    json["parameters"] = json!({ "timeout": 1500, "sequence_id": 0, "priority": 0, "sequence_start": false });
    json["outputs"] =
        json!([{ "name": "digit", "parameters": { "binary_data": true, "classification": 0 } }]);
    let expected = Request {
        id: Some("an id".to_owned()),
        pixels: Pixels::Json(images),
        outputs: vec![Wanted { output: Output::Digit, is_binary: true }],
        timeout: Some(Duration::from_micros(1500)),
    };
    assert_eq!(decoded(json.to_string().as_bytes(), None), Ok(expected));
}

#[test]
fn rows_are_written_scaled_from_json_and_from_binary() {
    let images = Numbers(31).images(3);
    let (len, body) = in_binary(&images, |_| {});
    let json = decoded(in_json(&images).to_string().as_bytes(), None).unwrap();
    let binary = decoded(&body, Some(len.parse().unwrap())).unwrap();
    for request in [json, binary] {
        assert_eq!(request.pixels.rows(), 3);
        for (at, image) in images.chunks(PIXELS).enumerate() {
            let mut row = [f32::NAN; PIXELS];
            request.pixels.write(at, &mut row);
            assert_eq!(row.map(|value| value * 16.0), image);
        }
    }
}

#[test]
fn a_response_is_encoded_byte_for_byte() {
    let logits = [[0.1, -2.5, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1e-9], [0.5; DIGITS]];
    let rows = [
        Row { logits: &logits[0], digit: 2, batch_rows: 4 },
        Row { logits: &logits[1], digit: 0, batch_rows: 1 },
    ];
    let request = |outputs| Request {
        id: Some("7".to_owned()),
        pixels: Pixels::Json(Vec::new()),
        outputs,
        timeout: None,
    };
    let in_json = request(vec![Wanted { output: Output::Logits, is_binary: false }]);
    let encoded = encode(&in_json, 9, &rows).unwrap();
    assert_eq!(encoded.json_len, None);
    assert_eq!(
        String::from_utf8(encoded.body).unwrap(),
        "{\"model_name\":\"digits\",\"model_version\":\"9\",\"id\":\"7\",\
         \"parameters\":{\"batch_rows\":\"4,1\"},\"outputs\":[{\"name\":\"logits\",\
         \"datatype\":\"FP32\",\"shape\":[2,10],\"data\":[0.1,-2.5,3.0,0.0,0.0,0.0,0.0,0.0,0.0,1e-9,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5]}]}"
    );
    let in_binary = request(vec![Wanted { output: Output::Digit, is_binary: true }]);
    let encoded = encode(&in_binary, 9, &rows).unwrap();
    let (json, tensors) = encoded.body.split_at(encoded.json_len.unwrap());
    assert!(json.ends_with(b"\"parameters\":{\"binary_data_size\":16}}]}"));
    assert_eq!(tensors, [2_i64.to_le_bytes(), 0_i64.to_le_bytes()].concat());
}

#[test]
fn a_wrong_body_takes_a_small_multiple_of_its_length() {
    let data = |data: &str| {
        format!(
            "{{\"inputs\":[{{\"name\":\"pixels\",\"shape\":[4,64],\"datatype\":\"FP32\",\"data\":{data}}}]}}"
        )
    };
    let zeros = format!("[{}0]", "0,".repeat(100_000));
    for (body, part) in [
        (data(&zeros), "has 100001 numbers"),
        (data(&format!("[{}[]]", "[],".repeat(60_000))), "has 60001 rows"),
        (data(&format!("[{zeros},{zeros}]")), "has 2 rows"),
        (data(&format!("\"{}\"", "x".repeat(200_000))), "not an array"),
        (data(&format!("[{zeros}]")).replace("4,64", "1,64"), "row 0 has 100001 numbers"),
        (format!("{{\"inputs\":[],\"parameters\":{{\"timeout\":{zeros}}}}}"), "\"timeout\" is [0,0,"),
        (format!("{{\"inputs\":[],\"{}\":0}}", "x".repeat(200_000)), "unknown field"),
    ] {
        let (refused, peak) = allocations::peak(|| decoded(body.as_bytes(), None).unwrap_err());
        assert!(refused.reason.contains(part), "{part:?} is not in {:?}", refused.reason);
        assert!(refused.reason.len() < 1100, "{} bytes", refused.reason.len());
        assert!(peak < 6 * body.len(), "{peak} bytes for {} of: {part}", body.len());
    }
}

/// Changes, removes and inserts bytes. The decoder may accept the result, but not panic.
#[test]
fn damaged_requests_are_decoded_or_refused() {
    let mut numbers = Numbers(32);
    let images = numbers.images(1);
    let (len, binary) = in_binary(&images, |request| {
        request["outputs"] = json!([{ "name": "digit", "parameters": { "binary_data": true } }]);
    });
    let json = in_json(&images).to_string().into_bytes();
    let (mut accepted, mut refused) = (0, 0);
    for round in 0..4000 {
        let (mut body, len) =
            if round % 2 == 0 { (json.clone(), None) } else { (binary.clone(), Some(len.parse().unwrap())) };
        for _ in 0..=numbers.below(3) {
            let at = numbers.below(body.len() as u64) as usize;
            match numbers.below(3) {
                0 => body[at] = numbers.below(256) as u8,
                1 => drop(body.remove(at)),
                _ => body.insert(at, b"[]{},:\"0-9.e"[numbers.below(12) as usize]),
            }
        }
        match decoded(&body, len) {
            Ok(request) => {
                assert!((1..=4).contains(&request.pixels.rows()));
                let mut row = [f32::NAN; PIXELS];
                request.pixels.write(0, &mut row);
                assert!(row.iter().all(|value| (0.0..=1.0).contains(value)));
                accepted += 1;
            }
            Err(error) => {
                assert!(error.status == StatusCode::BAD_REQUEST && !error.reason.is_empty());
                refused += 1;
            }
        }
    }
    assert!(accepted > 100 && refused > 1000, "{accepted} accepted, {refused} refused");
}
