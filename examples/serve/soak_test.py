"""Asks the service over 64 connections while models are swapped and callers leave.

    cargo build --release -p warpline-examples --features serve --example serve
    python soak_test.py target/release/examples/serve
    python soak_test.py target/release/examples/serve 10 # for 10 seconds rather than 60

In the first run, two models are swapped in and 1000 callers leave before they have an answer. Each
answer is compared with numpy's for the version that it names, and at the end memory is what it was.
In the second run, SIGTERM comes in the middle: every request that was accepted is answered.

It needs numpy and tritonclient, as client_test.py does, whose weights it uses.
"""

import asyncio
import json
import os
import signal
import sys
import tempfile
import time

import numpy as np

from client_test import forward, images, random_weights, write
from process_test import Process

CONNECTIONS = 64
LEAVERS = 1000
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


async def answer(reader):
    """Returns the status and the body of a response."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    status = int(head.split(" ", 2)[1])
    length = int(head.split("content-length:")[1].split("\r\n")[0])
    return status, await reader.readexactly(length)


class Asked:
    """The requests of a run, by their end."""

    def __init__(self):
        self.answered, self.by_version, self.refused, self.unsent, self.lost = 0, {}, 0, 0, 0

    def note(self, image, status, body):
        if status == 503:
            self.refused += 1
            return
        assert status == 200, (status, body)
        response = json.loads(body)
        assert response["id"] == str(image), "the answer of another request"
        version = int(response["model_version"])
        logits, expected = np.array(response["outputs"][0]["data"]), EXPECTED[version - 1][image]
        assert np.allclose(logits, expected, rtol=1e-4, atol=1e-4), (image, version, logits, expected)
        self.answered += 1
        self.by_version[version] = self.by_version.get(version, 0) + 1


async def connect(address):
    host, port = address.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


async def caller(address, asked, number, ends):
    """Asks until `ends` is set, or the service closes the connection."""
    dice = np.random.default_rng(number)
    reader, writer = await connect(address)
    while not ends.is_set():
        image = int(dice.integers(len(IMAGES)))
        try:
            writer.write(REQUESTS[image])
            await writer.drain()
            status, body = await answer(reader)
        except asyncio.IncompleteReadError as closed:
            # A connection may be closed between two requests. A response that begins is whole.
            asked.unsent += 1
            asked.lost += bool(closed.partial)
            return
        except ConnectionError:
            asked.unsent += 1
            return
        asked.note(image, status, body)
        if status == 503:
            await asyncio.sleep(0.01)
    writer.close()


async def leaver(address, number):
    """Sends a request, and leaves before the answer."""
    reader, writer = await connect(address)
    writer.write(REQUESTS[number % len(REQUESTS)])
    await writer.drain()
    if number % 2:
        await asyncio.sleep(0)
    writer.transport.abort()


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


async def swapped_under_load(service, path, seconds):
    asked, ends = Asked(), asyncio.Event()
    callers = [asyncio.create_task(caller(service.address, asked, n, ends)) for n in range(CONNECTIONS)]
    began = time.monotonic()
    load = lambda: service.ask("/v2/repository/models/digits/load", b"")
    for step in range(3):
        left = LEAVERS * (step + 1) // 3 - LEAVERS * step // 3
        for number in range(left):
            await leaver(service.address, number)
            # Spread over two thirds of the time.
            await asyncio.sleep(max(0, began + seconds * (step + 2 / 3 * number / left) / 3 - time.monotonic()))
        await asyncio.sleep(max(0, began + seconds * (step + 1) / 3 - time.monotonic()))
        if step < 2:
            write(path, WEIGHTS[step + 1])
            status, body = await asyncio.to_thread(load)
            assert status == 200 and f'"{step + 2}"' in body, (status, body)
    ends.set()
    await asyncio.gather(*callers)
    assert asked.lost == asked.unsent == 0, (asked.lost, asked.unsent)
    assert set(asked.by_version) == {1, 2, 3}, asked.by_version
    return asked


async def stopped_under_load(service, seconds):
    asked, ends = Asked(), asyncio.Event()
    callers = [asyncio.create_task(caller(service.address, asked, n, ends)) for n in range(CONNECTIONS)]
    await asyncio.sleep(seconds)
    service.process.send_signal(signal.SIGTERM)
    await asyncio.gather(*callers)
    assert asked.lost == 0, "a response was cut off"
    return asked


def main(program, seconds="60"):
    seconds = float(seconds)
    path = os.path.join(tempfile.mkdtemp(), "digits.safetensors")
    write(path, WEIGHTS[0])
    service = Process(program, "--disable-cuda", "--model", path)
    # What is allocated once is there before the memory is read.
    asyncio.run(warmed_up(service, 2))
    idle(service)
    before = memory(service)
    asked = asyncio.run(swapped_under_load(service, path, seconds))
    idle(service)
    after = memory(service)
    print(f"{asked.answered} answers, by version {asked.by_version}, {asked.refused} refused, {LEAVERS} left")
    print(f"bytes of the device, pinned and resident: {before} before, {after} after")
    assert after[:2] == before[:2], "memory was not returned"
    assert after[2] < before[2] + (16 << 20), "the process has grown"
    service.process.send_signal(signal.SIGTERM)
    service.ends(0, "all accepted requests were answered")

    write(path, WEIGHTS[0])
    service = Process(program, "--disable-cuda", "--model", path)
    asked = asyncio.run(stopped_under_load(service, seconds / 6))
    service.ends(0, "all accepted requests were answered")
    print(f"SIGTERM under load: {asked.answered} answers, {asked.refused} refused, no response was cut off, status 0")


async def warmed_up(service, seconds):
    """Load without events, to warm up."""
    asked, ends = Asked(), asyncio.Event()
    callers = [asyncio.create_task(caller(service.address, asked, n, ends)) for n in range(CONNECTIONS)]
    await asyncio.sleep(seconds)
    ends.set()
    await asyncio.gather(*callers)


if __name__ == "__main__":
    main(*sys.argv[1:])
