"""The parts of benches/cuda_device that PyTorch can do. Prints rows as that bench does for scripts.

    pytorch_streams.py [--quick]

An element-wise kernel launched and synchronized, memory allocated and freed, and a pipeline that
copies in, computes and copies out on three streams with page-locked memory.
"""

import statistics
import sys
import time

import torch

QUICK = "--quick" in sys.argv
ROUNDS = 3 if QUICK else 11
DEVICE = torch.device("cuda:0")


def row(name, unit, samples, form=".0f"):
    """Prints a row with the cells that benches/rows.py names."""
    ordered = sorted(samples)
    low, high = (ordered[round((len(ordered) - 1) * share)] for share in (0.1, 0.9))
    figures = (f"{value:{form}}" for value in (statistics.median(samples), low, high))
    print("row", name, unit, "", "", *figures, *[""] * 7, sep="\t")


def per_call(times, work):
    """Returns nanoseconds per call, a sample per round. The first round does not count."""
    samples = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter_ns()
        for _ in range(times):
            work()
        samples.append((time.perf_counter_ns() - start) / times)
        torch.cuda.synchronize()
    return samples[1:]


def launch_and_synchronize():
    x = torch.ones(32, device=DEVICE)
    stream, event = torch.cuda.Stream(), torch.cuda.Event()
    blocking = torch.cuda.Event(blocking=True)
    times = 200 if QUICK else 2000
    with torch.cuda.stream(stream):

        def by_stream():
            x.add_(1)
            stream.synchronize()

        def by_event(event):
            x.add_(1)
            event.record(stream)
            event.synchronize()

        add = "PyTorch: add_ of 32 floats"
        row(f"{add} and stream.synchronize", "ns", per_call(times, by_stream))
        row(f"{add} and an event", "ns", per_call(times, lambda: by_event(event)))
        row(f"{add} and an event that sleeps", "ns", per_call(times, lambda: by_event(blocking)))
        row(f"{add} enqueued", "ns", per_call(200, lambda: x.add_(1)))
    other = torch.cuda.Stream()
    row("PyTorch: wait_stream", "ns", per_call(times, lambda: other.wait_stream(stream)))


def allocation():
    for name, count in (("4 KiB", 4 << 10), ("64 MiB", 64 << 20)):
        work = lambda: torch.empty(count, dtype=torch.uint8, device=DEVICE)
        work()
        row(f"PyTorch: {name} allocated and freed, cache hit", "ns", per_call(500 if QUICK else 5000, work))


def pipeline():
    chunks, elements = (8, 1 << 16) if QUICK else (32, 4 << 20)
    ahead = 4
    sources = [torch.ones(elements).pin_memory() for _ in range(ahead)]
    results = [torch.empty(elements).pin_memory() for _ in range(ahead)]
    copy_in, compute, copy_out = (torch.cuda.Stream() for _ in range(3))

    def kernel(x, work):
        for _ in range(work):
            x.add_(1)

    def timed(work):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        return time.perf_counter() - start

    def in_alone():
        with torch.cuda.stream(copy_in):
            for at in range(chunks):
                sources[at % ahead].to(DEVICE, non_blocking=True)

    resident = torch.ones(elements, device=DEVICE)

    def over_alone(work):
        with torch.cuda.stream(compute):
            for _ in range(chunks):
                kernel(resident, work)

    def out_alone():
        with torch.cuda.stream(copy_out):
            for at in range(chunks):
                results[at % ahead].copy_(resident, non_blocking=True)

    def all_three(work):
        done = [None] * ahead
        for at in range(chunks):
            slot = at % ahead
            if done[slot] is not None:
                done[slot].synchronize()
            with torch.cuda.stream(copy_in):
                x = sources[slot].to(DEVICE, non_blocking=True)
            compute.wait_stream(copy_in)
            with torch.cuda.stream(compute):
                x.record_stream(compute)
                kernel(x, work)
            copy_out.wait_stream(compute)
            with torch.cuda.stream(copy_out):
                x.record_stream(copy_out)
                results[slot].copy_(x, non_blocking=True)
                done[slot] = torch.cuda.Event()
                done[slot].record(copy_out)

    timed(in_alone), timed(lambda: over_alone(1)), timed(out_alone)
    work = max(1, round(timed(in_alone) / timed(lambda: over_alone(1))))
    timed(lambda: all_three(work))
    shares, took = [], []
    for _ in range(ROUNDS):
        parts = timed(in_alone), timed(lambda: over_alone(work)), timed(out_alone)
        took.append(timed(lambda: all_three(work)))
        shares.append(100 * max(parts) / took[-1])
    what = f"PyTorch: {chunks} chunks of {elements * 4 >> 10} KiB in, over and out on three streams"
    row(f"{what}: share of the longest part alone", "%", shares, ".1f")
    row(what, "ms", [1e3 * seconds for seconds in took], ".3g")


if not torch.cuda.is_available():
    sys.exit("PyTorch finds no CUDA device")
print("note", f"PyTorch {torch.__version__}, {torch.cuda.get_device_name(0)}", sep="\t")
launch_and_synchronize()
allocation()
pipeline()
