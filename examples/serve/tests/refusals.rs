//! Requests that are refused: mistakes, overload and deadlines.

use super::*;

/// A change to a request that makes it wrong, and parts of the reason for its refusal.
type Mistake = (fn(&mut Value), &'static [&'static str]);

fn set(request: &mut Value, pointer: &str, value: Value) {
    *request.pointer_mut(pointer).unwrap() = value;
}

const MISTAKES: &[Mistake] = &[
    (|r| set(r, "/inputs", json!([])), &["0 inputs", "1 is expected"]),
    (|r| *r = json!({}), &["missing field `inputs`"]),
    (|r| *r = json!([1]), &["not an inference request"]),
    (|r| r["output"] = json!([]), &["unknown field `output`"]),
    (|r| r["id"] = json!(7), &["not an inference request", "integer `7`"]),
    (|r| set(r, "/inputs/0/name", json!("image")), &["no input \"image\"", "it has pixels"]),
    (|r| r["inputs"] = json!([r["inputs"][0], r["inputs"][0]]), &["2 inputs", "1 is expected"]),
    (|r| set(r, "/inputs/0/datatype", json!("FP64")), &["\"FP64\"", "FP32 is expected"]),
    (|r| set(r, "/inputs/0/shape", json!([2, 63])), &["[2, 63]", "[rows, 64]"]),
    (|r| set(r, "/inputs/0/shape", json!([128])), &["[128]", "[rows, 64]"]),
    (|r| set(r, "/inputs/0/shape", json!([2, 8, 8])), &["[2, 8, 8]"]),
    (|r| set(r, "/inputs/0/shape", json!([0, 64])), &["[0, 64]", "1 row or more"]),
    (|r| set(r, "/inputs/0/shape", json!([-1, 64])), &["[-1, 64]"]),
    (|r| set(r, "/inputs/0/shape", json!([2.5, 64])), &["not an inference request", "2.5"]),
    (|r| set(r, "/inputs/0/shape", json!([65, 64])), &["65 rows", "at most 64"]),
    (|r| set(r, "/inputs/0/shape", json!([i64::MAX, 64])), &["9223372036854775807 rows", "at most 64"]),
    (|r| set(r, "/inputs/0/shape", json!([3, 64])), &["128 numbers", "[3, 64] has 192"]),
    (|r| set(r, "/inputs/0/data", json!([])), &["0 numbers", "has 128"]),
    (|r| set(r, "/inputs/0/data", json!("pixels")), &["is not an array"]),
    (|r| set(r, "/inputs/0/data", json!([[1.0], [2.0]])), &["row 0 has 1 numbers", "64 are expected"]),
    (|r| set(r, "/inputs/0/data", json!([[1.0]])), &["1 rows", "has 2"]),
    (|r| set(r, "/inputs/0/data", json!([[1.0], 2.0])), &["row 0 has 1 numbers"]),
    (|r| r["inputs"][0]["data"] = json!([vec![1.0; 64], 2.0]), &["row 1 is not an array"]),
    (|r| set(r, "/inputs/0/data/65", json!("8")), &["pixel 1 of row 1 is \"8\"", "expected a number"]),
    (|r| set(r, "/inputs/0/data/65", json!(null)), &["pixel 1 of row 1 is null"]),
    (|r| set(r, "/inputs/0/data/65", json!([1])), &["pixel 1 of row 1 is [1]"]),
    (|r| set(r, "/inputs/0/data/65", json!(16.5)), &["pixel 1 of row 1 is 16.5", "from 0 to 16"]),
    (|r| set(r, "/inputs/0/data/65", json!(1e300)), &["pixel 1 of row 1 is 1e", "from 0 to 16"]),
    (|r| set(r, "/inputs/0/data/127", json!(-1)), &["pixel 63 of row 1 is -1", "from 0 to 16"]),
    (|r| drop(r["inputs"][0].as_object_mut().unwrap().remove("data")), &["no data"]),
    (|r| r["inputs"][0]["parameters"] = json!({ "binary_data_size": 512 }), &["in one form"]),
    (|r| r["inputs"][0]["parameters"] = json!({ "binary_data_size": -1 }), &["-1", "a number of bytes"]),
    (
        |r| r["inputs"][0]["parameters"] = json!({ "content": 1 }),
        &["\"content\"", "known are binary_data_size"],
    ),
    (|r| r["inputs"][0]["parameters"] = json!({ "shared_memory_region": "r" }), &["shared memory is not"]),
    (|r| r["outputs"] = json!([{ "name": "logit" }]), &["no output \"logit\"", "logits, digit"]),
    (|r| r["outputs"] = json!([{ "name": "digit" }, { "name": "digit" }]), &["named twice"]),
    (|r| r["outputs"] = output(json!({ "binary_data": 1 })), &["binary_data", "true or false"]),
    (|r| r["outputs"] = output(json!({ "classification": 3 })), &["classification", "sort the logits"]),
    (|r| r["outputs"] = output(json!({ "shared_memory_byte_size": 8 })), &["shared memory is not"]),
    (|r| r["outputs"] = output(json!({ "binary": true })), &["\"binary\"", "known are binary_data"]),
    (|r| r["parameters"] = json!({ "timeout": 1.5 }), &["\"timeout\" is 1.5", "whole microseconds"]),
    (|r| r["parameters"] = json!({ "timeout": -5 }), &["\"timeout\" is -5"]),
    (|r| r["parameters"] = json!({ "binary_data_output": "yes" }), &["\"yes\"", "true or false"]),
    (|r| r["parameters"] = json!({ "sequence_id": 5 }), &["sequence_id", "no state"]),
    (|r| r["parameters"] = json!({ "sequence_id": "five" }), &["sequence_id", "no state"]),
    (|r| r["parameters"] = many(17), &["more than 16 parameters"]),
    (|r| r["parameters"] = json!([]), &["an object of parameters"]),
    (|r| r["parameters"] = json!({ "priority": 1 }), &["priority", "in their order"]),
    (|r| r["parameters"] = json!({ "temperature": 1 }), &["\"temperature\"", "timeout, binary_data_output"]),
];

fn many(parameters: usize) -> Value {
    (0..parameters).map(|at| (at.to_string(), json!(at))).collect::<serde_json::Map<_, _>>().into()
}

fn output(parameters: Value) -> Value {
    json!([{ "name": "logits", "parameters": parameters }])
}

#[test]
fn mistakes_are_refused_with_a_reason_and_never_reach_the_device() {
    test(async {
        let rig = Rig::new().await;
        let images = Numbers(10).images(2);
        // Each batch allocates memory for its tensors.
        let allocations = || {
            let served = rig.service.device.memory_stats().served;
            served.own + served.ordered + served.finished + served.merged + served.waited + served.grown
        };
        let before = allocations();
        for (change, parts) in MISTAKES {
            let mut request = in_json(&images);
            change(&mut request);
            rig.infer(&request).await.refuses(StatusCode::BAD_REQUEST, parts);
        }
        let bad = StatusCode::BAD_REQUEST;
        rig.post(INFER, "").await.refuses(bad, &["EOF"]);
        rig.post(INFER, "{\"inputs\": [").await.refuses(bad, &["EOF"]);
        rig.post(INFER, "{\"inputs\": [], \"inputs\": []}").await.refuses(bad, &["duplicate field `inputs`"]);
        rig.post(INFER, "{\"inputs\": [], \"parameters\": {\"a\": 1, \"a\": 2}}")
            .await
            .refuses(bad, &["parameter \"a\" is sent twice"]);
        let deep = "[".repeat(10_000) + &"]".repeat(10_000);
        let mut request = in_json(&images);
        set(&mut request, "/inputs/0/data", json!("deep"));
        rig.post(INFER, request.to_string().replace("\"deep\"", &deep))
            .await
            .refuses(bad, &["1 rows", "has 2"]);
        rig.post(INFER, "[".repeat(10_000)).await.refuses(bad, &["not an inference request"]);
        let text = in_json(&images).to_string();
        rig.post(INFER, format!("{text}x")).await.refuses(bad, &["trailing characters"]);
        rig.post(INFER, text.replacen(".0", "e999", 1))
            .await
            .refuses(bad, &["pixel 0 of row 0 is", "e999, and grey"]);
        rig.post(INFER, text.replacen("\"data\":[", "\"data\":[NaN,", 1))
            .await
            .refuses(bad, &["expected value"]);
        assert_eq!(allocations(), before);
        rig.infer(&in_json(&images)).await.is_by(&rig.reference, &images);
        assert!(allocations() > before);
    });
}

#[test]
fn binary_data_has_the_lengths_that_its_headers_say() {
    test(async {
        let rig = Rig::new().await;
        let images = Numbers(11).images(1);
        let (len, body) = in_binary(&images, |_| {});
        let ask = async |len: &str, body: &[u8]| {
            let headers = [(crate::protocol::JSON_LENGTH, len)];
            rig.ask(Method::POST, INFER, &headers, body.to_vec()).await
        };
        let bad = StatusCode::BAD_REQUEST;
        ask(&len, &body).await.is_by(&rig.reference, &images);
        let all = body.len();
        ask(&len, &body[..all - 1]).await.refuses(bad, &["255 bytes follow", "256"]);
        ask(&len, &[&body[..], b"x"].concat()).await.refuses(bad, &["257 bytes follow", "256"]);
        let beyond = (all + 1).to_string();
        ask(&beyond, &body).await.refuses(bad, &[&beyond, &format!("{all} bytes")]);
        ask("0", &body).await.refuses(bad, &["raw binary requests are not supported"]);
        ask("-1", &body).await.refuses(bad, &["\"-1\"", "number of bytes"]);
        ask(&(len.parse::<usize>().unwrap() - 1).to_string(), &body).await.refuses(bad, &["EOF"]);
        rig.post(INFER, body[..len.parse().unwrap()].to_vec()).await.refuses(bad, &["no header"]);

        let (len, body) = in_binary(&images, |request| {
            request["inputs"][0]["parameters"]["binary_data_size"] = json!(255);
        });
        ask(&len, &body).await.refuses(bad, &["is 255", "has 256 bytes"]);
        let mut wrong = images.clone();
        wrong[9] = f32::NAN;
        let (len, body) = in_binary(&wrong, |_| {});
        ask(&len, &body).await.refuses(bad, &["pixel 9 of row 0 is NaN"]);
        let text = in_json(&images).to_string();
        ask(&text.len().to_string(), format!("{text}more").as_bytes())
            .await
            .refuses(bad, &["4 bytes follow the JSON", "no input has a binary_data_size"]);
    });
}

#[test]
fn bodies_that_are_compressed_or_too_long_are_refused() {
    test(async {
        let rig = Rig::new().await;
        let image = Numbers(12).images(1);
        let body = in_json(&image).to_string();
        for encoding in ["gzip", "deflate"] {
            let answer = rig.ask(Method::POST, INFER, &[("content-encoding", encoding)], body.clone()).await;
            answer.refuses(StatusCode::UNSUPPORTED_MEDIA_TYPE, &[encoding, "send the body uncompressed"]);
        }
        let answer = rig.ask(Method::POST, INFER, &[("content-encoding", "identity")], body.clone()).await;
        answer.is_by(&rig.reference, &image);
        // The most rows that a request may have, of numbers as long as any client writes them.
        let long = in_json(&vec![0.1; 64 * PIXELS]).to_string();
        assert!(long.contains("0.10000000149011612"), "{long}");
        rig.post(INFER, long).await.ok();
        let limit = crate::extract::body_limit(&rig.service);
        let fits = body.clone() + &" ".repeat(limit - body.len());
        rig.post(INFER, fits.clone()).await.is_by(&rig.reference, &image);
        let (too_long, long) = (StatusCode::PAYLOAD_TOO_LARGE, fits + " ");
        rig.post(INFER, long.clone()).await.refuses(too_long, &[&format!("more than {limit}"), "64 rows"]);
        let len = long.len().to_string();
        for path in [INFER, "/v2/repository/models/digits/load"] {
            let answer = rig.ask(Method::POST, path, &[("content-length", &len)], long.clone()).await;
            answer.refuses(too_long, &[&format!("{len} bytes"), &format!("at most {limit}")]);
        }
    });
}

#[test]
fn pages_of_other_sites_are_refused() {
    test(async {
        let rig = Rig::new().await;
        let image = in_json(&Numbers(12).images(1)).to_string();
        let load = "/v2/repository/models/digits/load";
        for (path, body) in [(INFER, &*image), ("/v2/models/digits/versions/1/infer", &image), (load, "")] {
            let ask = async |headers: &[_]| rig.ask(Method::POST, path, headers, body.to_owned()).await;
            for other in ["http://evil.example", "http://127.0.0.1:9999", "http://127.0.0.1", "null", ""] {
                let answer = ask(&[("host", "127.0.0.1:8080"), ("origin", other)]).await;
                let parts = [&*format!("{other:?}"), "\"127.0.0.1:8080\"", "pass the Host header on"];
                answer.refuses(StatusCode::FORBIDDEN, &parts);
            }
            ask(&[("origin", "http://digits.example")]).await.refuses(StatusCode::FORBIDDEN, &["to no host"]);
        }
        assert_eq!((rig.service.batcher.stats().answered, rig.service.version()), (0, 1));
        for own in ["http://127.0.0.1:8080", "https://127.0.0.1:8080"] {
            let headers = [("host", "127.0.0.1:8080"), ("origin", own)];
            rig.ask(Method::POST, INFER, &headers, image.clone()).await.ok();
        }
        let headers = [("host", "Digits.example"), ("origin", "http://digits.example")];
        rig.ask(Method::POST, load, &headers, "").await.ok();
    });
}

#[test]
fn a_body_that_breaks_off_is_refused_in_json() {
    test(async {
        let rig = Rig::new().await;
        let broken: [Result<&[u8], _>; 2] = [Ok(b"{"), Err("the client has gone")];
        let body = Body::from_stream(futures::stream::iter(broken));
        let parts = ["the body was not read", "the client has gone"];
        rig.post(INFER, body).await.refuses(StatusCode::BAD_REQUEST, &parts);
        // The body of a request to another model is not read.
        let body = Body::from_stream(futures::stream::pending::<Result<&[u8], String>>());
        rig.post("/v2/models/faces/infer", body).await.refuses(StatusCode::NOT_FOUND, &["\"faces\""]);
    });
}

#[test]
fn headers_that_are_sent_twice_or_signed_are_refused() {
    test(async {
        let rig = Rig::new().await;
        let body = in_json(&Numbers(12).images(1)).to_string();
        for (name, value, again) in [
            ("content-encoding", "identity", "gzip"),
            ("deadline-ms", "60000", "1"),
            (crate::protocol::JSON_LENGTH, &*body.len().to_string(), "1"),
        ] {
            let answer = async |headers: &[_]| rig.ask(Method::POST, INFER, headers, body.clone()).await;
            answer(&[(name, value)]).await.ok();
            let twice = answer(&[(name, value), (name, again)]).await;
            twice.refuses(StatusCode::BAD_REQUEST, &[name, "2 times", "once"]);
        }
        let signed = rig.ask(Method::POST, INFER, &[("deadline-ms", "+5")], body.clone()).await;
        signed.refuses(StatusCode::BAD_REQUEST, &["deadline-ms", "\"+5\""]);
        rig.ask(Method::POST, INFER, &[("content-encoding", "Identity")], body).await.ok();
    });
}

#[test]
fn other_models_versions_and_extensions_are_refused() {
    test(async {
        let rig = Rig::new().await;
        let image = in_json(&Numbers(13).images(1)).to_string();
        for (path, method) in [("", Method::GET), ("/ready", Method::GET), ("/infer", Method::POST)] {
            let other = rig.ask(method.clone(), &format!("/v2/models/faces{path}"), &[], image.clone()).await;
            other.refuses(StatusCode::NOT_FOUND, &["no model \"faces\"", "has \"digits\""]);
            for version in ["0", "2", "01", "latest"] {
                let path = format!("/v2/models/digits/versions/{version}{path}");
                let other = rig.ask(method.clone(), &path, &[], image.clone()).await;
                other.refuses(StatusCode::NOT_FOUND, &[&format!("\"{version}\""), "current one is 1"]);
            }
            let path = format!("/v2/models/digits/versions/1{path}");
            rig.ask(method, &path, &[], image.clone()).await.ok();
        }
        let none = StatusCode::NOT_IMPLEMENTED;
        for (path, part) in [
            ("/v2/models/digits/config", "/v2/models/digits has the metadata"),
            ("/v2/models/digits/versions/1/config", "/v2/models/digits has the metadata"),
            ("/v2/models/stats", "/metrics"),
            ("/v2/models/digits/stats", "/metrics"),
            ("/v2/models/digits/versions/1/stats", "/metrics"),
            ("/v2/trace/setting", "no trace settings"),
            ("/v2/models/digits/trace/setting", "no trace settings"),
            ("/v2/logging", "no log settings"),
            ("/v2/systemsharedmemory/status", "send tensors in the body"),
            ("/v2/systemsharedmemory/region/r/register", "send tensors in the body"),
            ("/v2/cudasharedmemory/region/r/unregister", "send tensors in the body"),
            ("/v2/models/digits/generate", "no text"),
        ] {
            rig.get(path).await.refuses(none, &[part]);
            rig.post(path, "{}").await.refuses(none, &[part]);
        }
        rig.get("/v2/models/%ff").await.refuses(StatusCode::BAD_REQUEST, &["Invalid UTF-8"]);
        rig.get("/v3").await.refuses(StatusCode::NOT_FOUND, &["nothing at /v3"]);
        let other_method = rig.get(INFER).await;
        other_method.refuses(StatusCode::METHOD_NOT_ALLOWED, &["does not accept this method"]);
        assert_eq!(other_method.header("allow"), "POST");
        let repository = "/v2/repository/models";
        rig.post(&format!("{repository}/digits/unload"), "{}")
            .await
            .refuses(StatusCode::BAD_REQUEST, &["only model"]);
        rig.post(&format!("{repository}/faces/load"), "")
            .await
            .refuses(StatusCode::NOT_FOUND, &["\"faces\""]);
        for (body, part) in [
            ("[1]", "not a request to load"),
            ("{", "EOF"),
            ("{\"parameters\": 1}", "an object"),
            ("{\"config\": \"{}\"}", "unknown field `config`"),
        ] {
            let path = format!("{repository}/digits/load");
            rig.post(&path, body).await.refuses(StatusCode::BAD_REQUEST, &[part]);
        }
        let config = json!({ "parameters": { "config": "{}" } });
        rig.post(&format!("{repository}/digits/load"), config.to_string())
            .await
            .refuses(StatusCode::BAD_REQUEST, &["\"config\"", "its own file"]);
        assert_eq!(rig.service.version(), 1);
        // The bodies of NVIDIA's client.
        for body in ["{}", "{\"parameters\": {}}"] {
            rig.post(&format!("{repository}/digits/load"), body).await.ok();
        }
    });
}

#[test]
fn rows_beyond_the_queue_are_refused_and_may_come_again() {
    test(async {
        let rig = Rig::narrow().await;
        let mut held = rig.hold(&rig.reference).await;
        let mut numbers = Numbers(14);
        let images = [(); 3].map(|()| numbers.images(1));
        // One runs and two wait.
        let mut calls = vec![rig.spawn_infer(&images[0])];
        held.began.recv().await.unwrap();
        calls.extend(images[1..].iter().map(|image| rig.spawn_infer(image)));
        rig.queued(2).await;
        let refused = rig.infer(&in_json(&images[0])).await;
        refused.refuses(StatusCode::SERVICE_UNAVAILABLE, &["2 rows queued", "try again later"]);
        assert_eq!(refused.header("retry-after"), "1");
        held.permits.add_permits(4);
        for (call, image) in calls.into_iter().zip(&images) {
            call.await.unwrap().is_by(&rig.reference, image);
        }
        rig.infer(&in_json(&images[0])).await.is_by(&rig.reference, &images[0]);
    });
}

#[test]
fn a_request_of_which_a_row_is_refused_leaves_no_row_in_the_queue() {
    test(async {
        let rig = Rig::narrow().await;
        let mut held = rig.hold(&rig.reference).await;
        let image = Numbers(15).images(1);
        let first = rig.spawn_infer(&image);
        held.began.recv().await.unwrap();
        let second = rig.spawn_infer(&image);
        rig.queued(1).await;
        // The first of its rows would have room.
        let both = rig.infer(&in_json(&Numbers(16).images(2))).await;
        both.refuses(StatusCode::SERVICE_UNAVAILABLE, &["2 rows queued"]);
        assert_eq!(rig.service.batcher.queued(), 1);
        held.permits.add_permits(2);
        for call in [first, second] {
            call.await.unwrap().is_by(&rig.reference, &image);
        }
    });
}

#[test]
fn requests_past_their_deadline_are_answered_without_a_result() {
    test(async {
        let rig = Rig::narrow().await;
        let mut held = rig.hold(&rig.reference).await;
        let image = Numbers(17).images(1);
        let first = rig.spawn_infer(&image);
        held.began.recv().await.unwrap();
        // The slot is held, so no time is enough.
        let late = StatusCode::GATEWAY_TIMEOUT;
        let body = in_json(&image);
        for millis in ["0", "20"] {
            let answer = rig.ask(Method::POST, INFER, &[("deadline-ms", millis)], body.to_string()).await;
            answer.refuses(late, &["before the deadline"]);
        }
        let mut with_timeout = body.clone();
        with_timeout["parameters"] = json!({ "timeout": 20_000 });
        rig.infer(&with_timeout).await.refuses(late, &["before the deadline"]);
        // The earlier one of both counts.
        let answer =
            rig.ask(Method::POST, INFER, &[("deadline-ms", "50000")], with_timeout.to_string()).await;
        answer.refuses(late, &["before the deadline"]);
        assert_eq!(rig.service.batcher.queued(), 0);

        for wrong in ["soon", "-1", "1.5", ""] {
            let answer = rig.ask(Method::POST, INFER, &[("deadline-ms", wrong)], body.to_string()).await;
            answer.refuses(StatusCode::BAD_REQUEST, &["deadline-ms", "number of milliseconds"]);
        }
        held.permits.add_permits(10);
        first.await.unwrap().is_by(&rig.reference, &image);
        for enough in ["50000", "18446744073709551615"] {
            let answer = rig.ask(Method::POST, INFER, &[("deadline-ms", enough)], body.to_string()).await;
            answer.is_by(&rig.reference, &image);
        }
        // 0 is no limit, as for Triton.
        with_timeout["parameters"]["timeout"] = json!(0);
        rig.infer(&with_timeout).await.is_by(&rig.reference, &image);
    });
}

#[test]
fn a_client_that_disconnects_frees_its_rows() {
    test(async {
        let rig = Rig::narrow().await;
        let mut held = rig.hold(&rig.reference).await;
        let image = Numbers(18).images(1);
        let first = rig.spawn_infer(&image);
        held.began.recv().await.unwrap();
        let gone = [(); 2].map(|()| rig.spawn_infer(&image));
        rig.queued(2).await;
        for call in gone {
            call.abort();
        }
        rig.queued(0).await;
        held.permits.add_permits(1);
        first.await.unwrap().is_by(&rig.reference, &image);
    });
}

#[test]
fn logits_that_json_cannot_represent_are_an_error_there_and_fine_in_binary() {
    test(async {
        let rig = Rig::new().await;
        let mut huge = Reference::new(1);
        huge.0[0].fill(1e30);
        huge.0[2].fill(1e30);
        rig.file.write(huge.safetensors());
        rig.post("/v2/repository/models/digits/load", "").await.ok();
        let mut request = in_json(&Numbers(19).images(1));
        let answer = rig.infer(&request).await;
        answer
            .refuses(StatusCode::INTERNAL_SERVER_ERROR, &["logit 0 of row 0 is inf", "ask for binary data"]);
        request["parameters"] = json!({ "binary_data_output": true });
        let answer = rig.infer(&request).await;
        assert_eq!(answer.ok().body[answer.body.len() - 48..][..4], f32::INFINITY.to_le_bytes());
    });
}
