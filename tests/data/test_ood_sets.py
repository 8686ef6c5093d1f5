"""Made inputs: what each kind keeps of the inputs it is like, and what it changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import bnn
from bnn.data import Part, strange, synthetic_ood
from bnn.data.ood_sets import FONTS, KINDS, LETTERS, kinds


def images(n: int = 30, channels: int = 3) -> Part:
    x = torch.randint(100, (n, channels, 9, 7), dtype=torch.uint8)
    return Part(x, torch.zeros(n, dtype=torch.long), lambda x: x.float())


def rows(n: int = 200) -> Part:
    x = torch.randn(n, 3) * torch.tensor([1.0, 2.0, 0.5]) + 5
    return Part(torch.cat([x, 2 * x[:, :1]], 1), torch.randn(n, 1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("like", [images(), images(channels=1), rows()], ids=["colour", "grey", "table"])
def test_shape_preparation_and_seed(kind: str, like: Part) -> None:
    if kind not in kinds(like):
        pytest.skip(f"no {kind} of these")
    made, again, other = (synthetic_ood(kind, like, seed) for seed in (0, 0, 1))
    assert (made.x.shape, made.x.dtype, made.y, made.prepare) == (like.x.shape, like.x.dtype, None, like.prepare)
    assert torch.equal(made.x, again.x)
    assert torch.equal(made.x, other.x) == (kind in ("inverted", "far"))
    assert not torch.equal(made.x, like.x)


def test_what_each_kind_of_image_keeps() -> None:
    like = images()
    assert torch.equal(255 - synthetic_ood("inverted", like).x, like.x)
    shuffled = synthetic_ood("shuffled", like).x

    def pixels(x: torch.Tensor) -> list[list[tuple[int, ...]]]:
        return [sorted(map(tuple, one.flatten(1).T.tolist())) for one in x]

    assert pixels(shuffled) == pixels(like.x)  # all channels of a pixel together
    assert not torch.equal(shuffled[0].argsort(), shuffled[1].argsort())  # an order of its own for each
    noise = synthetic_ood("noise", images(400)).x.double()
    assert abs(noise.mean() - 127.5) < 1.5  # 75,600 uniform numbers: five standard errors are 1.4
    assert noise.max() == 255


def test_letters_are_strokes_that_reach_two_sides() -> None:
    count = len(FONTS) * len(LETTERS)
    letters = synthetic_ood("letters", images(count)).x
    assert len({one.numpy().tobytes() for one in letters}) > 0.85 * count  # each once; some look the same so small
    assert (letters[:, 0] == letters[:, 1]).all()
    filled = (letters[:, 0] > 0).double()
    high, wide = (filled.amax(axis).mean(1) for axis in (2, 1))
    assert (torch.maximum(high, wide) > 0.85).all()  # all but one row or column
    bright = Part(200 + images().x // 2)
    assert torch.equal(synthetic_ood("letters", bright, 3).x, 255 - synthetic_ood("letters", images(), 3).x)
    assert not set("0123456789OoIlSsBZzQqGgbDUun") & set(LETTERS)


def test_what_each_kind_of_table_keeps() -> None:
    like = rows()
    shuffled = synthetic_ood("shuffled", like).x
    assert torch.equal(shuffled.sort(0).values, like.x.sort(0).values)
    assert abs(np.corrcoef(shuffled[:, 0], shuffled[:, 3])[0, 1]) < 0.3  # 1 before; sd 0.07 of independent ones
    far = synthetic_ood("far", like).x
    torch.testing.assert_close(far.mean(0), like.x.mean(0))
    torch.testing.assert_close(far.std(0), 3 * like.x.std(0))
    noise = synthetic_ood("noise", like).x
    assert (noise >= like.x.amin(0)).all()
    assert (noise <= like.x.amax(0)).all()


def test_mistakes_say_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"no synthetic inputs 'far' for images; expected one of \['noise', "):
        synthetic_ood("far", images())
    with pytest.raises(ValueError, match=r"no synthetic inputs 'letters' for tables; .*'far'\]"):
        synthetic_ood("letters", rows())


def test_evaluate_takes_them_by_name() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(189, 2))
    like = images()
    found = bnn.evaluate(net, like, ood=["noise", "letters"], resamples=30)
    want = bnn.evaluate(
        net, like, ood={"noise": synthetic_ood("noise", like), "letters": synthetic_ood("letters", like)}, resamples=30
    )
    assert found == want
    with pytest.raises(ValueError, match=r"'nois' is neither .*synthetic inputs are noise, shuffled"):
        bnn.evaluate(net, like, ood="nois")


def test_the_name_of_earlier_versions() -> None:
    assert strange is synthetic_ood
