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
        if file.is_file():
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


def note_passed(step, hashed, seconds):
    """Records that the step passed with sources of this hash."""
    rows = record()
    rows[step.name] = [step.name, hashed, date.today().isoformat(), f"{seconds:.0f}"]
    lines = ["\t".join(rows[name]) for name in sorted(rows)]
    RECORD.write_text("\n".join(["step\tsources\tdate\tseconds", *lines]) + "\n")


def included_in_models():
    """Returns the files of the runtime that the loom models compile."""
    models = ROOT / "ci/loom-models/src/lib.rs"
    paths = re.findall(r'#\[path = "([^"]+)"\]', models.read_text())
    files = [(models.parent / path).resolve().relative_to(ROOT) for path in paths]
    # A module in a folder has files of its own there.
    return [str(file.parent if file.name == "mod.rs" else file) for file in files]


TESTS = "cargo test --workspace --all-features"
LIBRARY = ["Cargo.lock", "Cargo.toml", "lib.rs", "kernels", "ops", "runtime"]
# The CUDA backend and the driver's stand-in, with what runs on them.
SOFTWARE_DRIVER = ["runtime/cuda", "runtime/driver", "tests/contract", "tests/cuda", "tests/softcuda", "tests/support"]

# The steps of ci/check, cheapest first.
CHECK = [
    Step("room", "ci/room"),
    Step("format", "cargo fmt --all -- --check"),
    # From the source alone: uses between modules, docs/files.md, links of decisions, the table of
    # results.
    Step("modules", "ci/modules && ci/files --check && benches/summary --check"),
    Step("dependencies", "ci/deny"),
    Step("clippy", "cargo clippy --workspace --all-targets --all-features --quiet -- -D warnings"),
    # Alone, because other packages of the workspace switch features on.
    Step(
        "fewer features",
        """cargo clippy -p warpline -p warpline-runtime --no-default-features --quiet -- -D warnings
        cargo run -p warpline-defaults --quiet""",
    ),
    Step("docs", "ci/docs"),
    Step("tests", TESTS),
    Step("device code on the host", "ci/device-code-on-host"),
    Step("examples", "ci/examples"),
]

# The further steps of ci/all.
LONG = [
    Step("full tests", f"WARPLINE_TESTS=full {TESTS}", [*LIBRARY, "docs", "examples", "README.md", "tests"]),
    Step("repeat", "ci/repeat", [*LIBRARY, "tests", "ci/repeat"]),
    Step("ptx", "ci/ptx --check", ["ci/ptx", "ci/ptx.py", "kernels/cuda", "kernels/ptx"]),
    Step("ptx-corpus", "ci/ptx-corpus --check", ["ci/ptx", "ci/ptx-corpus", "ci/ptx.py", "ci/ptx_corpus.py", "runtime/ptx/tests/corpus"]),
    Step("ptx-forms", "ci/ptx --check && ci/ptx-forms", ["ci/ptx-forms", "runtime/ptx/tests"]),
    Step("switches", "ci/switches", ["ci/switches", *SOFTWARE_DRIVER]),
    Step("nvrtc", "ci/with-nvrtc", ["ci/nvrtc", "ci/with-nvrtc", "runtime/cuda/src/modules", "tests/cuda/nvrtc.rs", "tests/softcuda"]),
    Step("nvtx", "ci/with-nvtx", ["ci/with-nvtx", "runtime/cuda/src/profiling", "tests/cuda/nvtx.rs", "tests/softcuda"]),
    Step("fuzz", "ci/fuzz", ["ci/fuzz", "ops/src/data/csv.rs", "ops/src/nn/safetensors.rs", "runtime/order/src", "runtime/ptx/src", "tests/fuzz", "tests/order/oracle"]),
    Step("loom", "ci/loom", ["ci/loom", "ci/loom-models", *included_in_models()]),
    Step("loom weakened", "ci/loom --weakened", ["ci/loom", "ci/loom-models", *included_in_models()]),
    Step("cudarc", "ci/cudarc", ["ci/cudarc", "ci/cudarc-expected", "runtime/ptx/src", "tests/softcuda"]),
    Step("numba", "ci/numba", ["ci/numba", "ci/numba-expected", "ci/numba-tests.py", "runtime/ptx/src", "tests/softcuda"]),
    Step("sanitize", "ci/sanitize", ["ci/sanitize", *LIBRARY, "tests"]),
    Step("copied", "ci/copied", [*LIBRARY, "README.md", "ci/copied", "docs/from-pytorch.md", "docs/guide", "examples"]),
    # A tenth of the work gives no figures.
    Step("benches", "benches/run --quick >/dev/null", [*LIBRARY, "benches"]),
    Step("gpu kit", "ci/gpu-kit-rehearsal", ["benches/cuda_device", "ci/gpu-kit", "ci/gpu-kit-rehearsal", "ci/gpu-kit-run", *SOFTWARE_DRIVER]),
    Step("shell scripts", "ci/shellcheck", ["benches", "ci"]),
    Step("package", "ci/package", [*LIBRARY, "README.md", "ci/package"]),
]
