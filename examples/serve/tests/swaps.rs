//! Models that are replaced while requests run.

use super::*;
use futures::future::join_all;

const LOAD: &str = "/v2/repository/models/digits/load";

#[test]
fn every_answer_under_load_is_by_the_version_that_it_names() {
    const VERSIONS: u64 = 6;
    test(async {
        let set = |settings: &mut Settings| settings.max_queued = 256;
        let rig = Rig::with(Runtime::builder(), set).await;
        let references: Arc<Vec<_>> = Arc::new((1..=VERSIONS).map(Reference::new).collect());
        let by = |version: u64| &references[version as usize - 1];
        let image = Numbers(20).images(1);
        // Otherwise, an answer of another version would not be noticed.
        for version in 2..=VERSIONS {
            assert_ne!(by(version).logits(&image), by(version - 1).logits(&image));
        }

        let first = rig.infer(&in_json(&image)).await;
        first.is_by(by(1), &image);
        assert_eq!(first.version(), 1);
        let stopped = Arc::new(Semaphore::new(0));
        let callers = (0..8).map(|caller| {
            let (router, references, stopped) = (rig.router.clone(), references.clone(), stopped.clone());
            tokio::spawn(async move {
                let (mut numbers, mut answers) = (Numbers(100 + caller), 0);
                while stopped.available_permits() == 0 {
                    let images = numbers.images(1 + numbers.0 as usize % 5);
                    let answer = ask(&router, Method::POST, INFER, &[], in_json(&images).to_string()).await;
                    answer.is_by(&references[answer.version() as usize - 1], &images);
                    answers += 1;
                }
                answers
            })
        });
        let callers: Vec<_> = callers.collect();
        for version in 2..=VERSIONS {
            rig.file.write(by(version).safetensors());
            let loaded = rig.post(LOAD, "{}").await;
            assert_eq!(loaded.ok().json(), json!({ "name": "digits", "version": version.to_string() }));
            let answer = rig.infer(&in_json(&image)).await;
            assert_eq!(answer.ok().version(), version);
            answer.is_by(by(version), &image);
        }
        stopped.add_permits(1);
        for answers in join_all(callers).await {
            assert!(answers.unwrap() > 0);
        }
        let model = rig.get("/v2/models/digits").await.ok().json();
        assert_eq!(model["versions"], json!([VERSIONS.to_string()]));
    });
}

#[test]
fn rows_of_an_older_version_are_computed_again() {
    test(async {
        let rig = Rig::narrow().await;
        let (second, third) = (Reference::new(2), Reference::new(3));
        let mut held = rig.hold(&second).await;
        let images = Numbers(21).images(2);
        let (router, body) = (rig.router.clone(), in_json(&images).to_string());
        let call = tokio::spawn(async move { ask(&router, Method::POST, INFER, &[], body).await });
        held.began.recv().await.unwrap();
        // The first row is computed by the second model, and the other one by the third.
        let mut next = rig.hold(&third).await;
        held.permits.add_permits(1);
        next.began.recv().await.unwrap();
        next.permits.add_permits(2);
        let answer = call.await.unwrap();
        answer.is_by(&third, &images);
        assert_eq!(answer.version(), 3);
        // Once for the other row, and once for the first one again.
        next.began.recv().await.unwrap();
        assert!(next.began.try_recv().is_err());
    });
}

#[test]
fn rows_that_never_have_one_version_are_refused() {
    test(async {
        let rig = Rig::narrow().await;
        let mut held = rig.hold(&rig.reference).await;
        let (router, body) = (rig.router.clone(), in_json(&Numbers(22).images(2)).to_string());
        let call = tokio::spawn(async move { ask(&router, Method::POST, INFER, &[], body).await });
        // Two rows, and one of them again three times.
        for _ in 0..5 {
            held.began.recv().await.unwrap();
            let next = rig.hold(&rig.reference).await;
            held.permits.add_permits(1);
            held = next;
        }
        let answer = call.await.unwrap();
        answer.refuses(StatusCode::SERVICE_UNAVAILABLE, &["each of 4 computations", "2 rows"]);
        assert_eq!(answer.header("retry-after"), "1");
    });
}

#[test]
fn a_version_that_was_replaced_while_it_computes_is_not_answered_by_its_successor() {
    test(async {
        let rig = Rig::narrow().await;
        let mut held = rig.hold(&rig.reference).await;
        let image = Numbers(23).images(1);
        let router = rig.router.clone();
        let body = in_json(&image).to_string();
        let first = rig.spawn_infer(&image);
        held.began.recv().await.unwrap();
        // It is queued for version 2, which is replaced before its batch begins.
        let call = tokio::spawn(async move {
            ask(&router, Method::POST, "/v2/models/digits/versions/2/infer", &[], body).await
        });
        rig.queued(1).await;
        rig.post(LOAD, "").await.ok();
        held.permits.add_permits(1);
        assert_eq!(first.await.unwrap().version(), 2);
        call.await.unwrap().refuses(StatusCode::NOT_FOUND, &["\"2\"", "current one is 3"]);
    });
}

#[test]
fn a_file_that_cannot_be_loaded_leaves_the_model() {
    test(async {
        let rig = Rig::new().await;
        let image = Numbers(24).images(1);
        let stays = "version 1 stays";
        let mut wrong = rig.reference.safetensors();
        wrong.truncate(100);
        rig.file.write(wrong);
        rig.post(LOAD, "").await.refuses(StatusCode::BAD_REQUEST, &[stays, "not a safetensors file"]);
        std::fs::remove_file(&rig.file.0).unwrap();
        rig.post(LOAD, "").await.refuses(StatusCode::BAD_REQUEST, &[stays, "cannot read", "--save"]);
        rig.file.write(vec![0; (1 << 20) + 1]);
        rig.post(LOAD, "").await.refuses(StatusCode::BAD_REQUEST, &[stays, "more than 1048576 bytes"]);
        let answer = rig.infer(&in_json(&image)).await;
        answer.is_by(&rig.reference, &image);
        assert_eq!(answer.version(), 1);
    });
}

#[test]
fn a_load_that_takes_too_long_leaves_the_model() {
    test(async {
        let set = |settings: &mut Settings| settings.load_time = Duration::from_secs(1);
        let rig = Rig::with(Runtime::builder(), set).await;
        let (image, next) = (Numbers(25).images(1), Reference::new(2));
        rig.file.write(next.safetensors());
        let gate = rig.service.loader.hold().unwrap();
        // The second one waits for the first, which still runs.
        for why in ["was not loaded within 1s, which --load-seconds sets", "an earlier load of"] {
            let slow = rig.post(LOAD, "").await;
            slow.refuses(StatusCode::GATEWAY_TIMEOUT, &["version 1 stays", why]);
            rig.infer(&in_json(&image)).await.is_by(&rig.reference, &image);
        }
        gate.open();
        assert_eq!(rig.post(LOAD, "").await.ok().json()["version"], "2");
        rig.infer(&in_json(&image)).await.is_by(&next, &image);
    });
}

#[test]
fn a_load_during_which_the_device_fails_is_no_mistake_of_the_client() {
    test(async {
        let rig = Rig::with(Runtime::builder().fail_op(20), |_| {}).await;
        let failed = loop {
            let answer = rig.post(LOAD, "").await;
            if answer.status != StatusCode::OK {
                break answer;
            }
        };
        failed.refuses(StatusCode::SERVICE_UNAVAILABLE, &["was not loaded", "the fault plan asked for it"]);
    });
}
