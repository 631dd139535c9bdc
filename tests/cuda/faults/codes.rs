//! A sweep over error codes: whichever code a dead context answers, every waiter gets an error and
//! the process can end.

use crate::faults::{add_one, four, query_until_done, stream};
use crate::support::software::in_child;
use crate::support::{block_on, within_a_minute};
use std::time::{Duration, Instant};
use warpline::prelude::*;
use warpline_test_counts::count;

/// The number of devices of a child process, each of which gets a code of its own.
const DEVICES: usize = 16;

/// The time within which a waiter has to get its error. A tenth of a second is intended; the rest
/// is for slow machines.
const NOTICED_WITHIN: Duration = Duration::from_secs(5);

/// Returns all codes up to 999 and one that no header names, without those that say nothing about a
/// device. The quick suite takes those that GPUs answer most, and every fifteenth of the others.
fn codes() -> Vec<u32> {
    let innocent = |code: &u32| matches!(code, 2 | 3 | 4 | 600 | 800 | 900..=908);
    let common = |code: &u32| matches!(code, 214 | 700 | 710..=720);
    let others = (1..=999).filter(|code| !innocent(code) && !common(code)).step_by(count(15, 1));
    others.chain((1..=999).filter(common)).chain([4711]).collect()
}

/// Launches a kernel on every device, where a planned code poisons it, and checks that every waiter
/// gets an error.
fn every_waiter_gets_an_error() {
    let runtime = Runtime::new().unwrap();
    let waiters: Vec<_> = (0..warpline::cuda::device_count().unwrap())
        .map(|ordinal| {
            let device = runtime.device(DeviceId::Cuda(ordinal)).unwrap();
            std::thread::spawn(move || {
                let [compute, side] = ["compute", "side"].map(|label| stream(&device, label));
                let (x, y, z) = (four(&compute, 1.0), four(&compute, 1.0), four(&side, 1.0));
                // This stream stalls with the device, but no work of its own fails.
                let gate = side.hold().unwrap();
                let bystander = side.read(&z);
                let launched = add_one(&compute, &x, &y);
                let since = Instant::now();
                let outcomes = match ordinal % 3 {
                    0 => [launched.blocking_wait(), bystander.blocking_wait().map(drop)],
                    1 => [block_on(launched), block_on(bystander).map(drop)],
                    _ => [query_until_done(launched), query_until_done(bystander)],
                };
                let [error, bystander] = outcomes.map(Result::unwrap_err);
                assert!(since.elapsed() < NOTICED_WITHIN, "{error}: after {:?}", since.elapsed());
                assert!(matches!(error.kind(), ErrorKind::Fault | ErrorKind::Driver), "{error}");
                assert_eq!(bystander.kind(), ErrorKind::Fault, "{bystander}");
                assert_eq!(device.fault().unwrap().to_string(), bystander.to_string());
                drop(gate);
            })
        })
        .collect();
    waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
}

/// Calls `run` with settings that plan these codes, one per launch and device.
fn planned(codes: &[u32], run: impl FnOnce(&[(&str, &str)])) {
    let poisons: Vec<_> = codes.iter().enumerate().map(|(n, code)| format!("{}:{code}", n + 1)).collect();
    let devices = codes.len().to_string();
    run(&[("SOFTCUDA_POISON_LAUNCH", &poisons.join(",")), ("SOFTCUDA_DEVICES", &devices)]);
}

#[test]
fn whatever_a_lost_context_answers_its_waiters_get_an_error_by_words() {
    for codes in codes().chunks(DEVICES) {
        planned(codes, |plan| {
            let how = [("WARPLINE_COMPLETION", "word"), ("SOFTCUDA_FAULT_SEEN", "context")];
            in_child(&[plan, &how].concat(), || within_a_minute(every_waiter_gets_an_error));
        });
    }
}

#[test]
fn whatever_a_lost_stream_answers_its_waiters_get_an_error_by_words() {
    for codes in codes().chunks(DEVICES) {
        planned(codes, |plan| {
            let how = [("WARPLINE_COMPLETION", "word"), ("SOFTCUDA_FAULT_SEEN", "stream")];
            in_child(&[plan, &how].concat(), || within_a_minute(every_waiter_gets_an_error));
        });
    }
}

#[test]
fn whatever_a_lost_context_answers_its_waiters_get_an_error_by_events() {
    for codes in codes().chunks(DEVICES) {
        planned(codes, |plan| {
            let how = [("WARPLINE_COMPLETION", "event"), ("SOFTCUDA_FAULT_SEEN", "context")];
            in_child(&[plan, &how].concat(), || within_a_minute(every_waiter_gets_an_error));
        });
    }
}

#[test]
fn whatever_a_lost_stream_answers_its_waiters_get_an_error_by_events() {
    for codes in codes().chunks(DEVICES) {
        planned(codes, |plan| {
            let how = [("WARPLINE_COMPLETION", "event"), ("SOFTCUDA_FAULT_SEEN", "stream")];
            in_child(&[plan, &how].concat(), || within_a_minute(every_waiter_gets_an_error));
        });
    }
}
