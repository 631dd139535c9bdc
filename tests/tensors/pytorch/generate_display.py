"""What PyTorch prints for tensors, for tests/tensors/pytorch/display.rs.

    pip install torch && python tests/tensors/pytorch/generate_display.py

writes display.json beside this file: one line a case, with the tensor and its text. In the text, types have Warpline's
names, which are given to PyTorch before it breaks lines. Large tensors are stored as their first number and the step to the next.
"""

import json
import math
import pathlib

import torch

TYPES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
}
INF, NAN = math.inf, math.nan

cases = []

add_suffixes = torch._tensor_str._add_suffixes


def with_our_names(text, suffixes, *options, **more):
    names = {f"dtype={torch_type}": f"dtype={name}" for name, torch_type in TYPES.items()}
    return add_suffixes(text, [names.get(suffix, suffix) for suffix in suffixes], *options, **more)


torch._tensor_str._add_suffixes = with_our_names


def stored(x, name, transposed, **elements):
    text = str(x.t() if transposed else x)
    parts = {"dtype": name, "shape": list(x.shape), "t": transposed, **elements, "text": text}
    cases.append(json.dumps(parts, separators=(",", ":")))


def small(name, data, shape=None, transposed=False):
    x = torch.tensor(data, dtype=torch.float64).to(TYPES[name])
    x = x if shape is None else x.reshape(shape)
    stored(x, name, transposed, data=[repr(value) for value in x.double().reshape(-1).tolist()])


def large(name, shape, start, step, transposed=False):
    x = (torch.arange(math.prod(shape), dtype=torch.float64) * step + start).to(TYPES[name]).reshape(shape)
    stored(x, name, transposed, start=repr(float(start)), step=repr(float(step)))


def styles():
    for data in [
        [0.0], [-0.0], [1.0], [-1.5], [0.1, 0.2], [1.0, 2.0], [1.0, -20.0, 300.0], [0.5, -123.25], [1e-4, 1e-1], [9.9e-5, 1.0],
        [1e8, 1e8 - 8], [1e8 + 8, 1e8], [1.0, 1000.0], [1.0, 1001.0], [0.5, 500.0], [0.5, 500.5], [NAN], [INF, -INF], [NAN, 1.0], [INF, 1.5],
        [0.0, 1e9], [0.0, 0.5], [-0.0, 1e-5], [NAN, 1e-5, -INF], [1.0, 1e-40], [3.4e38, 1.0], [0.03125, 0.09375], [0.00005, 1.0],
        [0.99996, 0.5], [9.99995, 1.0], [99999.5, 100.25], [1e-10], [-1e-10, 1.0], [123456.0, 2.0], [0.0, 0.0, 0.0],
    ]:
        small("f32", data)
    for name in ("f64", "f16", "bf16"):
        for data in ([1.0, 2.0], [0.1, -0.25], [NAN, 0.0], [1e-5, 1.0], [65504.0, 1.0], [1 / 3]):
            small(name, data)
    small("f64", [1e300, -1e-300])
    for name in ("i64", "i32", "i16", "i8"):
        for data in ([0], [1, -2, 100], [-128, 127]):
            small(name, data)
    small("u8", [0, 7, 255])
    small("i64", [2**53, -(2**53), 0])
    small("bool", [0, 1])
    small("bool", [0, 0])
    small("bool", [1, 1])


def shapes():
    for name in TYPES:
        small(name, 1, [])
    small("f32", 1.5, [])
    small("f32", 1e-7, [])
    for shape in ([0], [0, 3], [3, 0], [2, 0, 2]):
        for name in ("f32", "f64", "i64", "bool", "u8"):
            small(name, [], shape)
    for shape in ([1, 1], [2, 3], [3, 1], [2, 2, 2], [1, 2, 1, 2], [2, 1, 2, 1, 2]):
        count = math.prod(shape)
        for name in ("f32", "i64", "f16"):
            small(name, list(range(count)), shape)
        small("f32", [n / 8 - 1 for n in range(count)], shape)
        small("bool", [n % 3 == 0 for n in range(count)], shape)
    small("f32", [n / 4 for n in range(6)], [3, 2], transposed=True)
    small("i64", list(range(6)), [2, 3], transposed=True)
    # Lines that are full, and last lines on which the type does not fit.
    for name in ("f32", "f64", "i32", "bf16"):
        for count in (7, 8, 9, 10, 22, 23, 24, 25):
            small(name, [n + 0.5 for n in range(count)])
            small(name, list(range(count)))
    for count in (12, 13, 14, 40):
        small("f64", [n / 4 for n in range(2 * count)], [2, count])


def summaries():
    for shape in ([1000], [1001], [2000, 1], [1, 2000], [2, 700], [700, 2], [40, 40], [6, 200], [7, 7, 30], [3, 7, 50], [2, 3, 200], [6, 6, 6, 6], [1001, 1, 1], [8, 8, 8, 8]):
        large("f32", shape, 0, 1)
        large("f32", shape, -0.5, 0.25)
        large("i64", shape, 5, -3)
        large("f64", shape, 1, 0.125)
        large("u8", shape, 0, 0)
    # The largest number is not shown, so it does not decide the style.
    large("f32", [5000], -2500, 1)
    for shape in ([40, 50], [2, 700], [700, 2], [1500, 1]):
        large("f32", shape, 0, 0.5, transposed=True)
        large("i16", shape, 0, 1, transposed=True)


for group in (styles, shapes, summaries):
    group()
path = pathlib.Path(__file__).with_name("display.json")
head = f'{{"torch":"{torch.__version__}","cases":[\n'
path.write_text(head + ",\n".join(cases) + "\n]}\n")
print(f"{len(cases)} cases of torch {torch.__version__}, {path.stat().st_size} bytes")
