//! Planned failures, from `SOFTCUBLAS_FAIL`.

use crate::status::Status;
use std::sync::OnceLock;

struct Failure {
    entry: String,
    nth: u64,
    status: Status,
}

/// Returns the status that the `nth` call of `entry`, from 1, is planned to fail with.
pub(crate) fn planned(entry: &str, nth: u64) -> Option<Status> {
    static PLAN: OnceLock<Vec<Failure>> = OnceLock::new();
    let plan = PLAN.get_or_init(|| std::env::var("SOFTCUBLAS_FAIL").map_or(Vec::new(), |text| parse(&text)));
    plan.iter().find(|failure| failure.entry == entry && failure.nth == nth).map(|failure| failure.status)
}

/// Parses planned failures. Reports malformed ones on stderr and skips them.
fn parse(text: &str) -> Vec<Failure> {
    let failure = |part: &str| {
        let [entry, nth, status] = part.split(':').collect::<Vec<_>>()[..] else { return None };
        Some(Failure {
            entry: entry.to_owned(),
            nth: nth.parse().ok()?,
            status: Status(status.parse().ok()?),
        })
    };
    let parts = text.split(',').filter(|part| !part.is_empty());
    parts
        .filter_map(|part| {
            failure(part).or_else(|| {
                eprintln!("softcublas: SOFTCUBLAS_FAIL: {part:?} is not name:nth:status");
                None
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_read_and_what_is_malformed_is_left_out() {
        let plan = parse("cublasCreate_v2:1:3,cublasSgemm_v2:x:13,cublasSgemm_v2:20:13,nothing");
        let plan: Vec<_> =
            plan.iter().map(|failure| (failure.entry.as_str(), failure.nth, failure.status.0)).collect();
        assert_eq!(plan, [("cublasCreate_v2", 1, 3), ("cublasSgemm_v2", 20, 13)]);
    }
}
