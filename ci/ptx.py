"""The compiler runs of ci/ptx and ci/ptx-corpus: NVRTC on their *.cu, and ptxas on its output."""

import ctypes
import re
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

SOURCES = Path("kernels/cuda")
COMMITTED = Path("kernels/ptx")
NVIDIA = Path(sysconfig.get_path("purelib"), "nvidia")
# IEEE arithmetic as on the host: denormals are kept, quotients and roots are correctly rounded, and
# a product is rounded before an addition unless the source calls fmaf.
OPTIONS = [
    "--std=c++17",
    "--fmad=false",
    "--ftz=false",
    "--prec-div=true",
    "--prec-sqrt=true",
]
TARGET = "sm_70"
ARCHITECTURES = ["sm_70", "sm_75", "sm_80", "sm_90", "sm_100", "sm_120"]
# On Pascal, runtime/cuda/src/modules/requirements.rs replaces the target as `for_pascal` does. sm_62
# is left out. Seven kernels spill there, and its only board, the Jetson TX2, has no CUDA after 10.2.
PASCAL_TARGET = "sm_60"
PASCAL_ARCHITECTURES = ["sm_60", "sm_61"]


class Nvrtc:
    def __init__(self):
        self.lib = ctypes.CDLL(str(NVIDIA / "cuda_nvrtc/lib/libnvrtc.so.12"))
        self.lib.nvrtcGetErrorString.restype = ctypes.c_char_p

    def call(self, name, *arguments):
        code = getattr(self.lib, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name}: {self.lib.nvrtcGetErrorString(code).decode()}")

    def text(self, program, what):
        size = ctypes.c_size_t()
        self.call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self.call(f"nvrtcGet{what}", program, text)
        return text.value.decode()

    def compile(self, source, headers, target, options):
        """Returns PTX for a target. Sources have their bare names, so the result has no path."""
        names = [header.name.encode() for header in headers]
        texts = [header.read_bytes() for header in headers]
        strings = lambda items: (ctypes.c_char_p * len(items))(*items)
        program = ctypes.c_void_p()
        self.call("nvrtcCreateProgram", ctypes.byref(program), source.read_bytes(), source.name.encode(),
                  len(headers), strings(texts), strings(names))
        architecture = f"--gpu-architecture={target.replace('sm', 'compute')}"
        options = [option.encode() for option in [architecture, *options]]
        code = self.lib.nvrtcCompileProgram(program, len(options), strings(options))
        log = self.text(program, "ProgramLog")
        if code != 0 or log.strip():
            sys.exit(f"ci/ptx: {source}:\n{log}")
        ptx = self.text(program, "PTX")
        self.call("nvrtcDestroyProgram", ctypes.byref(program))
        return without_unused(ptx)


def without_unused(ptx):
    """Removes the constants that NVRTC declares for its headers and ours but no code uses."""
    words = re.findall(r"[\w$]+", ptx)
    unused = lambda line: (name := re.match(r"\.global .*?([\w$]+)(\[\d+\])?( = .*)?;$", line)) and words.count(name[1]) == 1
    return "".join(line for line in ptx.splitlines(keepends=True) if not unused(line))


def compile_all(to):
    nvrtc = Nvrtc()
    headers = sorted(SOURCES.glob("*.cuh"))
    for source in sorted(SOURCES.glob("*.cu")):
        text = nvrtc.compile(source, headers, TARGET, OPTIONS)
        (to / source.with_suffix(".ptx").name).write_text(text)


def for_pascal(ptx):
    """Returns the text that a GPU of Pascal loads."""
    line = lambda target: f"\n.target {target}\n"
    assert ptx.count(line(TARGET)) == 1
    return ptx.replace(line(TARGET), line(PASCAL_TARGET))


def differences(made, committed):
    """Returns the names of files that differ between `made` and the repository."""
    names = {path.name for folder in (made, committed) for path in folder.glob("*.ptx")}
    text = lambda path: path.read_text() if path.exists() else None
    return sorted(name for name in names if text(made / name) != text(committed / name))


def rewrite(committed, compile_all):
    committed.mkdir(exist_ok=True)
    for old in committed.glob("*.ptx"):
        old.unlink()
    compile_all(committed)


def assemble(ptx, architecture, scratch):
    """Yields (kernel, registers, bytes of shared memory, bytes of spills and stack) per entry."""
    command = [NVIDIA / "cuda_nvcc/bin/ptxas", "-v", f"-arch={architecture}", ptx, "-o", scratch / "out.cubin"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"ci/ptx: {ptx.name} for {architecture}:\n{done.stderr}")
    for entry in re.split(r"Compiling entry function ", done.stderr)[1:]:
        number = lambda pattern: int((re.search(pattern, entry) or [0, 0])[1])
        memory = sum(number(rf"(\d+) bytes {what}") for what in ("stack frame", "spill stores", "spill loads"))
        yield re.match(r"'(\w+)'", entry)[1], number(r"Used (\d+) registers"), number(r"(\d+) bytes smem"), memory


def check():
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        compile_all(scratch)
        stale = differences(scratch, COMMITTED)
        if stale:
            sys.exit(f"ci/ptx: not what kernels/cuda gives: {', '.join(stale)}; run ci/ptx and commit kernels/ptx")
        pascal = scratch / "pascal"
        pascal.mkdir()
        for ptx in scratch.glob("*.ptx"):
            (pascal / ptx.name).write_text(for_pascal(ptx.read_text()))
        assembled = [(pascal, architecture) for architecture in PASCAL_ARCHITECTURES]
        assembled += [(scratch, architecture) for architecture in ARCHITECTURES]
        rows, spilling = {}, []
        for folder, architecture in assembled:
            for ptx in sorted(folder.glob("*.ptx")):
                for kernel, registers, shared, memory in assemble(ptx, architecture, scratch):
                    rows.setdefault(kernel, []).append(f"{registers:4} {shared:6}")
                    if memory:
                        spilling.append(f"{kernel} on {architecture} ({memory} bytes)")
    print("Registers a thread and bytes of shared memory a block")
    print(f"{'':20}" + "".join(f"{architecture:>14}" for _, architecture in assembled))
    for kernel, cells in sorted(rows.items()):
        print(f"{kernel:20}" + "".join(f"{cell:>14}" for cell in cells))
    if spilling:
        sys.exit(f"ci/ptx: registers spill or a stack is used: {', '.join(spilling)}")


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        check()
    elif not sys.argv[1:]:
        rewrite(COMMITTED, compile_all)
    else:
        sys.exit("usage: ci/ptx [--check]")
