"""Checks the exit statuses of the service, on the CPU device.

    cargo build -p warpline-examples --features serve --example serve
    python exit_test.py target/debug/examples/serve

It needs numpy and tritonclient, as client_test.py does, whose weights it uses.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request

from client_test import random_weights, write


class Process:
    """A service, and the address that it says it listens on."""

    def __init__(self, program, weights, *options):
        options = ["--disable-cuda", "--listen", "127.0.0.1:0", "--model", weights, *options]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        self.process = subprocess.Popen([program, *options], **streams)
        self.line = self.process.stdout.readline()
        self.address = self.line.split(",")[0].removeprefix("listening on ")

    def ask(self, path, rows=0):
        """Returns the status and the body, or 0 and the reason if there is no connection."""
        tensor = {"name": "pixels", "shape": [rows, 64], "datatype": "FP32", "data": [8] * 64 * rows}
        body = json.dumps({"inputs": [tensor]}).encode() if rows else None
        try:
            with urllib.request.urlopen(self.address + path, body, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except (urllib.error.URLError, ConnectionError) as error:
            return 0, str(error)

    def infer(self, rows=1):
        return self.ask("/v2/models/digits/infer", rows)

    def ends(self, status, *parts):
        """Checks the exit status, and that the output has these parts."""
        output, _ = self.process.communicate(timeout=60)
        output = self.line + output
        assert self.process.returncode == status, f"{self.process.returncode}, not {status}: {output}"
        for part in parts:
            assert part in output, f"{part!r} is not in {output!r}"


def main(program):
    weights = os.path.join(tempfile.mkdtemp(), "digits.safetensors")
    write(weights, random_weights(1))
    start = lambda *options: Process(program, weights, *options)

    for stop in (signal.SIGTERM, signal.SIGINT):
        service = start()
        assert service.infer()[0] == 200
        service.process.send_signal(stop)
        service.ends(0, "all accepted requests were answered")
    print("a signal: 0")

    # The row waits for others, until the stop.
    service = start("--max-wait-us", "50000000")
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(service.infer()))
    waiting.start()
    while "warpline_serve_queued_rows 1\n" not in service.ask("/metrics")[1]:
        pass
    service.process.send_signal(signal.SIGTERM)
    service.ends(0, "all accepted requests were answered")
    waiting.join()
    assert answers[0][0] == 200, answers
    print("a signal while a request waits: answered, 0")

    # This many rows take longer than there is time.
    rows = ["--max-rows", "20000", "--max-queued", "20000", "--in-flight", "1"]
    service = start("--max-wait-us", "50000000", "--drain-seconds", "0", *rows)
    waiting = threading.Thread(target=lambda: service.infer(19999))
    waiting.start()
    while "warpline_serve_queued_rows 19999\n" not in service.ask("/metrics")[1]:
        pass
    service.process.send_signal(signal.SIGTERM)
    service.ends(4, "stopped at the deadline")
    waiting.join()
    print("a signal, and no time to drain: 4")

    service = start("--fail-at-op", "60")
    while service.infer()[0] == 200:
        pass
    service.ends(3, "the fault plan asked for it")
    print("a device fault: 3")

    service = start("--fail-at-op", "60", "--on-fault", "stay")
    while service.infer()[0] == 200:
        pass
    for _ in range(3):
        status, why = service.infer()
        assert status == 503 and "the fault plan asked for it" in why, why
        assert service.ask("/v2/health/ready")[0] == 503
    assert service.ask("/v2/health/live")[0] == 200
    service.process.send_signal(signal.SIGTERM)
    service.ends(3, "the fault plan asked for it")
    print("a device fault, and the service stays until a signal: 3")

    start("--fail-at-op", "2").ends(1, "the fault plan asked for it")
    start("--max-queued", "1").ends(1, "max_queued is 1")
    start("--on-fault", "ignore").ends(2, "invalid value 'ignore'")
    os.remove(weights)
    start().ends(1, "cannot read", "--save")
    print("a service that does not start: 1, and wrong arguments: 2")


if __name__ == "__main__":
    main(sys.argv[1])
