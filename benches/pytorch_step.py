"""The steps of benches/step.rs in PyTorch.

Prints steps per second, or on a GPU rows as benches/cuda_device prints them for scripts.

    pytorch_step.py STEPS LOOK THREADS [--fused]
    pytorch_step.py STEPS LOOK THREADS --cuda

The model has 64 inputs, 128 hidden units and 10 classes, and trains by cross entropy and SGD with
momentum. Its batches of 32 are in memory from the start, and the loss is read every LOOK steps.
`--fused` selects the fused form of the optimizer, which PyTorch does not select by itself on a CPU.
`--cuda` runs both forms alternately, each op by op and as a CUDA graph. Each batch is copied into the
inputs of the graph.
"""

import sys
import time

import torch

STEPS, LOOK, THREADS = (int(argument) for argument in sys.argv[1:4])
ROUNDS = 9


class Training:
    def __init__(self, device, fused, graph=False):
        torch.manual_seed(1)
        self.model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)).to(device)
        self.loss_of = torch.nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9, fused=fused)
        self.batches = [
            (
                torch.randn(32, 64).to(device),
                torch.tensor([(row * 7 + batch * 3) % 10 for row in range(32)]).to(device),
            )
            for batch in range(16)
        ]
        self.step = self.captured() if graph else self.op_by_op

    def op_by_op(self, x, labels):
        self.optimizer.zero_grad()
        loss = self.loss_of(self.model(x), labels)
        loss.backward()
        self.optimizer.step()
        return loss

    def captured(self):
        inputs = [tensor.clone() for tensor in self.batches[0]]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.op_by_op(*inputs)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = self.op_by_op(*inputs)

        def step(*batch):
            for mine, its in zip(inputs, batch):
                mine.copy_(its)
            graph.replay()
            return loss

        return step

    def train(self, steps):
        for at in range(1, steps + 1):
            loss = self.step(*self.batches[at % len(self.batches)])
            if at % LOOK == 0:
                last = loss.item()
        return last

    def rate(self):
        start = time.perf_counter()
        self.train(STEPS)
        return STEPS / (time.perf_counter() - start)


def on_a_gpu():
    forms = {
        f"{optimizer}, {how}": Training("cuda:0", fused, graph)
        for optimizer, fused in (("default SGD", None), ("fused SGD", True))
        for how, graph in (("op by op", False), ("as a CUDA graph", True))
    }
    rates = {name: [] for name in forms}
    for turn in range(ROUNDS + 1):
        for name, training in forms.items():
            rate = training.rate()
            if turn > 0:
                rates[name].append(rate)
    for name, all in rates.items():
        all.sort()
        what = f"PyTorch: training steps, {name}, loss read every {LOOK if LOOK > 1 else 'step'}"
        figures = (f"{all[round((len(all) - 1) * share)]:.0f}" for share in (0.5, 0.1, 0.9))
        print("row", what, "steps/s", "", "", *figures, *[""] * 7, sep="\t")


torch.set_num_threads(THREADS)
if "--cuda" in sys.argv:
    on_a_gpu()
else:
    training = Training("cpu", True if "--fused" in sys.argv else None)
    training.train(max(STEPS // 5, LOOK))
    print(training.rate())
