//! Requests that are answered with results.

use super::*;
use futures::future::join_all;

#[test]
fn the_routes_of_the_protocol_describe_the_service() {
    test(async {
        let rig = Rig::new().await;
        for path in ["/v2/health/live", "/v2/health/ready", "/v2/models/digits/ready"] {
            assert!(rig.get(path).await.ok().body.is_empty(), "{path}");
        }
        rig.get("/v2/models/digits/versions/1/ready").await.ok();
        let server = rig.get("/v2").await.ok().json();
        assert_eq!(server["name"], "warpline-digits");
        assert_eq!(server["extensions"], json!(["binary_tensor_data", "model_repository"]));
        let model = json!({
            "name": "digits", "versions": ["1"], "platform": "warpline",
            "inputs": [{ "name": "pixels", "datatype": "FP32", "shape": [-1, 64] }],
            "outputs": [
                { "name": "logits", "datatype": "FP32", "shape": [-1, 10] },
                { "name": "digit", "datatype": "INT64", "shape": [-1] },
            ],
        });
        assert_eq!(rig.get("/v2/models/digits").await.ok().json(), model);
        assert_eq!(rig.get("/v2/models/digits/versions/1").await.ok().json(), model);
        let index = rig.post("/v2/repository/index", "").await.ok().json();
        let expected = json!([{ "name": "digits", "version": "1", "state": "READY", "reason": "" }]);
        assert_eq!(index, expected);
        let page = rig.get("/").await;
        assert_eq!(page.ok().header("content-type"), "text/html; charset=utf-8");
        for id in ["canvas", "clear", "digit", "batch", "version"] {
            let id = format!("id=\"{id}\"");
            assert!(std::str::from_utf8(&page.body).unwrap().contains(&id), "{id}");
        }
    });
}

#[test]
fn images_in_json_are_answered_in_json() {
    test(async {
        let rig = Rig::new().await;
        let images = Numbers(2).images(3);
        let flat = in_json(&images);
        let answer = rig.infer(&flat).await;
        answer.is_by(&rig.reference, &images);
        assert_eq!(answer.header("content-type"), "application/json");
        assert_eq!(answer.header("inference-header-content-length"), "");
        let json = answer.json();
        assert_eq!((&json["model_name"], &json["model_version"]), (&json!("digits"), &json!("1")));
        assert_eq!(json.get("id"), None);
        // One number for each row.
        assert_eq!(json["parameters"]["batch_rows"].as_str().unwrap().split(',').count(), 3, "{json}");

        let mut nested = flat;
        nested["inputs"][0]["data"] = images.chunks(PIXELS).map(|row| json!(row)).collect();
        nested["id"] = json!("the request's own id");
        let answer = rig.infer(&nested).await;
        answer.is_by(&rig.reference, &images);
        assert_eq!(answer.json()["id"], "the request's own id");
    });
}

#[test]
fn the_size_of_the_batch_is_that_of_each_row() {
    test(async {
        let rig = Rig::with(Runtime::builder(), |settings| {
            (settings.max_rows, settings.in_flight) = (2, 1);
        })
        .await;
        let mut held = rig.hold(&rig.reference).await;
        let images = Numbers(3).images(4);
        let first = rig.spawn_infer(&images[..PIXELS]);
        held.began.recv().await.unwrap();
        // The slot is busy, so these three rows are a full batch and another one.
        let router = rig.router.clone();
        let body = in_json(&images[PIXELS..]).to_string();
        let rest = tokio::spawn(async move { ask(&router, Method::POST, INFER, &[], body).await });
        rig.queued(3).await;
        held.permits.add_permits(3);
        assert_eq!(first.await.unwrap().ok().json()["parameters"]["batch_rows"], "1");
        let rest = rest.await.unwrap();
        rest.is_by(&rig.reference, &images[PIXELS..]);
        assert_eq!(rest.json()["parameters"]["batch_rows"], "2,2,1");
    });
}

#[test]
fn images_in_binary_are_answered_in_the_form_that_each_output_asks_for() {
    test(async {
        let rig = Rig::new().await;
        let images = Numbers(4).images(2);
        let rows: Vec<_> = images.chunks(PIXELS).collect();
        let logits: Vec<_> = rows.iter().flat_map(|image| rig.reference.logits(image)).collect();
        let digits: Vec<_> = rows.iter().map(|image| rig.reference.digit(image)).collect();
        let (logits_bytes, digits_bytes) =
            (bytes_of(&logits), digits.iter().flat_map(|digit| digit.to_le_bytes()).collect::<Vec<_>>());

        // All outputs in JSON by default.
        let (len, body) = in_binary(&images, |_| {});
        let answer = rig.ask(Method::POST, INFER, &[(crate::protocol::JSON_LENGTH, &len)], body).await;
        answer.is_by(&rig.reference, &images);

        // All in binary, by the parameter of the request.
        let (len, body) = in_binary(&images, |request| {
            request["parameters"] = json!({ "binary_data_output": true });
        });
        let answer = rig.ask(Method::POST, INFER, &[(crate::protocol::JSON_LENGTH, &len)], body).await;
        let json = answer.ok().json();
        assert_eq!(answer.header("content-type"), "application/octet-stream");
        assert_eq!(
            json["outputs"],
            json!([
                { "name": "logits", "datatype": "FP32", "shape": [2, 10], "parameters": of_bytes(80) },
                { "name": "digit", "datatype": "INT64", "shape": [2], "parameters": of_bytes(16) },
            ])
        );
        assert_eq!(tail(&answer), [&logits_bytes[..], &digits_bytes].concat());

        // In the order of the request, and each in a form of its own.
        let (len, body) = in_binary(&images, |request| {
            request["parameters"] = json!({ "binary_data_output": true });
            request["outputs"] = json!([
                { "name": "digit", "parameters": { "binary_data": false } },
                { "name": "logits" },
            ]);
        });
        let answer = rig.ask(Method::POST, INFER, &[(crate::protocol::JSON_LENGTH, &len)], body).await;
        let json = answer.ok().json();
        assert_eq!(json["outputs"][0]["data"], json!(digits));
        assert_eq!(json["outputs"][1]["name"], "logits");
        assert_eq!(json["outputs"][1].get("data"), None);
        assert_eq!(tail(&answer), logits_bytes);

        // JSON in, one output in binary.
        let mut request = in_json(&images);
        request["outputs"] = json!([{ "name": "digit", "parameters": { "binary_data": true } }]);
        let answer = rig.infer(&request).await;
        assert_eq!(answer.ok().json()["outputs"].as_array().unwrap().len(), 1);
        assert_eq!(tail(&answer), digits_bytes);
    });
}

fn of_bytes(size: usize) -> Value {
    json!({ "binary_data_size": size })
}

/// Returns the tensors that follow the JSON of an answer.
fn tail(answer: &Answer) -> &[u8] {
    let len: usize = answer.header("inference-header-content-length").parse().unwrap();
    &answer.body[len..]
}

#[test]
fn the_first_of_equal_logits_is_the_digit() {
    test(async {
        let rig = Rig::new().await;
        let mut tied = Reference::new(1);
        tied.0[2].fill(0.0);
        tied.0[3] = vec![0.0, 0.5, 2.0, 0.0, 2.0, 2.0, 1.0, 0.0, 0.0, 0.0];
        rig.file.write(tied.safetensors());
        rig.post("/v2/repository/models/digits/load", "").await.ok();
        let images = Numbers(5).images(1);
        let answer = rig.infer(&in_json(&images)).await;
        answer.is_by(&tied, &images);
        assert_eq!(answer.json()["outputs"][1]["data"], json!([2]));
    });
}

#[test]
fn concurrent_requests_each_get_the_rows_of_their_own() {
    test(async {
        let set = |settings: &mut Settings| settings.max_queued = 1024;
        let rig = Rig::with(Runtime::builder(), set).await;
        let mut numbers = Numbers(6);
        let calls = (0..200).map(|i| {
            let images = numbers.images(1 + i % 4);
            let (router, reference) = (rig.router.clone(), rig.reference.clone());
            tokio::spawn(async move {
                let id = format!("request {i}");
                if i % 2 == 0 {
                    let mut body = in_json(&images);
                    body["id"] = json!(id);
                    let answer = ask(&router, Method::POST, INFER, &[], body.to_string()).await;
                    answer.is_by(&reference, &images);
                    assert_eq!(answer.json()["id"], id);
                } else {
                    let (len, body) = in_binary(&images, |body| body["id"] = json!(id));
                    let headers = [(crate::protocol::JSON_LENGTH, &*len)];
                    let answer = ask(&router, Method::POST, INFER, &headers, body).await;
                    answer.is_by(&reference, &images);
                    assert_eq!(answer.json()["id"], id);
                }
            })
        });
        for call in join_all(calls).await {
            call.unwrap();
        }
    });
}

#[test]
fn the_figures_are_those_of_the_moment() {
    test(async {
        let rig = Rig::narrow().await;
        let figure = async |name: &str| {
            let answer = rig.get("/metrics").await;
            assert!(answer.ok().header("content-type").starts_with("text/plain; version=0.0.4"));
            let text = String::from_utf8(answer.body.to_vec()).unwrap();
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("warpline_{name} ")));
            line.unwrap_or_else(|| panic!("no {name} in {text}")).parse::<f64>().unwrap() as u64
        };
        let queued = "batcher_queued_rows{batcher=\"digits\"}";
        let live = "device_memory_bytes{device=\"cpu:0\",state=\"live\"}";
        assert_eq!((figure("serve_ready").await, figure("device_up{device=\"cpu:0\"}").await), (1, 1));
        assert_eq!(figure(queued).await, 0);
        assert!(figure(live).await >= 4 * (64 * 128 + 128 + 128 * 10 + 10));
        let mut held = rig.hold(&rig.reference).await;
        let image = Numbers(7).images(1);
        let calls = [(); 3].map(|()| rig.spawn_infer(&image));
        held.began.recv().await.unwrap();
        rig.queued(2).await;
        assert_eq!(figure(queued).await, 2);
        held.permits.add_permits(3);
        for call in calls {
            call.await.unwrap().is_by(&rig.reference, &image);
        }
        let answered = "batcher_calls_total{batcher=\"digits\",outcome=\"answered\"}";
        assert_eq!(figure(answered).await, 3);
        assert_eq!(figure("batcher_wait_seconds_count{batcher=\"digits\"}").await, 3);
        rig.post("/v2/repository/models/digits/load", "").await.ok();
        assert_eq!(figure("serve_model_version").await, 3);
        rig.service.begin_to_stop();
        assert_eq!(figure("serve_ready").await, 0);
    });
}

#[test]
fn histograms_have_buckets_up_to_the_largest_batch() {
    test(async {
        let set = |settings: &mut Settings| settings.max_rows = 6;
        let rig = Rig::with(Runtime::builder(), set).await;
        rig.infer(&in_json(&Numbers(8).images(3))).await.ok();
        let text = String::from_utf8(rig.get("/metrics").await.ok().body.to_vec()).unwrap();
        assert!(!text.contains("quantile="), "{text}");
        let bounds = |name: &str| {
            let prefix = format!("warpline_batcher_{name}_bucket{{batcher=\"digits\",le=\"");
            let lines = text.lines().filter_map(|line| line.strip_prefix(&prefix));
            lines.map(|line| line.split_once('"').unwrap().0).collect::<Vec<_>>()
        };
        assert_eq!(bounds("batch_rows"), ["1", "2", "4", "6", "+Inf"]);
        for name in ["wait_seconds", "batch_seconds"] {
            let bounds = bounds(name);
            assert_eq!((bounds[0], &bounds[15..]), ("0.0001", &["10", "+Inf"][..]), "{name}");
        }
        assert!(text.contains("wait_seconds_bucket{batcher=\"digits\",le=\"+Inf\"} 3\n"), "{text}");
    });
}
