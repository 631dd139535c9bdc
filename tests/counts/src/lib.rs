//! The two sizes of long tests: one for every change, one for the nightly run.
//!
//! A test that repeats a check many times names both counts where it needs one. `cargo test` takes
//! the small ones. With `WARPLINE_TESTS=full`, as in `ci/all`, it takes the full ones.

/// Returns `full` if the variable `WARPLINE_TESTS` is `full`, and `quick` if it is not set.
///
/// # Panics
/// If the variable has any other value.
pub fn count<N>(quick: N, full: N) -> N {
    match std::env::var("WARPLINE_TESTS") {
        Err(std::env::VarError::NotPresent) => quick,
        Ok(tests) if tests == "full" => full,
        other => panic!("WARPLINE_TESTS is {other:?}; expected full, or no such variable"),
    }
}
