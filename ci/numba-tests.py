"""Runs test modules of numba-cuda in parallel, without the tests in ci/numba-expected."""

import faulthandler
import importlib.metadata
import io
import multiprocessing
import os
import pkgutil
import sys
import unittest
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

# A module that takes longer than this counts as hung.
SECONDS = 600
ROOT = "numba.cuda.tests"
FOLDERS = ["cudapy", "cudadrv", "doc_examples", "nrt"]


def expected():
    """Returns the kind of each module and test that does not run."""
    lines = Path(__file__).with_name("numba-expected").read_text().splitlines()
    fields = [line.split() for line in lines if line and not line.startswith("#")]
    return {name: kind for kind, name in fields}


def modules():
    """Yields the names of all test modules, relative to ROOT."""
    for folder in FOLDERS:
        package = importlib.import_module(f"{ROOT}.{folder}")
        for module in pkgutil.iter_modules(package.__path__):
            if module.name.startswith("test_"):
                yield f"{folder}.{module.name}"


def tests_in(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from tests_in(test)
        else:
            yield test


def processor_time():
    """Returns the processor time of this process and of those that it started, in seconds."""
    return sum(os.times()[:4])


def run(module, left_out):
    """Runs the tests of a module, and returns what is to be reported."""
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    began, output = processor_time(), io.StringIO()
    names, suite = [], unittest.TestSuite()
    for test in tests_in(unittest.defaultTestLoader.loadTestsFromName(f"{ROOT}.{module}")):
        name = test.id().removeprefix(f"{ROOT}.")
        names.append(name)
        if name not in left_out:
            suite.addTest(test)
    result = unittest.TextTestRunner(stream=output, verbosity=1).run(suite)
    faulthandler.cancel_dump_traceback_later()
    return {
        "names": names,
        "ran": result.testsRun,
        "skipped": len(result.skipped),
        "passed": result.wasSuccessful(),
        "closing": ", ".join(line for line in output.getvalue().splitlines()[-3:] if line),
        "output": output.getvalue(),
        "seconds": processor_time() - began,
    }


def main():
    asked = [argument for argument in sys.argv[1:] if argument != "--times"]
    left_out = expected()
    every = list(modules())
    chosen = asked or [module for module in every if module not in left_out]
    problems, names, ran, skipped = [], set(every), 0, 0
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        running = {pool.submit(run, module, left_out): module for module in chosen}
        for done in as_completed(running):
            module = running[done]
            result = done.result()
            names.update(result["names"])
            ran, skipped = ran + result["ran"], skipped + result["skipped"]
            times = f" ({result['seconds']:.1f} s)" if "--times" in sys.argv else ""
            print(f"{module}: {result['closing']}{times}", flush=True)
            if not result["passed"]:
                print(result["output"], file=sys.stderr, flush=True)
                problems.append(f"{module} has to pass, and fails as above")
    for name in left_out:
        module = ".".join(name.split(".")[:2])
        if name not in names and (module in chosen or module not in every):
            problems.append(f"there is no test {name}; take it out of ci/numba-expected")
    for problem in problems:
        print(f"ci/numba: {problem}", file=sys.stderr)
    if problems:
        sys.exit(f"ci/numba: {len(problems)} problems")
    version = importlib.metadata.version("numba-cuda")
    listed = sum(1 for name in left_out if name.count(".") > 1)
    print(
        f"numba-cuda {version}: {ran - skipped} tests of {len(chosen)} modules pass, {skipped} skip themselves, "
        f"{listed} and {len(left_out) - listed} modules are listed"
    )


if __name__ == "__main__":
    main()
