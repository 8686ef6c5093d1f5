"""Arrays as data: types and layouts that are understood, and what is refused."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
import torch

from bnn.data import arrays, preparation
from bnn.data.array_preparation import ArrayImages, ScaledInputs

RNG = np.random.default_rng(0)
X = RNG.normal(5, 3, (40, 4))
LABELS = np.arange(40) % 3
IMAGES = RNG.integers(0, 256, (12, 6, 5, 3), dtype=np.uint8)


def test_features_are_scaled_on_the_training_part_alone() -> None:
    data = arrays(X, LABELS, test=0.25, validation=0.25)
    assert (len(data.train), len(data.test), len(data.validation)) == (20, 10, 10)
    assert data.train.x.dtype == torch.float32
    torch.testing.assert_close(data.train.x.mean(0), torch.zeros(4), atol=1e-6, rtol=0)
    torch.testing.assert_close(data.train.x.std(0, correction=0), torch.ones(4))
    prepare = preparation(json.loads(json.dumps(data.preparation.to_dict())))
    assert isinstance(prepare, ScaledInputs)
    assert prepare == data.preparation
    everything = torch.cat([part.x for part in (data.train, data.test, data.validation)])
    torch.testing.assert_close(everything.sort(0).values, prepare(X).sort(0).values, atol=0, rtol=0)
    own = everything.double() * torch.tensor(prepare.sd).double() + torch.tensor(prepare.mean).double()
    torch.testing.assert_close(own.sort(0).values, torch.from_numpy(np.sort(X, 0)), atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16, np.int64, np.int8, np.uint8, bool])
def test_features_of_any_type_of_number(kind: Any) -> None:
    x = (X > 5).astype(kind)
    one = arrays(x, LABELS).train.x
    assert one.dtype == torch.float32
    torch.testing.assert_close(one, arrays(torch.from_numpy(x), LABELS).train.x)
    torch.testing.assert_close(one, arrays(x.tolist(), LABELS.tolist()).train.x)


def test_tensors_keep_their_values_whatever_they_require() -> None:
    x = torch.from_numpy(X).float().requires_grad_()
    data = arrays(x, torch.from_numpy(LABELS))
    assert not data.train.x.requires_grad
    assert arrays(x.bfloat16(), LABELS).train.x.shape == (40, 4)


def test_more_dimensions_are_scaled_by_channel() -> None:
    x = RNG.normal(5, 3, (40, 2, 7, 6)) * np.array([1, 100]).reshape(2, 1, 1)
    scaled = arrays(x, LABELS).train.x
    torch.testing.assert_close(scaled.std((0, 2, 3), correction=0), torch.ones(2))


def test_without_scaling_numbers_stay() -> None:
    data = arrays(X, X[:, :1], scale=False)
    assert torch.equal(data.train.x, torch.from_numpy(X).float())
    assert torch.equal(data.train.y, torch.from_numpy(X[:, :1]).float())
    assert data.target is None
    assert torch.equal(data.preparation(X), data.train.x)
    pixels = arrays(IMAGES, LABELS[:12], scale=False)
    torch.testing.assert_close(pixels.train.inputs(), torch.from_numpy(IMAGES).permute(0, 3, 1, 2) / 255)


def test_columns_that_never_change_stay_finite() -> None:
    x = np.c_[X, np.full(40, 0.1)]
    assert arrays(x, LABELS).train.x[:, 4].abs().max() < 1e-9


def test_real_targets() -> None:
    for y in (X[:, 0], X[:, :1], X[:, :2]):
        data = arrays(X, y, test=0.25)
        assert data.task == "regression"
        assert data.out_features == (1 if y.ndim == 1 else y.shape[1])
        torch.testing.assert_close(data.train.y.std(0, correction=0), torch.ones(data.out_features))
        own = torch.cat([data.target.own_units(part.y) for part in (data.train, data.test)])
        torch.testing.assert_close(
            own[:, 0].sort().values, torch.from_numpy(np.sort(X[:, 0])).float(), atol=1e-5, rtol=0
        )
    assert arrays(X, LABELS, task="regression").train.y.shape == (40, 1)


def test_labels_of_any_kind() -> None:
    for y, classes in (
        (LABELS, ("0", "1", "2")),
        (LABELS * 5 - 5, ("-5", "0", "5")),
        (LABELS > 0, ("0", "1")),
        (LABELS[:, None].astype(np.uint8), ("0", "1", "2")),
        (np.array(["c", "a", "b"])[LABELS], ("a", "b", "c")),
        (np.array(["c", "a", "b"], dtype=object)[LABELS], ("a", "b", "c")),
        (np.array([b"c", b"a", b"b"])[LABELS], ("a", "b", "c")),
    ):
        data = arrays(X, y)
        assert (data.task, data.classes) == ("classification", classes)
        values = sorted(set(np.ravel(y).tolist()))
        assert data.train.y.tolist() == [values.index(one) for one in np.ravel(y).tolist()]
        assert data.train.y.dtype == torch.int64
    assert arrays(X, LABELS.astype(float), task="classification").classes == ("0", "1", "2")


def test_classes_name_the_labels_in_their_order() -> None:
    assert arrays(X, LABELS, classes=["x", "y", "z", "never"]).classes == ("x", "y", "z", "never")
    text = np.array(["c", "a", "b"])[LABELS]
    data = arrays(X, text, classes=["c", "b", "a"])
    assert data.train.y[:3].tolist() == [0, 2, 1]
    with pytest.raises(ValueError, match=r"y\[2\] is 2, which is none of the classes 0; 1"):
        arrays(X, LABELS, classes=["x", "y"])
    with pytest.raises(ValueError, match=r"y\[0\] is 'c', which is none of the classes 'a'; 'b'"):
        arrays(X, text, classes=["a", "b"])


@pytest.mark.parametrize("layout", ["NHWC", "NCHW", "NHW"])
def test_layouts_of_images(layout: str) -> None:
    first = IMAGES.transpose(0, 3, 1, 2)
    x = {"NHWC": IMAGES, "NCHW": first, "NHW": IMAGES[..., 0]}[layout]
    data = arrays(x, LABELS[:12], test=0.25)
    assert data.train.x.dtype == torch.uint8
    assert data.in_shape == ((1, 6, 5) if layout == "NHW" else (3, 6, 5))
    torch.testing.assert_close(data.train.inputs().mean((0, 2, 3)), torch.zeros(data.in_shape[0]), atol=1e-5, rtol=0)
    prepare = preparation(json.loads(json.dumps(data.preparation.to_dict())))
    assert isinstance(prepare, ArrayImages)
    assert prepare == data.preparation
    everything = torch.cat([data.train.x, data.test.x])
    want = torch.from_numpy(first[:, :1] if layout == "NHW" else first)
    assert {one.numpy().tobytes() for one in everything} == {one.contiguous().numpy().tobytes() for one in want}
    torch.testing.assert_close(prepare(x), data.train.prepare(want.contiguous()))
    assert torch.equal(arrays(x, LABELS[:12], layout=layout).train.x, want)


def test_layouts_that_could_be_two_are_asked_for() -> None:
    for shape in ((12, 3, 8, 3), (12, 4, 8, 4)):
        x = np.zeros(shape, dtype=np.uint8)
        with pytest.raises(
            ValueError, match="could have their channels first or last: say layout='NCHW' or layout='NHWC'"
        ):
            arrays(x, LABELS[:12])
        assert arrays(x, LABELS[:12], layout="NHWC").train.x.shape == (12, shape[3], *shape[1:3])
    with pytest.raises(ValueError, match=r"layout must be one of \['NCHW', 'NHWC', 'NHW'\], got 'CHWN'"):
        arrays(IMAGES, LABELS[:12], layout="CHWN")
    with pytest.raises(ValueError, match=r"expected images NHWC of uint8, 0 to 255; got float64 of shape \(40, 4\)"):
        arrays(X, LABELS, layout="NHWC")


def test_files(tmp_path: pathlib.Path) -> None:
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", LABELS)
    want = arrays(X[:30], LABELS[:30], test=(X[30:], LABELS[30:]))
    assert torch.equal(arrays(tmp_path / "x.npy", str(tmp_path / "y.npy")).train.x, arrays(X, LABELS).train.x)
    both = tmp_path / "both.npz"
    np.savez(both, x_train=X[:30], y_train=LABELS[:30], x_test=X[30:], y_test=LABELS[30:])
    data = arrays(both, both, test=(both, both))
    assert torch.equal(data.train.x, want.train.x)
    assert torch.equal(data.test.x, want.test.x)
    assert torch.equal(data.test.y, want.test.y)
    for alone in (arrays(both), arrays(both, test=0.5)):
        assert torch.equal(alone.train.x, want.train.x) == (len(alone.test) == 10)
    np.savez(tmp_path / "one.npz", anything=X)
    assert torch.equal(arrays(tmp_path / "one.npz", LABELS).train.x, arrays(X, LABELS).train.x)
    assert torch.equal(data.preparation(tmp_path / "x.npy")[30:], data.test.x)


def test_files_that_cannot_be_read(tmp_path: pathlib.Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([{}, []], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"objects.npy: it holds Python objects, which are not read; save numbers"):
        arrays(tmp_path / "objects.npy", LABELS)
    np.savez(tmp_path / "objects.npz", x=np.array([{}, []], dtype=object))
    with pytest.raises(ValueError, match=r"objects.npz: it holds Python objects"):
        arrays(tmp_path / "objects.npz", LABELS)
    np.savez(tmp_path / "two.npz", first=X, second=X)
    with pytest.raises(KeyError, match=r"has no array named 'x' or 'x_train'; it has \['first', 'second'\]"):
        arrays(tmp_path / "two.npz", LABELS)
    for name, content in (
        ("text.npy", b"hello"),
        ("cut.npz", (tmp_path / "two.npz").read_bytes()[:200]),
        ("no.npy", b""),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"cannot read .*{name}: expected a .npy or .npz file"):
            arrays(tmp_path / name, LABELS)
    with pytest.raises(TypeError, match=r"y is missing: give x and y, or the path of an \.npz file"):
        arrays(X)
    np.savez(tmp_path / "one.npz", x=X)
    with pytest.raises(KeyError, match=r"one.npz has no array named 'y' or 'y_train'; it has \['x'\]"):
        arrays(tmp_path / "one.npz")
    with pytest.raises(FileNotFoundError, match=r"there is no file .*absent"):
        arrays(tmp_path / "absent.npy", LABELS)


def bad(value: float) -> Any:
    x = X.copy()
    x[3, 2] = value
    return x


REFUSED: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "nan in x": (bad(np.nan), LABELS, {}, r"x\[3, 2\] is nan; fill in or leave out such inputs"),
    "inf in x": (bad(-np.inf), LABELS, {}, r"x\[3, 2\] is -inf"),
    "nan in y": (X, bad(np.nan)[:, 2], {}, r"y\[3\] is nan"),
    "nan in labels": (X, bad(np.nan)[:, 2], {"task": "classification"}, r"y\[3\] is nan"),
    "nan in test": (X, LABELS, {"test": (bad(np.nan), LABELS)}, r"x of test\[3, 2\] is nan"),
    "other lengths": (X, LABELS[:39], {}, "must be equally long, got 40 inputs and 39 targets"),
    "nothing": (X[:0], LABELS[:0], {}, "need at least one input"),
    "one dimension": (X[:, 0], LABELS, {}, r"must have the shape \(N, D\) .*x\[:, None\] is one column"),
    "a number": (3.0, LABELS, {}, "need at least one input"),
    "a ragged list": ([[1], [1, 2]], [0, 1], {}, "x must be an array, got a list"),
    "one-hot labels": (X, np.eye(40), {"task": "classification"}, r"must have the shape \(N,\).*argmax"),
    "broken labels": (X, X[:, 0], {"task": "classification"}, r"y\[0\] is .*: labels are whole numbers or text"),
    "ids": (X, np.arange(40), {}, "40 different whole numbers in 40 rows: say task='regression'"),
    "one class": (X, LABELS * 0, {}, "at least two classes"),
    "a constant": (X, X[:, 0] * 0 + 0.1, {}, "column 0 of y is 0.1 in all of the training part"),
    "a new class": (X, LABELS, {"test": (X, LABELS + 1)}, r"y of test\[2\] is 3, which is none of the classes 0; 1; 2"),
    "other inputs": (
        X,
        LABELS,
        {"test": (X[:, :3], LABELS)},
        r"inputs of test have the shape \(3,\), those of train \(4,\)",
    ),
    "other targets": (
        X,
        X,
        {"test": (X, X[:, :3])},
        "same number of columns in every part, got {'train': 4, 'test': 3}",
    ),
    "half a pair": (X, LABELS, {"test": (X,)}, r"test must be a fraction, a pair \(x, y\) or None, got 1 things"),
    "a fraction": (X, LABELS, {"test": 2}, r"test, if no pair \(x, y\), must be a fraction from 0 up to 1"),
    "a task": (X, LABELS, {"task": "ranking"}, "unknown task 'ranking'"),
    "too large": (X * 1e300, LABELS, {}, "too large to scale"),
}


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize(("x", "y", "options", "error"), REFUSED.values(), ids=REFUSED)
def test_errors_name_the_place(x: Any, y: Any, options: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        arrays(x, y, **options)


@pytest.mark.parametrize("x", [X.astype(object), X.astype(str), X + 1j], ids=["objects", "text", "complex"])
def test_inputs_are_numbers(x: Any) -> None:
    with pytest.raises(TypeError, match=r"x is an array of Python objects \(float\)|x must hold numbers, got"):
        arrays(x, LABELS)


def test_new_inputs_that_do_not_fit() -> None:
    features, images = arrays(X, LABELS).preparation, arrays(IMAGES, LABELS[:12]).preparation
    with pytest.raises(ValueError, match=r"x must have the shape \(N, 4\), got \(40, 3\)"):
        features(X[:, :3])
    with pytest.raises(ValueError, match=r"x\[3, 2\] is nan"):
        features(bad(np.nan))
    with pytest.raises(ValueError, match=r"x \(as float32\)\[3, 2\] is inf"):
        features(bad(1e300))
    with pytest.raises(
        ValueError, match=r"expected images NHWC of uint8, 0 to 255; got float64 of shape \(12, 6, 5, 3\)"
    ):
        images(IMAGES / 255)
    with pytest.raises(ValueError, match=r"expected images \(3, 6, 5\) \(C, H, W\), got \(3, 5, 6\)"):
        images(IMAGES.transpose(0, 2, 1, 3))
