//! Runs tests in child processes that load the software CUDA driver. The driver reads its settings
//! once, and its faults last as long as the process.

use std::io::Write;
use std::process::{Command, Output};
use warpline_test_counts::count;

const CHILD: &str = "WARPLINE_TEST_CHILD";
/// The seconds after which a child that hangs is killed.
const WATCHDOG_SECONDS: u32 = 120;

fn test_binary(variables: &[(&str, &str)]) -> Command {
    let library = warpline_softcuda::library_dir().expect("the library was built with this test");
    let mut command = Command::new(std::env::current_exe().expect("a test has an executable"));
    command.env("LD_LIBRARY_PATH", library).env("SOFTCUDA_DEVICES", "2").env("RUST_BACKTRACE", "0");
    for variable in [
        "CUDA_VISIBLE_DEVICES",
        "CUDA_LAUNCH_BLOCKING",
        "NVTX_INJECTION64_PATH",
        "WARPLINE_ALLOW_TF32",
        "WARPLINE_CHECK_KERNELS",
        "WARPLINE_COMPLETION",
        "WARPLINE_CPU_DEVICES",
        "WARPLINE_CUBLAS",
        "WARPLINE_KEEP_PTX",
        "WARPLINE_KERNELS",
        "WARPLINE_NVRTC_ARCH",
        "WARPLINE_NVRTC_INCLUDE",
        "WARPLINE_ORDER",
        "WARPLINE_SCHEDULE",
        "WARPLINE_SYNC",
        "WARPLINE_WAKE_UP",
    ] {
        command.env_remove(variable);
    }
    command.envs(variables.iter().copied());
    command
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Runs the tests of a module of this binary that need a CUDA device, on the software CUDA driver
/// with these variables. Returns their output.
///
/// The module selects tests by name: `graphs::`, or an empty string for all.
#[track_caller]
pub(crate) fn run_cuda_tests(module: &str, variables: &[(&str, &str)]) -> String {
    none_is_skipped(&cuda_tests(module, &[]), variables)
}

/// The tests that need a CUDA device, cut down in the quick suite.
#[derive(Default)]
pub(crate) struct Third<'a> {
    /// Which of three: 0, 1 or 2.
    pub(crate) number: usize,
    /// The quick suite also runs the tests whose names contain one of these.
    pub(crate) and_all: &'a [&'a str],
    /// Neither suite runs the tests whose names contain one of these.
    pub(crate) skipped: &'a [&'a str],
}

/// Like [`run_cuda_tests`], but the quick suite runs a third of the tests.
#[track_caller]
pub(crate) fn run_third_of_cuda_tests(third: &Third<'_>, variables: &[(&str, &str)]) -> String {
    let of = count(3, 1);
    let tests = cuda_tests("", third.skipped).into_iter().enumerate().filter(|(at, name)| {
        at % of == third.number % of || third.and_all.iter().any(|part| name.contains(part))
    });
    none_is_skipped(&tests.map(|(_, name)| name).collect::<Vec<_>>(), variables)
}

#[track_caller]
fn none_is_skipped(tests: &[String], variables: &[(&str, &str)]) -> String {
    let text = all_pass(tests, variables);
    assert!(!text.contains(SKIPPED), "{variables:?}: the tests need more devices:\n{text}");
    text
}

/// Like [`run_cuda_tests`], on a driver with one device. Returns what the tests said to
/// [`report_skipped`].
#[track_caller]
pub(crate) fn run_cuda_tests_on_one_device(module: &str) -> Vec<String> {
    let text = all_pass(&cuda_tests(module, &[]), &[("SOFTCUDA_DEVICES", "1")]);
    // A line may begin with other output.
    text.lines().filter_map(|line| Some(line.split_once(SKIPPED)?.1.to_owned())).collect()
}

const SKIPPED: &str = "skipped: ";

/// Says on standard error that a test does not run on this machine, also if the test harness
/// captures the output of tests.
pub(crate) fn report_skipped(why: &str) {
    // In one call, since other tests write too.
    let _ = std::io::stderr().write_all(format!("{SKIPPED}{why}\n").as_bytes());
}

/// Returns the names of the tests of a module that need a CUDA device, without those that contain
/// one of `skipped`.
fn cuda_tests(module: &str, skipped: &[&str]) -> Vec<String> {
    let mut command = test_binary(&[]);
    command.args(["--ignored", "--list", "--format=terse", module]);
    command.args(skipped.iter().flat_map(|name| ["--skip", name]));
    let list = command.output().expect("it starts");
    text(&list).lines().filter_map(|line| Some(line.strip_suffix(": test")?.to_owned())).collect()
}

#[track_caller]
fn all_pass(tests: &[String], variables: &[(&str, &str)]) -> String {
    assert!(!tests.is_empty(), "no test needs a CUDA device");
    let mut command = test_binary(variables);
    let output = command.args(["--ignored", "--exact"]).args(tests).output().expect("it starts");
    let text = text(&output);
    assert!(output.status.success(), "{variables:?}:\n{text}");
    let tests = tests.len();
    assert!(text.contains(&format!("{tests} passed; 0 failed")), "{variables:?}:\n{text}");
    println!("{tests} tests passed on the software CUDA driver with {variables:?}");
    text
}

/// Runs `body` in a child process on the software CUDA driver with these variables, and returns its
/// output. A test calls it once, before anything else.
#[track_caller]
pub(crate) fn in_child<F: FnOnce()>(variables: &[(&str, &str)], body: F) -> String {
    if std::env::var_os(CHILD).is_some() {
        // SAFETY: `alarm` only sets a timer, whose signal ends the process if it hangs.
        unsafe { libc::alarm(WATCHDOG_SECONDS) };
        body();
        std::process::exit(0);
    }
    // The type of the test's closure is named after the test: `crate::module::test::{{closure}}`.
    let name = std::any::type_name::<F>().split("::").collect::<Vec<_>>();
    let test: Vec<_> = name[1..].iter().take_while(|part| !part.starts_with('{')).copied().collect();
    let test = test.join("::");
    let mut command = test_binary(variables);
    command.args([&test, "--exact", "--nocapture", "--test-threads=1", "--include-ignored"]).env(CHILD, "1");
    let output = command.output().expect("it starts");
    let text = text(&output);
    assert!(!text.contains("running 0 tests"), "no test is called {test}");
    assert!(output.status.success(), "{variables:?}: {}\n{text}", output.status);
    text
}
