"""How ci/check and ci/all run their steps, and what ci/all remembers of them."""
import hashlib
import os
import re
import subprocess
import time
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# A line for each long step that has passed: its name, a hash of its sources, the date, and the
# seconds. It is committed with the change that it covers.
RECORD = ROOT / "ci/passed.tsv"


@dataclass
class Step:
    name: str
    command: str
    # The files and folders that decide whether the step passes. Other changes leave it passed.
    sources: list[str] = field(default_factory=list)


def run(step):
    """Runs a step in a shell, from the root of the repository. Returns whether it passed, and its
    seconds."""
    print(f"\n== {step.name}", flush=True)
    began = time.monotonic()
    # No build continues an earlier one of the same kind, so nothing would read the state of
    # incremental compilation, which is larger than all executables.
    environment = {**os.environ, "CARGO_TERM_COLOR": "never", "CARGO_INCREMENTAL": "0"}
    command = ["bash", "-euo", "pipefail", "-c", step.command]
    passed = subprocess.run(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL).returncode == 0
    return passed, time.monotonic() - began


def print_table(ran):
    """Prints the steps that ran, with their seconds."""
    print(f"\n{'step':<24} {'seconds':>8}")
    for step, passed, seconds in ran:
        print(f"{step.name:<24} {seconds:8.0f}{'' if passed else '  FAILED'}")
    print(f"{'all':<24} {sum(seconds for *_, seconds in ran):8.0f}", flush=True)


def hash_of(step):
    """Returns a hash of the step's command, and of the names and contents of its sources."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *step.sources]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    total = hashlib.sha256(step.command.encode())
    for name in sorted(set(filter(None, names.split("\0")))):
        file = ROOT / name
        # The record is no source, or noting a step would make it stale.
        if file.is_file() and file != RECORD:
            total.update(name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()[:16]


def record():
    """Returns the rows of the record by step."""
    lines = RECORD.read_text().splitlines()[1:] if RECORD.exists() else []
    return {row[0]: row for row in (line.split("\t") for line in lines)}


def is_stale(step):
    """Returns whether the step has not passed since its sources last changed."""
    row = record().get(step.name)
    return row is None or row[1] != hash_of(step)


def note(step, hashed, passed, seconds):
    """Records that the step passed with sources of this hash. A step that failed loses its row, so
    that it is stale until it passes."""
    rows = record()
    rows.pop(step.name, None)
    if passed:
        rows[step.name] = [step.name, hashed, date.today().isoformat(), f"{seconds:.0f}"]
    lines = ["\t".join(rows[name]) for name in sorted(rows)]
    RECORD.write_text("\n".join(["step\tsources\tdate\tseconds", *lines]) + "\n")


def included_in_models():
    """Returns the files of the runtime that the loom models compile."""
    files = []
    for source in sorted((ROOT / "ci/loom-models/src").rglob("*.rs")):
        paths = re.findall(r'#\[path = "([^"]+)"\]', source.read_text())
        files += [(source.parent / path).resolve().relative_to(ROOT) for path in paths]
    # A module in a folder has files of its own there.
    return [str(file.parent if file.name == "mod.rs" else file) for file in files]


TESTS = "cargo test --workspace --all-features"
LIBRARY = ["Cargo.lock", "Cargo.toml", "lib.rs", "kernels", "ops", "runtime"]
# Tests include files of the example `digits`.
SUITES = [*LIBRARY, "examples", "tests"]
# The driver's stand-in.
SOFTWARE_DRIVER = ["Cargo.lock", "Cargo.toml", "runtime/ptx/src", "tests/softcuda"]
# Tests that run on it.
ON_SOFTWARE_DRIVER = [*LIBRARY, "tests"]
MODELS = ["Cargo.lock", "ci/loom", "ci/loom-models", *included_in_models()]
COMPILERS = ["ci/ptx", "ci/ptx.py"]

# The steps of ci/check, cheapest first.
CHECK = [
    Step("room", "ci/room"),
    Step("format", "cargo fmt --all -- --check"),
    # From the source alone: uses between modules, words, docs/files.md, links of decisions, the
    # table of results.
    Step("modules", "ci/modules && ci/words && ci/files --check && benches/summary --check"),
    Step("dependencies", "ci/deny"),
    Step("clippy", "cargo clippy --workspace --all-targets --all-features --quiet -- -D warnings"),
    # Alone, because other packages of the workspace switch features on.
    Step(
        "fewer features",
        """cargo clippy -p warpline -p warpline-runtime --no-default-features --quiet -- -D warnings
        cargo check -p warpline-runtime --no-default-features --tests --quiet
        cargo clippy -p warpline-examples --examples --quiet -- -D warnings
        cargo run -p warpline-defaults --quiet""",
    ),
    Step("docs", "ci/docs"),
    Step("tests", TESTS),
    Step("device code on the host", "ci/device-code-on-host"),
    Step("examples", "ci/examples"),
]

# The further steps of ci/all.
LONG = [
    Step("full tests", f"WARPLINE_TESTS=full {TESTS}", [*SUITES, "README.md", "ci/loom-models", "docs"]),
    Step("repeat", "ci/repeat", [*SUITES, "ci/loom-models", "ci/repeat"]),
    Step("ptx", "ci/ptx --check", [*COMPILERS, "kernels/cuda", "kernels/ptx"]),
    Step("ptx-corpus", "ci/ptx-corpus --check", [*COMPILERS, "ci/ptx-corpus", "ci/ptx_corpus.py", "runtime/ptx/tests/corpus"]),
    Step("ptx-forms", "ci/ptx --check && ci/ptx-forms", [*COMPILERS, "ci/ptx-forms", "runtime/ptx"]),
    Step("large", "cargo test --release -p warpline-tests --all-features --test large -- --ignored", [*LIBRARY, "tests/Cargo.toml", "tests/large"]),
    Step("switches", "WARPLINE_TESTS=full ci/switches", [*ON_SOFTWARE_DRIVER, "ci/switches"]),
    Step("nvrtc", "ci/with-nvrtc", [*ON_SOFTWARE_DRIVER, "ci/nvrtc", "ci/pip-install", "ci/with-nvrtc"]),
    Step("nvtx", "ci/with-nvtx", [*ON_SOFTWARE_DRIVER, "ci/pip-install", "ci/with-nvtx"]),
    Step("fuzz", "ci/fuzz", [*LIBRARY, "ci/fuzz", "tests/counts", "tests/fuzz", "tests/order/oracle", "tests/softcuda", "tests/support"]),
    Step("loom", "ci/loom", MODELS),
    Step("loom weakened", "ci/loom --weakened", MODELS),
    Step("cudarc", "ci/cudarc", [*COMPILERS, *SOFTWARE_DRIVER, "ci/cudarc", "ci/cudarc-expected"]),
    Step("numba", "ci/numba", [*SOFTWARE_DRIVER, "ci/numba", "ci/numba-expected", "ci/numba-tests.py", "ci/pip-install"]),
    Step("sanitize", "WARPLINE_TESTS=full ci/sanitize", [*SUITES, "ci/sanitize", "ci/sanitize-suppressions"]),
    Step("copied", "ci/copied", [*LIBRARY, "README.md", "ci/copied", "docs/from-pytorch.md", "docs/guide", "examples"]),
    Step("service", "ci/service", [*LIBRARY, "ci/service", "examples"]),
    # A tenth of the work gives no figures.
    Step("benches", "benches/run --quick >/dev/null", [*LIBRARY, "benches", "examples", "tests/softcuda"]),
    Step("gpu kit", "ci/gpu-kit-rehearsal", [*ON_SOFTWARE_DRIVER, "benches", "ci/gpu-kit", "ci/gpu-kit-rehearsal", "ci/gpu-kit-run", "examples"]),
    Step("shell scripts", "ci/shellcheck", [".ci", "benches/run", "benches/versus_pytorch", "ci"]),
    # Packages that are built together share their features, so other steps see none alone.
    Step("features", "ci/features", [*LIBRARY, "ci/features", "examples"]),
    Step("package", "ci/package", [*LIBRARY, "README.md", "ci/package"]),
]
