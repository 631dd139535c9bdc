"""What PyTorch says about each op, for tests/tensors/pytorch/mod.rs.

    pip install torch numpy && python tests/tensors/pytorch/generate.py

writes cases.json beside this file: one line a case, with the operands, the results, and, where sums are rounded, how
far from each other two right answers may be. PyTorch runs on one thread, so that the file is the same
again.

Most inputs are small multiples of 1/64. That keeps the file small, and sums of them and of their products exact in f32
whatever the order, so that there is nothing to tolerate. The rough ones have all their bits; the tolerance of a sum of k products is 2·k·u·Σ|terms|, with u = 2⁻²⁴ the unit roundoff of f32: each side is within
k·u·Σ|terms| of the exact sum whatever the order (Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., section 3.1).
"""

import json
import math
import pathlib

import numpy as np
import torch

U = 2.0**-24
INF, NAN = math.inf, math.nan
SHAPES = [[], [0], [1], [2], [7], [33], [0, 3], [3, 0], [1, 1], [1, 5], [5, 1], [3, 5], [2, 3, 4], [4, 17]]
SPECIAL = [0.0, -0.0, INF, -INF, NAN, 1e-40, 3.4e38, -3.4e38, 1.0, -1.0, 1e-20, -1e-40]

cases = []


def values(*shape, scale=2.0):
    return torch.round(torch.randn(shape) * scale * 64) / 64


def rough(*shape):
    return torch.randn(shape) * 2


def labels(n, classes):
    return torch.randint(0, max(classes, 1), (n,))


def special(n):
    """Every special value in n places, in an order of its own each time."""
    return torch.tensor([SPECIAL[i] for i in torch.randperm(len(SPECIAL))[:n].tolist()])


def finite_max(x):
    x = x[torch.isfinite(x)].abs()
    return float(x.max()) if x.numel() else 0.0


def number(x):
    if isinstance(x, (int, np.integer)):
        return str(int(x))
    if math.isnan(x):
        return '"nan"'
    if math.isinf(x):
        return '"inf"' if x > 0 else '"-inf"'
    return str(np.float32(x))


def encoded(x):
    if isinstance(x, (int, float)):
        return number(x)
    # A transposed view is stored as what it is a view of.
    view = x.dim() == 2 and not x.is_contiguous()
    base = x.t() if view else x
    data = [number(value) for value in base.detach().contiguous().numpy().reshape(-1)]
    parts = [f'"dtype":"{"i64" if x.dtype == torch.int64 else "f32"}"', f'"shape":{json.dumps(list(base.shape))}']
    if view:
        parts.append('"t":true')
    return "{" + ",".join([*parts, f'"data":[{",".join(data)}]']) + "}"


def case(op, inputs, outputs, tolerance=0.0, relative=0.0):
    """Adds a case. `relative` is a tolerance as a fraction of the result; the larger of the two counts."""
    listed = lambda them: "[" + ",".join(encoded(x) for x in them) + "]"
    fraction = f',"relative":{relative:.3g}' if relative else ""
    cases.append(
        f'{{"op":"{op}","inputs":{listed(inputs)},"outputs":{listed(outputs)},"tolerance":{tolerance:.3g}{fraction}}}'
    )


def transposed(rows, cols):
    return values(cols, rows).t()


def create_and_copy():
    for shape in SHAPES:
        x = values(*shape)
        case("copy", [x], [x.clone()])
        n = torch.randint(-(2**62), 2**62, shape)
        case("copy", [n], [n.clone()])
    for n in (5, 12):
        x = special(n)
        case("copy", [x], [x.clone()])
    for shape in ([], [7], [3, 5], [0, 3]):
        for value in (0.0, 1.0, -2.5, NAN, INF, 7, -(2**53) - 1):
            case("full", [torch.tensor(shape, dtype=torch.int64), value], [torch.full(shape, value)])
    for rows, cols in [(0, 3), (3, 0), (1, 1), (1, 7), (7, 1), (3, 5), (16, 16), (17, 33), (2, 40), (5, 4), (2, 2), (3, 2), (4, 4), (15, 16), (8, 3)]:
        x = transposed(rows, cols)
        if x.is_contiguous():
            continue
        case("contiguous", [x], [x.contiguous()])
        n = torch.randint(-99, 99, (cols, rows)).t()
        case("contiguous", [n], [n.contiguous()])
    for shape, new in [([6], [2, 3]), ([2, 3], [3, 2]), ([2, 3], [6]), ([1], []), ([], [1, 1]), ([0, 3], [3, 0]), ([4, 2], [2, 2, 2])]:
        for x in (values(*shape), torch.randint(-9, 9, shape), torch.full(shape, NAN)):
            case("reshape", [x, torch.tensor(new, dtype=torch.int64)], [x.reshape(new)])
    for shape, start, length in [([7], 2, 3), ([7], 0, 7), ([7], 7, 0), ([3, 5], 1, 2), ([3, 5], 2, 1), ([2, 3, 4], 1, 1), ([3, 0], 1, 1)]:
        for x in (values(*shape), torch.randint(-9, 9, shape), torch.full(shape, INF)):
            case("narrow", [x, start, length], [x.narrow(0, start, length)])


def elementwise():
    ops = {"add": torch.add, "sub": torch.sub, "mul": torch.mul}
    for name, op in ops.items():
        for shape in SHAPES:
            x, y = values(*shape), values(*shape)
            case(name, [x, y], [op(x, y)])
            x, y = torch.randint(-(2**40), 2**40, shape), torch.randint(-(2**40), 2**40, shape)
            case(name, [x, y], [op(x, y)])
        for n in (5, 12, 12):
            x, y = special(n), special(n)
            case(name, [x, y], [op(x, y)])
        for shape, row in [([3, 5], [5]), ([0, 3], [3]), ([3, 0], [0]), ([4, 33], [33]), ([2, 3, 4], [4]), ([2, 3, 4], [3, 4]), ([3, 5], []), ([3, 5], [1]), ([3, 5], [1, 5])]:
            x, y = values(*shape), values(*row)
            case(name, [x, y], [op(x, y)])
            x, y = torch.randint(-99, 99, shape), torch.randint(-99, 99, row)
            case(name, [x, y], [op(x, y)])
        x, y = values(3, 12), special(12)
        case(name, [x, y], [op(x, y)])
        for shape in ([], [0], [7], [3, 5]):
            for a in (0.0, 1.5, -0.3, NAN, INF):
                x = values(*shape)
                case(f"{name}_scalar", [x, a], [op(x, a)])
            n = torch.randint(-99, 99, shape)
            case(f"{name}_scalar", [n, -3], [op(n, -3)])
        x = special(12)
        case(f"{name}_scalar", [x, 2.0], [op(x, 2.0)])
    for shape in SHAPES:
        x = values(*shape)
        case("relu", [x], [torch.relu(x)])
        grad, y = values(*shape), torch.relu(values(*shape))
        case("relu_backward", [grad, y], [torch.ops.aten.threshold_backward(grad, y, 0)])
    for n in (1, 3, 5, 8, 10, 11, 12, 12, 12):
        x = special(n)
        case("relu", [x], [torch.relu(x)])
        grad, y = special(n), special(n)
        case("relu_backward", [grad, y], [torch.ops.aten.threshold_backward(grad, y, 0)])


def products():
    sizes = [(1, 1, 1), (2, 3, 4), (3, 5, 7), (1, 7, 5), (7, 1, 5), (5, 4, 1), (0, 3, 2), (3, 0, 2), (2, 3, 0), (16, 16, 16), (17, 9, 33), (6, 33, 3)]
    bound = lambda a, b: 2 * max(a.shape[1], 1) * U * finite_max(torch.matmul(a.abs().nan_to_num(0, 0, 0), b.abs().nan_to_num(0, 0, 0)))
    for m, n, k in sizes:
        pairs = [(values(m, k), values(k, n)), (transposed(m, k), values(k, n)), (values(m, k), transposed(k, n))]
        if m * n < 200:
            pairs.append((transposed(m, k), transposed(k, n)))
        for a, b in pairs:
            case("matmul", [a, b], [torch.matmul(a, b)])
        x, bias = values(m, k), values(n)
        for w in (values(n, k), transposed(n, k)):
            case("linear", [x, w, bias], [torch.nn.functional.linear(x, w, bias)])
    for m, n, k in [(3, 5, 7), (4, 2, 129), (1, 10, 33)]:
        a, b, bias = rough(m, k), rough(k, n), rough(n)
        case("matmul", [a, b], [torch.matmul(a, b)], bound(a, b))
        case("matmul", [a, b.t().contiguous().t()], [torch.matmul(a, b)], bound(a, b))
        tolerance = bound(a, b) * (k + 1) / k + 2 * (k + 1) * U * finite_max(bias)
        case("linear", [a, b.t().contiguous(), bias], [a @ b + bias], tolerance)
    for bad in (NAN, INF, -INF):
        a, b, bias = values(3, 4), values(4, 5), values(5)
        a[1, 2] = bad
        case("matmul", [a, b], [torch.matmul(a, b)])
        case("linear", [a, b.t().contiguous(), bias], [torch.nn.functional.linear(a, b.t(), bias)])
        b[0, 3] = bad
        c = values(4, 2)
        case("matmul", [b.t(), c], [torch.matmul(b.t(), c)])


def reductions():
    for shape in [*SHAPES, [1000], [33, 31], [1025]]:
        x = values(*shape)
        case("sum", [x], [x.sum()])
        # One division, or a product with 1/n, which is rounded too.
        case("mean", [x], [x.mean()], 4 * U * abs(float(x.mean())) if x.numel() else 0)
    for shape in ([100], [7, 20], [3], [1024], [1100]):
        x = rough(*shape)
        tolerance = 2 * x.numel() * U * float(x.abs().sum())
        case("sum", [x], [x.sum()], tolerance)
        case("mean", [x], [x.mean()], tolerance / x.numel() + 4 * U)
    for n in (1, 2, 3, 12):
        x = torch.tensor([1.0, 2.0, INF, -INF, NAN, 3.0, INF, 0.0, 5.0, -1.0, 2.0, 4.0])[torch.randperm(12)[:n]]
        case("sum", [x], [x.sum()])
        case("mean", [x], [x.mean()], 1e-7)
    for rows, cols in [(0, 0), (0, 3), (3, 0), (1, 1), (1, 7), (7, 1), (5, 3), (2, 33), (33, 2), (100, 4), (4, 65), (16, 16), (3, 3), (31, 5), (9, 9), (2, 2), (64, 3)]:
        x = values(rows, cols)
        case("sum_rows", [x], [x.sum(0)])
    for rows, cols in [(100, 3), (7, 20)]:
        x = rough(rows, cols)
        case("sum_rows", [x], [x.sum(0)], 2 * rows * U * finite_max(x.abs().sum(0)))
    for bad in (NAN, INF, -INF):
        x = values(4, 3)
        x[2, 1] = bad
        case("sum_rows", [x], [x.sum(0)])
        x[0, 1] = -bad
        case("sum_rows", [x], [x.sum(0)])
    for shape in [[], [1], [7], [33], [0, 3], [1, 1], [1, 5], [5, 1], [3, 5], [2, 3, 4], [4, 17], [40, 10], [2, 100]]:
        x = torch.round(values(*shape) * 2) / 2 if shape != [40, 10] else values(*shape)
        case("argmax", [x], [x.argmax(-1)])
    for n in (1, 2, 5, 12, 12, 12, 12):
        x = special(n)
        case("argmax", [x], [x.argmax(-1)])
    for x in ([1.0, 1.0, 1.0], [NAN, NAN], [1.0, NAN, INF, NAN], [-INF, -INF], [0.0, -0.0], [-0.0, 0.0]):
        case("argmax", [torch.tensor(x)], [torch.tensor(x).argmax(-1)])
    for shape in [*SHAPES, [100], [10, 10], [1000], [2], [3], [4]]:
        x, y = torch.randint(0, 3, shape), torch.randint(0, 3, shape)
        case("count_equal", [x, y], [(x == y).sum()])


def losses():
    def one(logits, wanted):
        logits.requires_grad_()
        loss = torch.nn.functional.cross_entropy(logits, wanted)
        loss.backward()
        # The differences x − max are rounded at their size, and exp carries that on as a relative error of its result; exp, the sum and the
        # logarithm add a few roundings of their own.
        size = finite_max(logits.detach()) + math.log(max(logits.shape[1], 1)) + 1
        case("cross_entropy", [logits.detach(), wanted], [loss.detach(), logits.grad], 8 * U * size)

    for rows, cols in [(1, 1), (1, 2), (2, 1), (1, 10), (10, 2), (7, 3), (32, 10), (3, 33), (5, 5), (17, 4), (2, 64), (9, 2)]:
        for scale in (1.0, 10.0):
            one(values(rows, cols, scale=scale), labels(rows, cols))
    one(values(0, 3), labels(0, 3))
    one(torch.tensor([[1000.0, -1000.0], [1e4, 1e4 - 1]]), torch.tensor([1, 0]))
    for bad in (NAN, INF):
        for place in (0, 1):
            x = values(2, 3)
            x[1, place] = bad
            one(x, torch.tensor([2, 0]))
    x = values(2, 3)
    x[1, 1] = -INF
    one(x, torch.tensor([2, 0]))


def sgd():
    for shape in [*SHAPES, [100], [10, 10]]:
        for lr, momentum in ((0.125, 0.0), (0.1, 0.9)):
            start, grads = values(*shape), [values(*shape) for _ in range(3)]
            one_sgd(start, grads, lr, momentum)
    for bad in (NAN, INF, -INF, 1e-40):
        start, grads = values(3), [values(3) for _ in range(3)]
        grads[1][1] = bad
        one_sgd(start, grads, 0.1, 0.9)


def one_sgd(start, grads, lr, momentum):
    param = start.clone().requires_grad_()
    optimizer = torch.optim.SGD([param], lr=lr, momentum=momentum)
    for grad in grads:
        param.grad = grad.clone()
        optimizer.step()
    velocity = optimizer.state[param].get("momentum_buffer")
    velocity = grads[-1] if velocity is None else velocity
    # A product and a sum each are rounded in every step, or once where they are fused.
    largest = finite_max(start) + sum(finite_max(grad) for grad in grads)
    case("sgd", [start, *grads, lr, momentum], [param.detach(), velocity], 2 * 2 * len(grads) * U * largest)


def gelu(x):
    # PyTorch's own kernel. oneDNN's, the default, overflows for the largest numbers and turns +∞ into NaN.
    with torch.backends.mkldnn.flags(enabled=False):
        return torch.nn.functional.gelu(x)


def functions():
    """Functions of one operand. A unit in the last place is at most 2·U of the result. Each side's exp, log and tanh is within 2 of them of
    the exact value (kernels/src/unary.rs; SLEEF and MKL, which PyTorch uses, state 1), so the two differ by up to 4; a sigmoid adds two
    roundings on each side. Warpline's root is correctly rounded, and PyTorch's, from MKL, is within 1. A gelu rounds 1 + erf(…), up to 2,
    at the unit of 1, whatever the size of the sum: that is an error of x."""
    places = {
        "exp": (torch.exp, 4, 0),
        "log": (torch.log, 4, 0),
        "sqrt": (torch.sqrt, 1, 0),
        "tanh": (torch.tanh, 4, 0),
        "sigmoid": (torch.sigmoid, 6, 0),
        "gelu": (gelu, 4, 4),
    }
    for name, (op, units, of_x) in places.items():
        positive = name in ("log", "sqrt")
        for shape in SHAPES:
            for scale in (1.0, 8.0):
                x = values(*shape, scale=scale)
                x = x.abs() if positive else x
                case(name, [x], [op(x)], of_x * 2 * U * finite_max(x), units * 2 * U)
        for n in (*range(1, 12), 12, 12):
            x = special(n)
            small = x[x.abs() < 1e30]
            case(name, [x], [op(x)], of_x * 2 * U * finite_max(small), units * 2 * U)


# Shapes with each of their dimensions. A scalar has dimension 0.
LINES = [(shape, dim) for shape in ([], [1], [7], [33], [1, 5], [5, 1], [3, 5], [2, 3, 4], [3, 2, 1, 4]) for dim in range(max(len(shape), 1))]


def softmaxes():
    """x − max is rounded at its size, and exp carries that on as a relative error of its result. exp, the sum and the quotient add 4 units
    in the last place a side at most, and PyTorch's f32 sum of n terms up to n roundings."""

    def one(x, dim):
        n = x.shape[dim] if x.dim() else 1
        size = 2 * finite_max(x.nan_to_num(0, 0, 0))
        case("softmax", [x, dim], [torch.softmax(x, dim)], 1e-44, 2 * U * (size + n + 8))

    for shape, dim in LINES:
        for scale in (1.0, 8.0):
            one(values(*shape, scale=scale), dim)
    for shape, dim in [([0, 3], 0), ([0, 3], 1), ([3, 0], 1), ([4, 17], 1), ([2, 100], 1), ([40, 3], 0)]:
        one(values(*shape), dim)
    one(torch.tensor([[1000.0, -1000.0], [1e4, 1e4 - 1]]), 1)
    for bad in (NAN, INF, -INF):
        x = values(3, 4)
        x[1, 2] = bad
        one(x, 0)
        one(x, 1)
        one(torch.full((2, 3), bad), 1)


def maxima():
    # Few different values, so that there are ties.
    ties = lambda shape: torch.round(values(*shape))
    bad = lambda n: torch.tensor([1.0, 2.0, INF, -INF, NAN, 3.0, INF, 0.0, 5.0, -1.0, NAN, 4.0])[torch.randperm(12)[:n]]
    for shape in [s for s in SHAPES if 0 not in s] + [[1000], [33, 31]]:
        for x in (values(*shape), ties(shape)):
            case("max", [x], [x.max()])
    for n in (*range(1, 12), 12, 12, 12):
        x = bad(n)
        case("max", [x], [x.max()])
    for x in ([-INF, -INF], [NAN], [0.0, -0.0], [1e-40, 0.0]):
        case("max", [torch.tensor(x)], [torch.tensor(x).max()])
    for shape, dim in [*LINES, ([0, 3], 1), ([3, 0], 0), ([2, 100], 1), ([40, 3], 0)]:
        for x in (values(*shape), ties(shape)):
            case("max_dim", [x, dim], list(x.max(dim)))
    for _ in range(4):
        x = bad(12).reshape(3, 4)
        for dim in (0, 1):
            case("max_dim", [x, dim], list(x.max(dim)))


def layer_norms():
    """PyTorch computes the moments in f32: the mean and the deviations are rounded at the size of the input, and the quotient divides that
    error by the deviation. A product and a sum follow."""
    for eps in (1e-5, 0.5):
        for shape in ([1], [7], [33], [0, 3], [1, 5], [5, 1], [3, 5], [2, 3, 4], [4, 17], [2, 100]):
            n = shape[-1]
            for scale in (1.0, 8.0):
                x, weight, bias = values(*shape, scale=scale), values(n), values(n)
                y = torch.nn.functional.layer_norm(x, [n], weight, bias, eps)
                deviation = (x.double().var(-1, correction=0) + eps).sqrt()
                error = finite_max((x.abs().double().amax(-1) / deviation).float()) if x.numel() else 0
                case("layer_norm", [x, weight, bias, eps], [y], 16 * U * (error * finite_max(weight) + finite_max(bias)), 4 * U)
    for place in (NAN, INF, -INF):
        x, weight, bias = values(2, 4), values(4), values(4)
        x[1, 2] = place
        y = torch.nn.functional.layer_norm(x, [4], weight, bias, 1e-5)
        case("layer_norm", [x, weight, bias, 1e-5], [y], 1e-5)
        x, bias[3] = values(2, 4), place
        y = torch.nn.functional.layer_norm(x, [4], weight, bias, 1e-5)
        case("layer_norm", [x, weight, bias, 1e-5], [y], 1e-5)


def joins():
    for shape, dim in LINES:
        shape = shape or [1]
        other = lambda size: [size if d == dim else n for d, n in enumerate(shape)]
        for sizes in ([1], [2, 1], [3, 0, 1, 2]):
            parts = [values(*other(size)) for size in sizes]
            case("cat", [dim, *parts], [torch.cat(parts, dim)])
    for dtype in (torch.int64, torch.float32):
        for dim in (0, 1):
            parts = [torch.randint(-99, 99, (2, 3)).to(dtype) for _ in range(2)]
            case("cat", [dim, *parts], [torch.cat(parts, dim)])
            case("stack", [dim, *parts], [torch.stack(parts, dim)])
    for shape in SHAPES:
        for dim in range(len(shape) + 1):
            for n in (1, 3) if shape not in ([33], [4, 17]) else (2,):
                parts = [values(*shape) for _ in range(n)]
                case("stack", [dim, *parts], [torch.stack(parts, dim)])
    for dim in (0, 1):
        parts = [special(12).reshape(3, 4) for _ in range(2)]
        case("cat", [dim, *parts], [torch.cat(parts, dim)])
        case("stack", [dim, *parts], [torch.stack(parts, dim)])


def index_selects():
    for shape, dim in [*LINES, ([2, 100], 0), ([40, 3], 0), ([0, 3], 1), ([3, 0], 0)]:
        x, n = values(*shape), shape[dim] if shape else 1
        for count in (0, 1, 2 * n + 1) if shape else (1,):
            indices = torch.randint(0, n, (count,))
            case("index_select", [x, dim, indices], [x.index_select(dim, indices)])
    for n in (5, 12):
        x, indices = special(n), torch.randint(0, n, (7,))
        case("index_select", [x, 0, indices], [x.index_select(0, indices)])


def convolutions():
    def one(x, weight, bias, stride, padding, tolerance=0.0):
        y = torch.nn.functional.conv2d(x, weight, bias, stride, padding)
        pairs = [torch.tensor(pair, dtype=torch.int64) for pair in (stride, padding)]
        case("conv2d", [x, weight, 0 if bias is None else bias, *pairs], [y], tolerance)

    steps = [((1, 1), (0, 0)), ((2, 1), (1, 0)), ((1, 3), (0, 2)), ((2, 2), (2, 2))]
    shapes = [((1, 1, 3, 3), (1, 1, 1, 1)), ((2, 3, 4, 5), (2, 3, 2, 3)), ((2, 5, 3), (3, 2, 3, 1)), ((1, 2, 6, 6), (4, 2, 3, 3)), ((3, 1, 2, 7), (2, 1, 2, 2))]
    for (stride, padding), (shape, weight) in ((step, pair) for step in steps for pair in shapes):
        for bias in (None, values(weight[0])):
            one(values(*shape), values(*weight), bias, stride, padding)
    one(values(0, 2, 3, 3), values(1, 2, 2, 2), values(1), (1, 1), (0, 0))
    one(values(1, 2, 5, 5), values(3, 2, 5, 5), values(3), (1, 1), (0, 0))
    for bad in (NAN, INF):
        x, weight = values(1, 2, 3, 3), values(2, 2, 2, 2)
        x[0, 1, 1, 0] = bad
        one(x, weight, values(2), (1, 1), (1, 1))
    x, weight, bias = rough(2, 3, 5, 5), rough(2, 3, 3, 3), rough(2)
    terms = torch.nn.functional.conv2d(x.abs(), weight.abs(), bias.abs(), 1, 1)
    one(x, weight, bias, (1, 1), (1, 1), 2 * (27 + 1) * U * finite_max(terms))


torch.manual_seed(2026)
torch.set_num_threads(1)
for group in (create_and_copy, elementwise, products, reductions, losses, sgd):
    group()
# Each of the later groups has its own seed, so that a new one leaves the cases of the others as they are.
for seed, group in enumerate((functions, softmaxes, maxima, layer_norms, joins, index_selects, convolutions)):
    torch.manual_seed(seed)
    group()
path = pathlib.Path(__file__).with_name("cases.json")
head = f'{{"torch":"{torch.__version__}","cases":[\n'
path.write_text(head + ",\n".join(cases) + "\n]}\n")
print(f"{len(cases)} cases of torch {torch.__version__}, {path.stat().st_size} bytes")
