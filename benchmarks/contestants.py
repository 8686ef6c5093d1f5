"""What competes: plain networks, their converted copies, and what is done with them.

Only the public interface of `bnn` is used here, so that `compare.py` can run it on other versions of the library.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bnn
from bnn.nn.nets import make_network

LAMDA: dict[str, Any] = {"init_lamda": 0.03, "max_lamda": 0.03}
IMAGE = (3, 32, 32)
DENSE = {  # name in a row: (title, M, width of the input)
    "mlp1024": ("MLP 1024-1024-1024, M=32", 32, 1024),
    "linear4096": ("Linear 4096x4096, M=64", 64, 4096),
}


def resnet(name: str, device: torch.device) -> nn.Module:
    """A ResNet for images of 32 x 32."""
    return make_network(name, out_features=10, kernel_size=3, remove_maxpool=True).to(device)


def dense(name: str, device: torch.device) -> nn.Module:
    """A network of linear layers of one width."""
    if name == "linear4096":
        return nn.Linear(4096, 4096).to(device).eval()
    layers = [nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024)]
    return nn.Sequential(*layers).to(device).eval()


def warmed(plain: nn.Module, shape: tuple[int, ...], device: torch.device) -> nn.Module:
    """The network with running statistics that keep activations at a natural scale."""
    plain.train()
    with torch.no_grad():
        for _ in range(20):
            plain(torch.randn(32, *shape, device=device))
    return plain.eval()


def converted(plain: nn.Module, family: str = "inducing", m: int = 64, **options: Any) -> nn.Module:
    """A converted copy with M = m."""
    net = copy.deepcopy(plain)
    sizes = {"inducing_rows": m, "inducing_cols": m} if family == "inducing" else {}
    bnn.bayesianize_(net, family, **sizes, **options)
    return net.eval()


def variant(plain: nn.Module, label: str, m: int = 64) -> nn.Module:
    """The converted copy that a column of the tables names."""
    match label:
        case "lamda=0":
            return converted(plain, m=m, max_lamda=0)
        case "auto" | "local" | "weight":
            return converted(plain, m=m, sampling=label, **LAMDA)
        case "ffg":
            return converted(plain, "ffg", init_sd=0.01)
    raise ValueError(f"unknown label {label!r}; expected one of ['auto', 'ffg', 'lamda=0', 'local', 'weight']")


def split(plain: nn.Module, label: str, m: int = 64) -> nn.Module:
    """`variant` with split kernels where they take fewer parameters (`kernel="auto"`).

    Every split layer has the largest M with which it has no more parameters than the paper's matrix with M = m.
    """
    options: dict[str, Any] = {"max_lamda": 0} if label == "lamda=0" else {"sampling": label, **LAMDA}
    net = copy.deepcopy(plain)
    sizes = {"inducing_rows": m, "inducing_cols": m}
    inference: Any = {net: {"inference": "inducing", **sizes}}
    for name, layer in net.named_modules():
        if isinstance(layer, nn.Conv2d) and _pays(layer):
            side = _side(layer, m)
            inference[name] = {"inference": "inducing", "inducing_rows": side, "inducing_cols": side}
    bnn.bayesianize_(net, inference, kernel="auto", **options)
    return net.eval()


def _pays(layer: nn.Conv2d) -> bool:
    c_out, c_in, kh, kw = layer.weight.shape
    return kw > 1 and c_out < c_in * kh


def _side(layer: nn.Conv2d, m: int) -> int:
    """The largest M of the split kernel that takes no more parameters than the paper's matrix with M = m."""
    c_out, c_in, kh, kw = layer.weight.shape
    limit = m * (c_out + c_in * kh * kw) + 2 * m * m + 2 * m
    side = m
    while (side + 1) * (c_out * kw + c_in * kh) + 2 * (side + 1) ** 2 + 2 * (side + 1) <= limit:
        side += 1
    return side


def passes(net: nn.Module, x: Tensor, k: int) -> None:
    """K passes in a Python loop; of a converted network, K draws."""
    with torch.no_grad():
        for _ in range(k):
            net(x)


def papers_way(net: nn.Module, x: Tensor, k: int) -> None:
    """`weight` in a Python loop, every factor computed in every pass."""
    resets: list[Any] = [module.reset_cache for module in net.modules() if hasattr(module, "reset_cache")]
    if not resets:
        raise ValueError("no layer can forget its factors: this would not be the paper's way")
    with torch.no_grad():
        for _ in range(k):
            for reset in resets:
                reset()
            net(x)


def no_grad_draws(net: nn.Module, x: Tensor, k: int) -> None:
    """K draws of the raw outputs, without gradients."""
    with torch.no_grad():
        bnn.draws(net, x, samples=k)


def training_step(net: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    """A function that makes one step of Adam on the ELBO: forward, KL, backward, step."""
    net.train()
    elbo = bnn.ELBO(net, num_data=50_000, likelihood="categorical")
    optimiser = torch.optim.Adam(elbo.parameters(), lr=1e-4)

    def step() -> None:
        optimiser.zero_grad()
        elbo(x, y).loss.backward()
        optimiser.step()

    return step


def plain_step(net: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    """A function that makes one step of Adam on the cross-entropy of a plain network."""
    net.train()
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-4)

    def step() -> None:
        optimiser.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimiser.step()

    return step


def check_spread(auto: nn.Module, x: Tensor, draws: int, tolerance: float = 0.05) -> float:
    """The sd of the logits under `auto` over that under `weight`; stops the run if they differ.

    Both have the same parameters: two conversions would not, where M exceeds the width of a layer and the rest of Z is
    random. A ratio that is off by chance gets a second look with four times as many draws.
    """
    weight = copy.deepcopy(auto)
    bnn.set_sampling_(weight, "weight")
    for count in (draws, 4 * draws):
        with torch.no_grad():
            spread = [_spread(net, x, count) for net in (auto, weight)]
        ratio = spread[0] / spread[1]
        if abs(ratio - 1) <= tolerance:
            return ratio
    sys.exit(f"the sd of the logits is {spread[0]:.4f} under auto and {spread[1]:.4f} under weight: not the same")


def _spread(net: nn.Module, x: Tensor, draws: int) -> float:
    """The root mean square over inputs and logits of the sd over draws."""
    return float(bnn.draws(net, x, samples=draws).var(0).mean().sqrt())
