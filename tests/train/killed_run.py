"""Trains in a child process, kills it at random instants, starts it again until it ends, and compares the bits.

Run as a program by test_resume.py: python killed_run.py <folder> <kills> <seed> <kind> .... Forking after the imports
makes a start cheap, so that kills fall all over the run: in steps, in checkpoints, between epochs, while it ends.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time

import torch

import bnn


def network(kind: str) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [
        torch.nn.Linear(8, 32),
        torch.nn.BatchNorm1d(32),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(32, 3),
    ]
    net: torch.nn.Module = torch.nn.Sequential(*layers)
    if kind == "ensemble":
        net = bnn.Ensemble(net, members=2)
    q = "ensemble" if kind == "ensemble-u" else "diagonal"
    if kind != "plain":
        bnn.bayesianize_(net, "inducing", inducing_rows=4, inducing_cols=4, q_inducing=q)
    return net


def train(folder: str | None, kind: str) -> torch.nn.Module:
    net = network(kind)
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(203, 8, generator=generator), torch.randint(3, (203,), generator=generator)
    optimiser = {"optimiser": "sgd", "lr": 0.02} if kind == "plain" else {"optimiser": "adam", "lr": 1e-2}
    patience = {"patience": 2} if kind != "ensemble" else {}
    bnn.fit(
        net, (x[:150], y[:150]), validation=(x[150:], y[150:]), epochs=5, batch_size=20, out=folder, seed=7,
        save_every=0, warmup=1, anneal=2, milestones=[3], clip=1.0, tensorboard=False, progress=False,
        **optimiser, **patience,
    )  # fmt: skip
    return net


def killed(folder: str, kind: str, after: float) -> bool:
    """Whether a run that is killed `after` seconds did not get to its end."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            train(folder, kind)
            status = 0
        finally:
            os._exit(status)
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the run failed by itself"
    return os.WIFSIGNALED(status)


def finished(folder: str, kind: str, expected: dict[str, torch.Tensor]) -> dict[str, object]:
    """What the run in `folder` ends with."""
    state = train(folder, kind).state_dict()
    with open(os.path.join(folder, "metrics.jsonl")) as file:
        epochs = [json.loads(line)["epoch"] for line in file]
    same = all(torch.equal(expected[name], state[name]) for name in expected)
    return {"same": same, "epochs": epochs, "left": [name for name in os.listdir(folder) if name.endswith(".tmp")]}


def survived(folder: str, kind: str, kills: int, rng: random.Random) -> dict[str, object]:
    """Kills runs of this kind so many times, and says how they ended."""
    train(None, kind)  # imports what is imported late
    expected = train(None, kind).state_dict()
    began = time.monotonic()
    train(os.path.join(folder, "timed"), kind)
    length = time.monotonic() - began
    count, ends = 0, []
    while count < kills:
        run = os.path.join(folder, str(len(ends)))
        while count < kills and killed(run, kind, rng.uniform(0.02, 0.6) * length):
            count += 1
        ends.append(finished(run, kind, expected))
    return {"kills": count, "ends": ends}


def main() -> None:
    folder, kills, seed, *kinds = sys.argv[1:]
    torch.set_num_threads(1)
    rng = random.Random(int(seed))
    print(json.dumps({kind: survived(os.path.join(folder, kind), kind, int(kills), rng) for kind in kinds}))


if __name__ == "__main__":
    main()
