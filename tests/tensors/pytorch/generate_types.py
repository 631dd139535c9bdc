"""What PyTorch says about element types, promotion, broadcasting, conversion and constructors, for
tests/tensors/pytorch/types.rs.

    pip install torch && python tests/tensors/pytorch/generate_types.py

writes types.json beside this file: one line a case. A tensor is its type, its shape, and its elements in row-major
order, as text in which every number reads back as itself.

Nothing here is summed, so each element is rounded by one rule and every result is exact. PyTorch runs on
one thread. Each group of cases has a seed of its own, so a new group leaves the others as they are.
"""

import itertools
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
NAMES = {dtype: name for name, dtype in TYPES.items()}
OPS = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div}
IN_PLACE = {name: getattr(torch.Tensor, f"{name}_") for name in OPS}
INF, NAN = math.inf, math.nan
SPECIAL = [0.0, -0.0, INF, -INF, NAN, 1.0, -1.0, 3.0, 0.1, 1e-40, 3.4e38, -7.25]

cases = []


def text(value, dtype):
    if dtype == torch.bool:
        return "true" if value else "false"
    if not dtype.is_floating_point:
        return str(int(value))
    # The shortest number that reads back as this f64. Those of the smaller types are f64 too.
    return repr(float(value))


def encoded(x):
    elements = " ".join(text(value, x.dtype) for value in x.contiguous().reshape(-1).tolist())
    return {"dtype": NAMES[x.dtype], "shape": list(x.shape), "data": elements}


def number(value):
    """A number as text, from which its kind can be seen."""
    return text(value, torch.bool) if isinstance(value, bool) else repr(value)


def case(op, output, **inputs):
    def stored(value):
        if isinstance(value, torch.Tensor):
            return encoded(value)
        if isinstance(value, torch.dtype):
            return NAMES[value]
        return number(value) if isinstance(value, (bool, int, float)) else value

    parts = {"group": group.__name__, "op": op, **{name: stored(value) for name, value in inputs.items()}, "output": encoded(output)}
    cases.append(json.dumps(parts, separators=(",", ":")))


def values(dtype, *shape):
    """Numbers that every type of the kind holds."""
    if dtype == torch.bool:
        return torch.randint(0, 2, shape).bool()
    if dtype.is_floating_point:
        return (torch.round(torch.randn(shape) * 64) / 16).to(dtype)
    return torch.randint(0 if dtype == torch.uint8 else -100, 100, shape).to(dtype)


def defined(op, *operands):
    """Whether PyTorch subtracts such operands: not if one is bool."""
    of_truth = lambda x: x.dtype == torch.bool if isinstance(x, torch.Tensor) else isinstance(x, bool)
    return op != "sub" or not any(of_truth(x) for x in operands)


def binary(name, x, y):
    if defined(name, x, y):
        case(name, OPS[name](x, y), x=x, y=y)


def division():
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        for x in SPECIAL:
            binary("div", torch.full([len(SPECIAL)], x, dtype=torch.float64).to(dtype), torch.tensor(SPECIAL, dtype=torch.float64).to(dtype))
        for shape in ([], [0], [7], [3, 5]):
            x, y = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
            binary("div", x, y)
            for a in (3.0, 0.1, 0.0, -INF, 7, 0, True):
                binary("div", x, a)
    for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool):
        for y in (values(dtype, 9), torch.zeros(9, dtype=dtype), 3, 0, 2.5, True):
            binary("div", values(dtype, 9), y)
    n = torch.randint(-(2**62), 2**62, (9,))
    binary("div", n, torch.randint(-(2**62), 2**62, (9,)))
    binary("div", n, 3)


def promotion():
    for name in OPS:
        for a, b in itertools.product(TYPES.values(), repeat=2):
            for of_x, of_y in (([2], [2]), ([2], []), ([], [2])):
                binary(name, values(a, *of_x), values(b, *of_y))
        for dtype in TYPES.values():
            for shape in ([2], []):
                for a in (3, -2, 2.5, -0.375, True):
                    if not (dtype == torch.uint8 and a == -2):
                        binary(name, values(dtype, *shape), a)


def in_place():
    for name in OPS:
        for a, b in itertools.product(TYPES.values(), repeat=2):
            x, y = values(a, 3, 2), values(b, 2)
            if torch.can_cast(torch.result_type(x, y) if name != "div" else torch.true_divide(x, y).dtype, a) and defined(name, x, y):
                got = x.clone()
                IN_PLACE[name](got, y)
                case(f"{name}_", got, x=x, y=y)


def pair_of_shapes():
    shape = [int(size) for size in torch.randint(0, 4, (int(torch.randint(0, 6, ())),))]
    # Zeros are rarer than the other sizes.
    shape = [size if size or torch.rand(()) < 0.3 else 2 for size in shape]
    sides = []
    for _ in range(2):
        missing = int(torch.randint(0, len(shape) + 1, ())) if torch.rand(()) < 0.5 else 0
        sides.append([1 if torch.rand(()) < 0.35 else size for size in shape[missing:]])
    return sides


def broadcasting():
    for name in OPS:
        types = itertools.cycle([torch.float32, torch.int64, torch.float64, torch.float16, torch.int8])
        for _, dtype in zip(range(45), types):
            of_x, of_y = pair_of_shapes()
            x, y = values(dtype, *of_x), values(dtype, *of_y)
            binary(name, x, y)
            binary(name, y, x)
    for name in OPS:
        for _ in range(15):
            of_x, of_y = pair_of_shapes()
            shape = list(torch.broadcast_shapes(of_x, of_y))
            for small in (of_x, of_y):
                x, y = values(torch.float32, *shape), values(torch.float32, *small)
                got = x.clone()
                IN_PLACE[name](got, y)
                case(f"{name}_", got, x=x, y=y)


def inside(a, b):
    """Numbers of type `a` that C++ converts to `b`: all but floating-point ones out of the range of an integer type."""
    if not a.is_floating_point:
        if a == torch.bool:
            return torch.tensor([False, True])
        low, high = torch.iinfo(a).min, torch.iinfo(a).max
        chosen = [low, high, 0, 1, 2, 100, high - 1, high // 3, high // 2 + 1, low // 3]
        return torch.tensor(chosen, dtype=a)
    if b.is_floating_point or b == torch.bool:
        chosen = [0.0, -0.0, INF, -INF, NAN, 1.0, 0.1, -1 / 3, 65504.0, 65519.0, 65520.0, 1e-5, 6e-8, 2.9e-8, 1e-40, 1e-46,
                  3.4e38, -1e300, 1.00048828125, 1.00390625, 16777217.0, 2049.0]
        return torch.tensor(chosen, dtype=torch.float64).to(a)
    low, high = max(torch.iinfo(b).min, -(2**53)), min(torch.iinfo(b).max, 2**53)
    chosen = [0.0, -0.0, 0.5, 0.99, 1.5, 2.5, 100.75, 126.9, float(low), float(high)]
    chosen += [] if b == torch.uint8 else [-0.5, -0.99, -1.5, -100.75]
    x = torch.tensor(chosen, dtype=torch.float64).to(a)
    return x[(x.double() >= low) & (x.double() <= high)]


def conversion():
    for a, b in itertools.product(TYPES.values(), repeat=2):
        x = inside(a, b)
        case("to", x.to(b), x=x, dtype=b)


def copies():
    for a, b in itertools.product(TYPES.values(), repeat=2):
        small, shape = [([2], [3, 2]), ([3, 1], [3, 2]), ([], [2, 2]), ([1, 2, 1], [2, 2, 3])][len(cases) % 4]
        x = values(a, *small)
        # C++ has no u8 for a negative floating-point number.
        x = x.abs() if b == torch.uint8 and a.is_floating_point else x
        y = values(b, *shape)
        case("copy_", y.clone().copy_(x), x=y, y=x)


def ranges():
    for start, end, step in [(0, 10, 1), (0, 10, 3), (10, 0, -3), (5, 5, 1), (-4, 4, 2), (0, 1, 7), (2**62, 2**62 + 5, 2), (3, -3, -1),
                             (0.0, 1.0, 0.25), (1.0, 0.0, -0.5), (0.0, 0.0, 1.0), (0, 2, 0.5), (-1.5, 3, 0.75), (0.5, 9, 2), (0, 33, 1.0)]:
        case("arange", torch.arange(start, end, step), start=start, end=end, step=step)
    for dtype in TYPES.values():
        if dtype == torch.bool:
            continue
        for start, end, step in [(0, 10, 1), (0, 100, 7), (50, 2, -5)]:
            case("arange", torch.arange(start, end, step, dtype=dtype), start=start, end=end, step=step, dtype=dtype)


def fills():
    for dtype in TYPES.values():
        for value in (0, 1, 100, True, False, 2.0, 0.1, -3, -2.5, INF, NAN):
            is_float = isinstance(value, float)
            if dtype.is_floating_point or dtype == torch.bool or not (is_float and value != 2.0 or dtype == torch.uint8 and value < 0):
                x = values(dtype, 2, 2)
                case("fill_", x.clone().fill_(value), x=x, value=value)


torch.set_num_threads(1)
for seed, group in enumerate((division, promotion, in_place, broadcasting, conversion, copies, ranges, fills)):
    torch.manual_seed(2027 + seed)
    group()
path = pathlib.Path(__file__).with_name("types.json")
head = f'{{"torch":"{torch.__version__}","cases":[\n'
path.write_text(head + ",\n".join(cases) + "\n]}\n")
print(f"{len(cases)} cases of torch {torch.__version__}, {path.stat().st_size} bytes")
