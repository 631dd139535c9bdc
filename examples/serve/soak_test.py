"""Asks the service over 64 connections while models are swapped and callers leave.

    cargo build --release -p warpline-examples --features serve --example serve
    python soak_test.py target/release/examples/serve
    python soak_test.py target/release/examples/serve 10 # for 10 seconds rather than 60

In the first run, two models are swapped in and 1000 callers leave before they have an answer. Each
answer is compared with numpy's for the version that it names, and the memory does not grow. In the
second run, SIGTERM comes in the middle. In the third, it comes while all callers wait. In each run,
every request that was sent has one outcome, and none is lost.

It needs Linux, and numpy and tritonclient as client_test.py does, whose weights it uses.
"""

import asyncio
import json
import os
import signal
import socket
import struct
import sys
import tempfile
import time

import numpy as np

from client_test import forward, images, random_weights, write
from process_test import Process

CONNECTIONS = 64
LEAVERS = 1000
# The most bytes by which resident memory may grow from the first third of a run to its end. A leak
# of 256 bytes for each answer, the size of an image, exceeds it in a run of 12 seconds.
GROWTH = 4 << 20
# The state in TCP_INFO of a connection that was reset.
TCP_CLOSE = 7
IMAGES = images(200, seed=7)
# The weights of versions 1, 2 and 3.
WEIGHTS = [random_weights(seed) for seed in (1, 2, 3)]
EXPECTED = [forward(weights, IMAGES) for weights in WEIGHTS]


def request(image):
    header = json.dumps({
        "id": str(image),
        "inputs": [{"name": "pixels", "shape": [1, 64], "datatype": "FP32", "parameters": {"binary_data_size": 256}}],
    }).encode()
    head = (
        "POST /v2/models/digits/infer HTTP/1.1\r\nhost: digits\r\n"
        f"inference-header-content-length: {len(header)}\r\ncontent-length: {len(header) + 256}\r\n\r\n"
    )
    return head.encode() + header + IMAGES[image].tobytes()


REQUESTS = [request(image) for image in range(len(IMAGES))]


class Lost(Exception):
    """A request without a whole answer, by a connection that ended."""


class Asked:
    """The requests of a run, by their outcome."""

    def __init__(self):
        self.sent = self.answered = self.refused = self.left = self.unread = 0
        self.by_version, self.closed = {}, []

    def note(self, image, status, body):
        response = json.loads(body)
        if status == 503:
            assert response["error"], "a refusal says why"
            self.refused += 1
            return
        assert status == 200, (status, body)
        assert response["id"] == str(image), "the answer of another request"
        version = int(response["model_version"])
        logits, expected = np.array(response["outputs"][0]["data"]), EXPECTED[version - 1][image]
        assert np.allclose(logits, expected, rtol=1e-4, atol=1e-4), (image, version, logits, expected)
        self.answered += 1
        self.by_version[version] = self.by_version.get(version, 0) + 1

    def check(self):
        """Checks that each request has one outcome. Closed connections need the service's end."""
        for connection in self.closed:
            if not was_reset(connection):
                raise Lost("the service read a request, and closed the connection without an answer")
            self.unread += 1
        outcomes = self.answered + self.refused + self.left + self.unread
        assert self.sent == outcomes, (self.sent, vars(self))


def was_reset(connection):
    """Returns whether the kernel reset a connection because the service never read the request.

    A service that reads a request and closes without an answer ends the connection without a
    reset.
    """
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == TCP_CLOSE


def connect(address):
    host, port = address.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    connection.setblocking(False)
    return connection


async def exchange(connection, request):
    """Returns the status and the body of the response, and whether it is the connection's last.

    Returns None if not a byte of it came.
    """
    loop, received = asyncio.get_running_loop(), b""
    try:
        await loop.sock_sendall(connection, request)
        while True:
            head, end, body = received.partition(b"\r\n\r\n")
            if end:
                head = head.decode().lower()
                length = int(head.split("content-length:")[1].split("\r\n")[0])
                if len(body) >= length:
                    assert len(body) == length, "more than one answer"
                    return int(head.split(" ", 2)[1]), body, "\r\nconnection: close" in head
            part = await loop.sock_recv(connection, 1 << 16)
            if not part:
                break
            received += part
    except ConnectionError as error:
        if received:
            raise Lost(f"a response was cut off after {len(received)} bytes") from error
        return None
    if received:
        raise Lost(f"a response was cut off after {len(received)} bytes")
    return None


async def caller(address, asked, number, ends):
    """Asks until `ends` is set, or the service closes the connection."""
    dice = np.random.default_rng(number)
    connection = connect(address)
    while not ends.is_set():
        image = int(dice.integers(len(IMAGES)))
        asked.sent += 1
        response = await exchange(connection, REQUESTS[image])
        if response is None:
            asked.closed.append(connection)
            return
        status, body, is_last = response
        asked.note(image, status, body)
        if is_last:
            break
        if status == 503:
            await asyncio.sleep(0.01)
    connection.close()


async def leaver(address, asked, number):
    """Sends a request, and leaves before the answer."""
    connection = connect(address)
    asked.sent += 1
    await asyncio.get_running_loop().sock_sendall(connection, REQUESTS[number % len(REQUESTS)])
    if number % 2:
        await asyncio.sleep(0)
    # To linger for no time is to reset the connection.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    asked.left += 1


def memory(service):
    """Returns the bytes of the device, the pinned bytes and the resident ones."""
    lines = service.ask("/metrics")[1].splitlines()
    value = lambda name: int(float(next(line for line in lines if line.startswith(name + " ")).split()[-1]))
    device = value('warpline_device_memory_bytes{device="cpu:0",state="live"}')
    pinned = value('warpline_pinned_memory_bytes{device="cpu:0",state="live"}')
    with open(f"/proc/{service.process.pid}/status") as status:
        resident = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS"))
    return device, pinned, resident


def idle(service):
    """Waits until no row is queued or running."""
    while any(
        not line.endswith(" 0") for line in service.ask("/metrics")[1].splitlines()
        if line.startswith(("warpline_batcher_queued_rows", "warpline_batcher_running_rows"))
    ):
        pass


def callers_of(service, asked, ends):
    return [asyncio.create_task(caller(service.address, asked, n, ends)) for n in range(CONNECTIONS)]


async def swapped_under_load(service, path, seconds):
    """Returns the requests, and the resident memory after each third of the time."""
    asked, ends, resident = Asked(), asyncio.Event(), []
    callers = callers_of(service, asked, ends)
    began = time.monotonic()
    load = lambda: service.ask("/v2/repository/models/digits/load", b"")
    for step in range(3):
        left = LEAVERS * (step + 1) // 3 - LEAVERS * step // 3
        for number in range(left):
            await leaver(service.address, asked, number)
            # Spread over two thirds of the time.
            await asyncio.sleep(max(0, began + seconds * (step + 2 / 3 * number / left) / 3 - time.monotonic()))
        await asyncio.sleep(max(0, began + seconds * (step + 1) / 3 - time.monotonic()))
        resident.append((await asyncio.to_thread(memory, service))[2])
        if step < 2:
            write(path, WEIGHTS[step + 1])
            status, body = await asyncio.to_thread(load)
            assert status == 200 and f'"{step + 2}"' in body, (status, body)
    ends.set()
    await asyncio.gather(*callers)
    assert not asked.closed, "the service closed a connection"
    asked.check()
    assert asked.left == LEAVERS and set(asked.by_version) == {1, 2, 3}, vars(asked)
    return asked, resident


async def loaded(service, seconds, stop=None):
    """Load without events, to warm up, or with a signal at its end."""
    asked, ends = Asked(), asyncio.Event()
    callers = callers_of(service, asked, ends)
    await asyncio.sleep(seconds)
    service.process.send_signal(stop) if stop else ends.set()
    await asyncio.gather(*callers)
    return asked


async def stopped_while_all_wait(service):
    asked, ends = Asked(), asyncio.Event()
    # One request each.
    callers = callers_of(service, asked, ends)
    all_queued = f'warpline_batcher_queued_rows{{batcher="digits"}} {CONNECTIONS}\n'
    while all_queued not in (await asyncio.to_thread(service.ask, "/metrics"))[1]:
        pass
    ends.set()
    service.process.send_signal(signal.SIGTERM)
    await asyncio.gather(*callers)
    return asked


def main(program, seconds="60"):
    seconds = float(seconds)
    path = os.path.join(tempfile.mkdtemp(), "digits.safetensors")
    write(path, WEIGHTS[0])
    start = lambda *options: Process(program, "--disable-cuda", "--model", path, *options)
    all_answered = "all accepted rows were answered"
    service = start()
    # What is allocated once is there before the memory is read.
    asyncio.run(loaded(service, 2))
    idle(service)
    before = memory(service)
    asked, resident = asyncio.run(swapped_under_load(service, path, seconds))
    idle(service)
    after = memory(service)
    print(f"{asked.sent} sent: {asked.answered} answers, {asked.refused} refused, {asked.left} left")
    print(f"answers by version: {asked.by_version}")
    print(f"bytes of the device and pinned: {before[:2]} before, {after[:2]} after")
    print(f"resident bytes: {before[2]} before, {resident} after each third, {after[2]} after")
    assert after[:2] == before[:2], "memory was not returned"
    grown = max(*resident[1:], after[2]) - resident[0]
    assert grown <= GROWTH, f"the process has grown by {grown} bytes, and at most {GROWTH} are expected"
    service.process.send_signal(signal.SIGTERM)
    service.ends(0, all_answered)

    write(path, WEIGHTS[0])
    service = start()
    asked = asyncio.run(loaded(service, seconds / 6, signal.SIGTERM))
    service.ends(0, all_answered)
    asked.check()
    print(
        f"SIGTERM under load: {asked.sent} sent: {asked.answered} answers, {asked.refused} refused, "
        f"{asked.unread} came after the end; status 0"
    )

    service = start("--max-wait-us", "50000000", "--max-rows", str(2 * CONNECTIONS))
    asked = asyncio.run(stopped_while_all_wait(service))
    service.ends(0, all_answered)
    asked.check()
    assert asked.sent == asked.answered + asked.refused == CONNECTIONS, vars(asked)
    print(f"SIGTERM while {CONNECTIONS} wait: {asked.answered} answers, {asked.refused} refused; status 0")


if __name__ == "__main__":
    main(*sys.argv[1:])
