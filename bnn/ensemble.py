"""Deep ensembles: several networks of one architecture that count as one model, the paper's Ensemble-W."""

from __future__ import annotations

import copy
import itertools
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from bnn._common.checks import check_size
from bnn._common.text import listed
from bnn._engine import recompute
from bnn._engine.forward import forward_of, mark_root_
from bnn._engine.inputs import check_network
from bnn._engine.members import Mixture
from bnn._engine.seen_rows import forget_
from bnn._engine.temperature import forget_temperature_, temperature_of
from bnn.files import Path, load_, state_mismatch
from bnn.nn.base import BayesianLayer

MEMBERS = 5  # as in the paper; beyond that a deep ensemble gains little

_INSTEAD = "pass a list of networks, or init=, a function that re-initialises a network in place"


class Ensemble(Mixture):
    """M networks of one architecture as one model: the mixture 1/M sum_m p(y | x, member m).

    `ensemble(x)` is one draw: one member at random. `bnn.predict` and `bnn.draws` use members evenly, `bnn.ELBO` trains
    all of them on every batch, `bnn.save` writes one file, and `bnn.bayesianize_(ensemble, ...)` converts every member:
    with `"inducing"` that is a compressed deep ensemble.

    Args:
        net: one network, which is left alone: members are copies of it, each re-initialised by calling
            `reset_parameters()` of every module that has it, children first (BatchNorm forgets its statistics, too). Or
            a list of networks, trained or not, which become the members as they are (temperatures of calibrated ones
            are not used: calibrate the ensemble itself).
        members: M, 5 by default; for one network only.
        init: re-initialises a copy, in place, instead of `reset_parameters()`; for one network only.

    Raises:
        ValueError: a module of `net` has parameters but no `reset_parameters`; parameters are frozen; `net` is Bayesian
            already; the copies came out equal; the networks of a list differ in names or shapes, or one comes twice.

    >>> import bnn
    >>> net = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    >>> ensemble = Ensemble(net, members=3)
    >>> bnn.predict(ensemble, torch.randn(2, 64)).probs.shape
    torch.Size([2, 10])
    >>> bnn.bayesianize_(ensemble, "inducing", inducing_rows=8, inducing_cols=8)
    >>> bnn.parameter_count(net), bnn.parameter_count(ensemble)
    (7510, 7494)
    """

    members: nn.ModuleList

    def __init__(
        self,
        net: nn.Module | Sequence[nn.Module],
        members: int | None = None,
        init: Callable[[nn.Module], Any] | None = None,
    ) -> None:
        super().__init__()
        if isinstance(net, list | tuple | nn.ModuleList):
            if members is not None or init is not None:
                raise ValueError("a list of networks is taken as it is: leave out members= and init=")
            nets = list(net)
            _check_members(nets)
            _warn_of_temperatures(nets)
        else:
            nets = _fresh_copies(net, MEMBERS if members is None else members, init)
        self.members = nn.ModuleList(nets)
        mark_root_(self)

    @classmethod
    def from_files(cls, net: nn.Module | Callable[[], nn.Module], paths: Iterable[Path]) -> Ensemble:
        """An ensemble of networks that `bnn.save` wrote, a file for each member.

        Args:
            net: a plain network of their architecture, which is left alone, or a function that makes one.
            paths: the files, of plain or of converted networks.
        """
        if isinstance(paths, str | bytes | os.PathLike):
            raise TypeError(f"paths must be a list of files, one for each member, got {paths!r}")
        nets = []
        for path in paths:
            fresh = copy.deepcopy(net) if isinstance(net, nn.Module) else net()
            load_(fresh, path)
            nets.append(fresh)
        return cls(nets)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The output of the member that this draw shows: a random one, unless the draw was told."""
        forward = forward_of(self)
        draw = forward.draw
        # for gradient checkpointing: what runs again has to show the same member
        record = None if forward.root is self else recompute.note(self)
        if record is not None:
            record.of(draw, took_a_number=forward.root is None)
        shown = set(self.shown(draw).tolist())
        if len(shown) > 1:
            raise RuntimeError(f"one pass shows one member of an ensemble, these draws ask for {sorted(shown)}")
        member = self.members[shown.pop()]
        with draw.call.within(member):
            output = member(*args, **kwargs)
        recompute.keep(record, output)
        return output


def _check_members(nets: list[Any]) -> None:
    """Raises unless these are different networks of one architecture."""
    if not nets:
        raise ValueError("an ensemble needs at least one network, the list is empty")
    for i, net in enumerate(nets):
        check_network(net)
        _check_initialised(net)
        twin = next((j for j in range(i) if nets[j] is net), None)
        if twin is not None:
            raise ValueError(f"networks {twin} and {i} are the same object: copy.deepcopy it, or pass it once")
        mismatch = state_mismatch(nets[0].state_dict(), net.state_dict())
        if mismatch:
            raise ValueError(f"networks 0 and {i} differ, members need one architecture: {listed(mismatch)}")


def _warn_of_temperatures(nets: list[nn.Module]) -> None:
    """Networks that were calibrated one by one are not so together."""
    if any(temperature_of(net) != 1 for net in nets):
        warnings.warn(
            "members were calibrated, and an ensemble does not use their temperatures: calibrate the ensemble itself, "
            "bnn.calibrate_(ensemble, data)",
            UserWarning,
            stacklevel=3,
        )


def _fresh_copies(net: Any, count: int, init: Callable[[nn.Module], Any] | None) -> list[nn.Module]:
    """`count` copies of a plain network, each re-initialised."""
    check_network(net)
    check_size("members", count)
    _check_initialised(net)
    if any(isinstance(module, BayesianLayer) for module in net.modules()):
        raise ValueError(
            "a Bayesian network has no fresh start of its own: make the ensemble of the plain network first, then "
            "bnn.bayesianize_(ensemble, ...); or pass a list of converted networks"
        )
    copies = [copy.deepcopy(net) for _ in range(count)]
    for one in copies:
        forget_temperature_(one)  # it belongs to the weights that go
        forget_(one)
        if init is None:
            _reset_(one)
        elif init(one) not in (None, one):
            raise ValueError("init= must re-initialise the network it gets, in place, and return nothing")
    for (i, one), (j, other) in itertools.combinations(enumerate(copies), 2):
        if all(map(torch.equal, one.parameters(), other.parameters())):
            raise ValueError(f"members {i} and {j} have equal parameters after re-initialising: {_INSTEAD}")
    return copies


def _check_initialised(net: nn.Module) -> None:
    lazy = [name for name, parameter in net.named_parameters() if is_lazy(parameter)]
    if lazy:
        raise ValueError(f"{listed(lazy)} not initialised yet: run a forward pass first")


def _reset_(net: nn.Module) -> None:
    """Re-initialises `net`, in place: children first, as a constructor does."""
    frozen = [name for name, parameter in net.named_parameters() if not parameter.requires_grad]
    if frozen:
        raise ValueError(f"{listed(frozen)} frozen: training could not mend random values there; {_INSTEAD}")
    for name, module in reversed(list(net.named_modules())):
        # torch's attention has the method under a private name
        reset = getattr(module, "reset_parameters", getattr(module, "_reset_parameters", None))
        if callable(reset):
            reset()
        elif any(parameter is not None for parameter in module._parameters.values()):
            kind = f"{name or 'the network'} ({type(module).__name__})"
            raise ValueError(f"{kind} has parameters but no reset_parameters(): {_INSTEAD}")
