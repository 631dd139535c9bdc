"""Checks the answers of the service and its exit statuses. It needs Python's own library alone.

    cargo build -p warpline-examples --features serve --example serve
    python process_test.py target/debug/examples/serve
    python process_test.py target/debug/examples/serve --device cuda:0

Faults are rehearsed on the CPU device alone, which is the default.
"""

import atexit
import contextlib
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

SHAPES = {"0.weight": (128, 64), "0.bias": (128,), "2.weight": (10, 128), "2.bias": (10,)}


def random_weights(seed):
    """Returns multiples of 1/8 within ±1/2: the sums of the network are exact then, in any order."""
    numbers = random.Random(seed)
    return {
        name: [numbers.randint(-4, 4) / 8 for _ in range(shape[0] * (shape[1:] or (1,))[0])]
        for name, shape in SHAPES.items()
    }


def floats(values):
    return struct.pack(f"<{len(values)}f", *values)


def write(path, weights):
    """Writes a file of safetensors: the length of the JSON, the JSON, and the tensors."""
    header, data = {}, b""
    for name, values in weights.items():
        begin = len(data)
        data += floats(values)
        header[name] = {"dtype": "F32", "shape": SHAPES[name], "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def linear(weights, layer, x):
    weight, bias = weights[f"{layer}.weight"], weights[f"{layer}.bias"]
    return [
        sum(w * value for w, value in zip(weight[row * len(x) :], x)) + bias[row] for row in range(len(bias))
    ]


def forward(weights, pixels):
    hidden = linear(weights, 0, [pixel / 16 for pixel in pixels])
    return linear(weights, 2, [max(value, 0) for value in hidden])


def until(condition, seconds, what):
    """Waits until a condition holds. Fails with its name if it does not within so many seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"after {seconds} s still waiting for: {what}"
        time.sleep(0.01)


class Process:
    """A service, and the address that it says it listens on."""

    def __init__(self, program, *options, starting=lambda process: None):
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        self.process = subprocess.Popen([program, "--listen", "127.0.0.1:0", *options], **streams)
        # After a failed check it would stay.
        atexit.register(self.process.kill)
        starting(self.process)
        self.line = self.process.stdout.readline()
        self.address = self.line.split(",")[0].removeprefix("listening on ")

    def ask(self, path, body=None):
        """Returns the status and the body, or 0 and the reason if there is no connection."""
        try:
            with urllib.request.urlopen(self.address + path, body, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except (urllib.error.URLError, ConnectionError) as error:
            return 0, str(error)

    def infer(self, rows=1, pixels=(8,) * 64):
        tensor = {"name": "pixels", "shape": [rows, 64], "datatype": "FP32", "data": pixels * rows}
        return self.ask("/v2/models/digits/infer", json.dumps({"inputs": [tensor]}).encode())

    def queues(self, rows):
        """Waits until this many rows are queued."""
        line = f'warpline_batcher_queued_rows{{batcher="digits"}} {rows}\n'
        until(lambda: line in self.ask("/metrics")[1], 60, f"{rows} queued rows")

    def fails(self):
        """Asks until a request is not answered."""
        until(lambda: self.infer()[0] != 200, 60, "a request without an answer")

    def begins(self):
        """Begins a request whose body does not arrive, and returns its connection."""
        connection = socket.create_connection(self.address.removeprefix("http://").split(":"), 60)
        connection.sendall(
            b"POST /v2/models/digits/infer HTTP/1.1\r\nhost: digits\r\n"
            b"content-length: 9\r\nexpect: 100-continue\r\n\r\n"
        )
        # The service reads the body by now.
        assert b" 100 " in connection.recv(1024)
        return connection

    def ends(self, status, *parts):
        """Checks the exit status, and that the output has these parts."""
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"after 60 s still waiting for: exit status {status}") from None
        # Not by `communicate`, which skips lines that were read with the first one.
        output = self.line + self.process.stdout.read()
        assert self.process.returncode == status, f"{self.process.returncode}, not {status}: {output}"
        for part in parts:
            assert part in output, f"{part!r} is not in {output!r}"


def answers_as(weights, service):
    """Checks the answers to images, with the weights of the service."""
    numbers = random.Random(2)
    for _ in range(20):
        pixels = tuple(numbers.randint(0, 16) for _ in range(64))
        status, body = service.infer(2, pixels)
        assert status == 200, body
        logits, digit = (output["data"] for output in json.loads(body)["outputs"])
        expected = forward(weights, pixels)
        # JSON has as many digits as f32 needs.
        assert floats(logits) == floats(2 * expected), f"{logits}, not {expected}"
        assert digit == 2 * [expected.index(max(expected))], digit


def main(program, *device):
    device = device or ("--disable-cuda",)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "digits.safetensors")
        check(lambda *options, **more: Process(program, *device, "--model", path, *options, **more), path)
        if "--disable-cuda" in device:
            check_faults(lambda *options: Process(program, *device, "--model", path, *options))
        os.remove(path)
        Process(program, *device, "--model", path).ends(1, "cannot read", "--save")
    print("a service that does not start: 1, and wrong arguments: 2")


def stop_once_read(process, path):
    """Sends SIGTERM once the process reads a pipe, of which it never reads anything."""
    ends = []

    def is_read():
        # Without a reader, it cannot be opened.
        with contextlib.suppress(OSError):
            ends.append(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        return ends

    until(is_read, 60, "a process that reads its file")
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    os.close(ends[0])


def check(start, path):
    weights = [random_weights(seed) for seed in (1, 2)]
    write(path, weights[0])
    service = start()
    answers_as(weights[0], service)
    write(path, weights[1])
    status, body = service.ask("/v2/repository/models/digits/load", b"{}")
    assert (status, json.loads(body)["version"]) == (200, "2"), body
    answers_as(weights[1], service)
    service.process.send_signal(signal.SIGTERM)
    service.ends(0, "all accepted rows were answered")
    print(f"the answers of both versions are right: {service.line.strip()}")

    for stop in (signal.SIGTERM, signal.SIGINT):
        service = start()
        assert service.infer()[0] == 200
        service.process.send_signal(stop)
        service.ends(0, "all accepted rows were answered")
    print("a signal: 0")

    # The row waits for others, until the stop.
    service = start("--max-wait-us", "50000000")
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(service.infer()))
    waiting.start()
    service.queues(1)
    service.process.send_signal(signal.SIGTERM)
    service.ends(0, "all accepted rows were answered")
    waiting.join()
    assert answers[0][0] == 200, answers
    print("a signal while a request waits: answered, 0")

    # This many rows take longer than there is time.
    rows = ["--max-rows", "20000", "--max-queued", "20000", "--in-flight", "1"]
    service = start("--max-wait-us", "50000000", "--drain-seconds", "0", *rows)
    waiting = threading.Thread(target=lambda: service.infer(19999))
    waiting.start()
    service.queues(19999)
    service.process.send_signal(signal.SIGTERM)
    service.ends(4, "stopped at the deadline")
    waiting.join()
    print("a signal, and no time to drain: 4")

    service = start()
    connection = service.begins()
    service.process.send_signal(signal.SIGTERM)

    def is_stopped():
        service.process.send_signal(signal.SIGINT)
        return service.process.poll() is not None

    until(is_stopped, 60, "the end after a second signal")
    service.ends(5, "a second signal")
    connection.close()
    print("a second signal: 5")

    service = start()
    connection = service.begins()
    # Two different ones, since the kernel merges two of one kind.
    service.process.send_signal(signal.SIGTERM)
    service.process.send_signal(signal.SIGINT)
    service.ends(0, "they were open 2s after the drain: 1", "all accepted rows were answered")
    connection.close()
    print("two signals at once are one: 0")

    service = start("--client-seconds", "1")
    connection = service.begins()
    assert connection.recv(1024).startswith(b"HTTP/1.1 408 ")
    service.process.send_signal(signal.SIGTERM)
    service.ends(0, "their clients stalled: 1", "all accepted rows were answered")
    print("a client that stalls: cut off, 0")

    service = start()
    service.process.stdout.close()
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(60) == 0, service.process.returncode
    print("a signal, and nobody reads the output: 0")

    write(path, weights[0])
    service = start("--load-seconds", "1")
    os.remove(path)
    # A read of a pipe waits until it is written.
    os.mkfifo(path)
    threads = []
    for _ in range(2):
        status, why = service.ask("/v2/repository/models/digits/load", b"")
        assert status == 504 and "version 1 stays" in why, (status, why)
        assert service.infer()[0] == 200
        threads.append(len(os.listdir(f"/proc/{service.process.pid}/task")))
    assert threads[1] <= threads[0], f"each load holds a thread: {threads}"
    service.process.send_signal(signal.SIGTERM)
    service.ends(0, "all accepted rows were answered")
    start("--load-seconds", "1").ends(1, "was not loaded within 1s")
    start(starting=lambda process: stop_once_read(process, path)).ends(0, "all accepted rows were answered")
    os.remove(path)
    write(path, weights[0])
    print("a file that is never read to its end: the model before stays")

    start("--max-queued", "1").ends(1, "max_queued is 1")
    start("--on-fault", "ignore").ends(2, "invalid value 'ignore'")


def check_faults(start):
    service = start("--fail-at-op", "60")
    service.fails()
    service.ends(3, "the fault plan asked for it")
    print("a device fault: 3")

    service = start("--fail-at-op", "60", "--on-fault", "stay")
    service.fails()
    for _ in range(3):
        status, why = service.infer()
        assert status == 503 and "the fault plan asked for it" in why, why
        assert service.ask("/v2/health/ready")[0] == 503
    assert service.ask("/v2/health/live")[0] == 200
    service.process.send_signal(signal.SIGTERM)
    service.ends(3, "the fault plan asked for it")
    print("a device fault, and the service stays until a signal: 3")

    start("--fail-at-op", "2").ends(3, "the fault plan asked for it")


if __name__ == "__main__":
    main(*sys.argv[1:])
