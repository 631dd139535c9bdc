"""The compiler runs of ci/ptx-corpus."""

import re
import sys
import tempfile
from pathlib import Path

from ptx import Nvrtc, assemble, differences, rewrite

SOURCES = Path("runtime/ptx/tests/corpus")
COMMITTED = SOURCES / "ptx"
TARGET = "sm_70"
OPTIONS = ["-lineinfo"]


def compile_all(to):
    nvrtc = Nvrtc()
    for source in sorted(SOURCES.glob("*.cu")):
        ptx = nvrtc.compile(source, [], TARGET, OPTIONS)
        # NVRTC puts the working directory before the names of files.
        ptx = re.sub(r'(\.file\s+\d+ )"[^"]*/', r'\1"', ptx)
        (to / source.with_suffix(".ptx").name).write_text(ptx)


def check():
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        compile_all(scratch)
        if stale := differences(scratch, COMMITTED):
            sys.exit(f"ci/ptx-corpus: not what {SOURCES} gives: {', '.join(stale)}; run ci/ptx-corpus and commit {COMMITTED}")
        kernels = [entry for ptx in sorted(scratch.glob("*.ptx")) for entry in assemble(ptx, TARGET, scratch)]
        print(f"ptxas accepts {len(kernels)} kernels")


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        check()
    elif not sys.argv[1:]:
        rewrite(COMMITTED, compile_all)
    else:
        sys.exit("usage: ci/ptx-corpus [--check]")
