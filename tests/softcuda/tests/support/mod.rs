//! Runs the body of a test in a child process that finds the software CUDA driver. The driver reads
//! its settings once, and a fault lasts as long as the process.

use std::process::Command;

const CHILD: &str = "SOFTCUDA_TEST_CHILD";

/// Runs `body` in a child process with these variables. Returns what the child wrote to stderr. A
/// test calls this once, before anything else.
pub(crate) fn in_child<F: FnOnce()>(variables: &[(&str, &str)], body: F) -> String {
    if std::env::var_os(CHILD).is_some() {
        // SAFETY: `alarm` sets a timer whose signal ends the process if the driver hangs.
        unsafe { libc::alarm(120) };
        body();
        std::process::exit(0);
    }
    let (succeeded, stderr) = run::<F>(variables);
    assert!(succeeded, "the child failed:\n{stderr}");
    stderr
}

/// Like [`in_child`], for a body that ends the process by a signal.
pub(crate) fn dies_in_child<F: FnOnce()>(variables: &[(&str, &str)], body: F) {
    if std::env::var_os(CHILD).is_some() {
        body();
        std::process::exit(0);
    }
    let (succeeded, stderr) = run::<F>(variables);
    assert!(!succeeded && !stderr.contains("panicked"), "the child did not die of a signal:\n{stderr}");
}

fn run<F>(variables: &[(&str, &str)]) -> (bool, String) {
    // The type of the test's closure is named after the test: `crate::module::test::{{closure}}`.
    let name = std::any::type_name::<F>().split("::").collect::<Vec<_>>();
    let test =
        name[1..].iter().take_while(|part| !part.starts_with('{')).copied().collect::<Vec<_>>().join("::");
    let library = warpline_softcuda::library_dir().expect("the library was built with this test");
    let mut command = Command::new(std::env::current_exe().expect("a test has an executable"));
    command.args([&test, "--exact", "--nocapture", "--test-threads=1"]);
    command.env("LD_LIBRARY_PATH", library).env(CHILD, "1").env_remove("CUDA_VISIBLE_DEVICES");
    command.envs(variables.iter().copied());
    let output = command.output().expect("the child starts");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!stdout.contains("running 0 tests"), "no test is called {test}");
    (output.status.success(), format!("{stderr}{}", if output.status.success() { "" } else { &stdout }))
}
