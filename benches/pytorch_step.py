"""The steps of benches/step.rs in PyTorch: prints steps a second.

    pytorch_step.py STEPS LOOK THREADS [--fused]

64 inputs, 128 hidden units, 10 classes, batches of 32 that are in memory already; cross entropy, SGD with momentum; the loss
is read every LOOK steps. `--fused` takes the optimizer's fused form, which PyTorch does not take by itself on a CPU.
"""

import sys
import time

import torch

STEPS, LOOK, THREADS = (int(argument) for argument in sys.argv[1:4])
torch.set_num_threads(THREADS)
torch.manual_seed(1)

model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
loss_of = torch.nn.CrossEntropyLoss()
fused = True if "--fused" in sys.argv else None
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=fused)
batches = [
    (torch.randn(32, 64), torch.tensor([(row * 7 + batch * 3) % 10 for row in range(32)])) for batch in range(16)
]


def train(steps):
    for at in range(1, steps + 1):
        x, labels = batches[at % len(batches)]
        optimizer.zero_grad()
        loss = loss_of(model(x), labels)
        loss.backward()
        optimizer.step()
        if at % LOOK == 0:
            last = loss.item()
    return last


train(max(STEPS // 5, LOOK))
start = time.perf_counter()
train(STEPS)
print(STEPS / (time.perf_counter() - start))
