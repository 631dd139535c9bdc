"""What PyTorch computes with the models of tests/support/note.rs.

    pip install torch && python tests/support/modules.py

writes modules.json beside this file. Weights and inputs come from a formula, which the tests use too, so only outputs
are stored.

The two convolutions are exact in f32 whatever the order of their sums: weights are multiples of 1/16 below 1/2 and
inputs of 1/8 below 3/4, so the 500 terms of a sum are multiples of 1/2048 and their magnitudes add up to less than
2^24/2048. The script checks this against f64. The recurrent network has tanh, which is rounded.
"""

import json
import pathlib

import torch


def numbers(salt, *shape):
    """Multiples of 1/16 from -1/2 to 1/2, which differ from tensor to tensor by their salt."""
    index = torch.arange(torch.Size(shape).numel())
    return (((index * 37 + salt * 11) % 17 - 8) / 16).reshape(shape)


def filled(module):
    with torch.no_grad():
        for salt, parameter in enumerate(module.parameters()):
            parameter.copy_(numbers(salt, *parameter.shape))
    return module


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 20, 5)
        self.conv2 = torch.nn.Conv2d(20, 20, 5)

    def forward(self, x):
        return torch.relu(self.conv2(torch.relu(self.conv1(x))))


def two_convolutions():
    net, x = filled(Net()), numbers(100, 1, 28, 28) * 1.5
    with torch.no_grad():
        y = net(x)
        assert (y.double() == net.double()(x.double())).all(), "not exact in f32"
    return {
        "shape": list(y.shape),
        "names": [name for name, _ in net.named_parameters()],
        "parameters": sum(parameter.numel() for parameter in net.parameters()),
        "sum": y.double().sum().item(),
        "every_125th": y.flatten()[::125].tolist(),
    }


def recurrent(nonlinearity):
    cell = filled(torch.nn.RNNCell(3, 4, nonlinearity=nonlinearity))
    x = numbers(100, 5, 2, 3)
    h = x.new_zeros(2, 4)
    with torch.no_grad():
        for step in x:
            h = cell(step, h)
    return h.flatten().tolist()


def layers():
    """A linear layer on three dimensions, a normalization, and another linear layer."""
    net = filled(
        torch.nn.Sequential(
            torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.LayerNorm(5), torch.nn.Flatten(), torch.nn.Linear(15, 4)
        )
    )
    with torch.no_grad():
        y = net(numbers(100, 2, 3, 6))
    return {"names": list(net.state_dict()), "output": y.flatten().tolist()}


stored = {
    "two_convolutions": two_convolutions(),
    "rnn_tanh": recurrent("tanh"),
    "rnn_relu": recurrent("relu"),
    "layers": layers(),
}
text = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in stored.items())
pathlib.Path(__file__).with_suffix(".json").write_text("{\n" + text + "\n}\n")
