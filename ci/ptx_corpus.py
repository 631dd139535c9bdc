"""The compiler runs of ci/ptx-corpus."""

import re
import sys
import tempfile
from pathlib import Path

from ptx import NVIDIA, Nvrtc, assemble, differences, rewrite

SOURCES = Path("runtime/ptx/tests/corpus")
COMMITTED = SOURCES / "ptx"
# A source that needs a later one says so: // Compiled for sm_80.
TARGET = "sm_70"
# Cooperative groups are headers of the CUDA runtime.
OPTIONS = ["-lineinfo", f"--include-path={NVIDIA / 'cuda_runtime/include'}"]


def compile_all(to):
    nvrtc = Nvrtc()
    for source in sorted(SOURCES.glob("*.cu")):
        stated = re.search(r"^// Compiled for (sm_\d+)\.$", source.read_text(), re.MULTILINE)
        ptx = nvrtc.compile(source, [], stated[1] if stated else TARGET, OPTIONS)
        # NVRTC puts the working directory before the names of files.
        ptx = re.sub(r'(\.file\s+\d+ )"[^"]*/', r'\1"', ptx)
        (to / source.with_suffix(".ptx").name).write_text(ptx)


def target_of(ptx):
    return re.search(r"^\.target (sm_\d+)", ptx.read_text(), re.MULTILINE)[1]


def check():
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        compile_all(scratch)
        if stale := differences(scratch, COMMITTED):
            sys.exit(f"ci/ptx-corpus: not what {SOURCES} gives: {', '.join(stale)}; run ci/ptx-corpus and commit {COMMITTED}")
        kernels = [entry for ptx in sorted(scratch.glob("*.ptx")) for entry in assemble(ptx, target_of(ptx), scratch)]
        print(f"ptxas accepts {len(kernels)} kernels")


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        check()
    elif not sys.argv[1:]:
        rewrite(COMMITTED, compile_all)
    else:
        sys.exit("usage: ci/ptx-corpus [--check]")
