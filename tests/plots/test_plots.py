"""What each plot draws: the numbers of its lines and bars, labels, ticks, guides, and its errors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from numpy.testing import assert_allclose
from plot_cases import HISTOGRAM, NAN, POINTS, RELIABILITY, ROC, SERIES, Plot, ends, guides, lines, new_axes, ticks

from bnn import plots
from bnn.plots.calibration import AREA, LEAST

every_plot = pytest.mark.parametrize("plot", SERIES, ids=[plot.id for plot in SERIES])


@every_plot
def test_a_plot_returns_its_labelled_axes(plot: Plot) -> None:
    ax = new_axes()
    assert plot.draw(ax) is ax
    assert ax.get_xlabel()
    assert ax.get_ylabel()
    assert ax.get_legend() is None  # without a label there is nothing to say
    assert len(lines(ax)) == 1


@every_plot
def test_two_series_on_the_same_axes(plot: Plot) -> None:
    ax = new_axes()
    plot.draw(ax, label="first")
    plot.draw(ax, label="second")
    one, two = lines(ax)
    assert (one.get_color(), two.get_color()) == plots.PALETTE[:2]
    assert one.get_marker() != two.get_marker()
    assert len(guides(ax)) == plot.guides
    legend = ax.get_legend()
    shown = [text.get_text() for text in (legend.get_texts() if legend else ax.texts)]
    assert shown == ["first", "second"]
    assert (legend is not None) == plot.key


@every_plot
def test_the_colour_asked_for(plot: Plot) -> None:
    ax = new_axes()
    plot.draw(ax, color=plots.PALETTE[3])
    plot.draw(ax, color="#123456")
    assert [line.get_color() for line in lines(ax)] == [plots.PALETTE[3], "#123456"]
    assert lines(ax)[0].get_marker() == plots.series(3)["marker"]  # the look goes with the colour
    for artists in ax.collections:
        assert {to_hex(c) for c in artists.get_edgecolor()} <= {plots.PALETTE[3], "#123456"}


@every_plot
def test_nothing_to_draw_is_an_error_and_draws_nothing(plot: Plot) -> None:
    ax = new_axes()
    with pytest.raises(ValueError, match="nothing to draw"):
        plot.nothing(ax)
    assert not [*ax.lines, *ax.collections, *ax.texts, *ax.patches]


def test_reliability() -> None:
    ax = plots.reliability(new_axes(), RELIABILITY, label="a")
    assert_allclose(lines(ax)[0].get_xydata(), [[0.3, 0.2], [0.6, 0.7], [0.9, 0.8]])  # the empty bin is left out
    markers = ax.collections[0]
    assert_allclose(markers.get_offsets(), lines(ax)[0].get_xydata())
    assert_allclose(markers.get_sizes(), [AREA * 0.1, AREA * 0.3, AREA * 0.6])
    assert_allclose(guides(ax)[0].get_xydata(), [[0, 0], [1, 1]])
    assert ticks(ax.xaxis) == ticks(ax.yaxis) == ["0%", "20%", "40%", "60%", "80%", "100%"]
    assert lines(ax)[0].get_markevery() == []  # the bins have markers of their own
    assert ax.get_legend().get_lines()[0].get_marker() == "o"


def test_reliability_with_counts_and_with_a_bin_of_almost_nothing() -> None:
    curve = SimpleNamespace(probability=[0.5, 0.9, 0.7], frequency=[0.5, 0.9, 0.7], weights=[1, 999, 0])
    sizes = plots.reliability(new_axes(), curve).collections[0].get_sizes()
    assert_allclose(sizes, [LEAST, AREA * 0.999])


def test_shares_that_are_none() -> None:
    curve = SimpleNamespace(probability=[50.0], frequency=[0.5], weights=[1.0])
    with pytest.raises(ValueError, match=r"probability must be shares in \[0, 1\]; 1 are not, the first is 50"):
        plots.reliability(new_axes(), curve)


def test_columns_of_several_lengths() -> None:
    with pytest.raises(ValueError, match="shapes must be equal"):
        plots.training_curve(new_axes(), [1, 2], [0.5], ylabel="nll")
    with pytest.raises(ValueError, match=r"values must have shape \(N,\); got \(1, 2\)"):
        plots.training_curve(new_axes(), [1, 2], [[0.5, 0.4]], ylabel="nll")


def test_score_histogram() -> None:
    ax = plots.score_histogram(new_axes(), HISTOGRAM, inside="digits", outside="letters", xlabel="entropy")
    inside, outside = ax.patches
    assert_allclose(inside.get_data().values, [0.6, 0.3, 0.1])
    assert_allclose(outside.get_data().values, [0, 0.25, 0.75])
    assert_allclose(outside.get_data().edges, HISTOGRAM.edges)
    assert (to_hex(inside.get_facecolor()), to_hex(outside.get_edgecolor())) == plots.PALETTE[:2]
    assert 0 < inside.get_facecolor()[3] < 1  # the other shows through
    assert outside.get_hatch()
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["digits", "letters"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("entropy", "share of inputs")
    assert ax.get_ylim()[0] == 0
    assert ticks(ax.yaxis)[:2] == ["0%", "10%"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"outside": [0, 0, 0]}, "nothing to draw: counts of 'out of distribution'"),
        ({"inside": []}, "edges must be one more than counts"),
        ({"edges": [0, 1, 1, 2]}, "finite and rising"),
        ({"edges": [0, 1, 2, NAN]}, "finite and rising"),
    ],
)
def test_score_histogram_of_nothing(change: dict[str, Any], says: str) -> None:
    ax = new_axes()
    histogram = SimpleNamespace(**(vars(HISTOGRAM) | change))
    with pytest.raises(ValueError, match=says):
        plots.score_histogram(ax, histogram)
    assert not ax.patches


def test_score_histogram_colors() -> None:
    ax = plots.score_histogram(new_axes(), HISTOGRAM, colors=("#111111", "#222222"))
    assert [to_hex(patch.get_edgecolor()) for patch in ax.patches] == ["#111111", "#222222"]


@pytest.mark.parametrize(
    ("how", "shown"),
    [
        ({"auroc": 0.9051, "label": "FFG-U"}, ["FFG-U (AUROC 0.905)"]),
        ({"auroc": 0.5}, ["AUROC 0.500"]),
        ({"label": "FFG-U"}, ["FFG-U"]),
    ],
)
def test_roc(how: dict[str, Any], shown: list[str]) -> None:
    ax = plots.roc(new_axes(), ROC, **how)
    assert_allclose(lines(ax)[0].get_xydata(), [[0, 0], [0.2, 0.9], [1, 1]])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == shown
    assert_allclose(guides(ax)[0].get_xydata(), [[0, 0], [1, 1]])
    assert "100%" in ticks(ax.yaxis)


def test_corruption_curve() -> None:
    low, high = [0.85, 0.7, NAN], [0.95, 0.9, 0.7]
    ax = plots.corruption_curve(new_axes(), [1, 3, 5], [0.9, 0.8, 0.6], low, high, ylabel="accuracy", percent=True)
    assert_allclose(lines(ax)[0].get_xydata(), [[1, 0.9], [3, 0.8], [5, 0.6]])
    assert_allclose(ends(ax), [[[1, 0.85], [1, 0.95]], [[3, 0.7], [3, 0.9]]])  # the ends, not lengths
    assert ticks(ax.xaxis) == ["1", "2", "3", "4", "5"]
    assert ax.get_ylabel() == "accuracy"
    assert {"60%", "90%"} <= set(ticks(ax.yaxis))
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    assert left < 1 < 5 < right
    assert bottom < 0.6 < 0.95 < top


def test_bars_of_several_series_stand_side_by_side() -> None:
    ax = new_axes()
    for _ in range(3):
        plots.corruption_curve(ax, [1, 2], [0.9, 0.8], [0.8, 0.7], [1.0, 0.9], ylabel="accuracy")
    at = [line.get_transform().transform((1.0, 0.9))[0] for line in lines(ax)]
    points = 72 / ax.figure.dpi
    assert_allclose((np.array(at) - at[0]) * points, [0, 2, -2], atol=1e-6)
    assert {tuple(segment[0]) for segment in ends(ax)} == {(1, 0.8), (2, 0.7)}  # the data stay where they are


def test_an_interval_that_does_not_hold_its_value() -> None:
    ax = plots.corruption_curve(new_axes(), [1], [0.02], [0.03], [0.05], ylabel="ece")
    assert ends(ax) == [[[1, 0.03], [1, 0.05]]]
    with pytest.raises(ValueError, match="low and high are the two ends"):
        plots.corruption_curve(new_axes(), [1], [0.02], [0.03], ylabel="ece")


def test_accuracy_coverage() -> None:
    curve = SimpleNamespace(coverage=np.array([0.5, 1.0]), accuracy=np.array([0.975, 0.95]))
    ax = plots.accuracy_coverage(new_axes(), curve)
    assert_allclose(lines(ax)[0].get_xydata(), [[0.5, 0.975], [1, 0.95]])
    assert ticks(ax.xaxis)[-1] == "100%"
    assert "95.5%" in ticks(ax.yaxis)


def test_risk_coverage() -> None:
    curve = SimpleNamespace(coverage=np.array([0.5, 1.0]), risk=np.array([1.5, 3.0]))
    ax = plots.risk_coverage(new_axes(), curve, ylabel="RMSE")
    assert_allclose(lines(ax)[0].get_xydata(), [[0.5, 1.5], [1, 3.0]])
    assert (ticks(ax.xaxis)[-1], ax.get_ylabel()) == ("100%", "RMSE")
    with pytest.raises(ValueError, match="risk"):
        plots.risk_coverage(new_axes(), curve, percent=True)  # 3 is no share
    shares = SimpleNamespace(coverage=[0.5, 1.0], risk=[0.0, 0.1])
    assert ticks(plots.risk_coverage(new_axes(), shares, percent=True).yaxis)[-1].endswith("%")


def test_training_curve() -> None:
    ax = plots.training_curve(new_axes(), [1, 2, 3, 4], [0.9, None, NAN, 0.4], ylabel="nll", dashed=True)
    plots.training_curve(ax, [1, 2, 3, 4], [1, 2, 3, 4], ylabel="nll")
    dashed, solid = lines(ax)
    assert_allclose(dashed.get_xydata(), [[1, 0.9], [4, 0.4]])
    assert dashed.is_dashed()
    assert not solid.is_dashed()
    assert dashed.get_markerfacecolor() == plots.SURFACE
    assert ticks(ax.xaxis) == ["1", "2", "3", "4"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("epoch", "nll")


@pytest.mark.parametrize("epochs", [1, 2, 30, 400])
def test_training_curve_has_few_markers_and_at_least_one(epochs: int) -> None:
    ax = new_axes()
    for i in range(3):
        plots.training_curve(ax, range(epochs), np.ones(epochs), ylabel="accuracy", percent=True)
        start, step = lines(ax)[i].get_markevery()
        assert 1 <= len(range(start, epochs, step)) <= 10
    assert all(text.lstrip("\N{MINUS SIGN}").isdigit() for text in ticks(ax.xaxis))
    assert "100%" in ticks(ax.yaxis)


def test_interval_coverage() -> None:
    ax = plots.interval_coverage(new_axes(), [0.5, 0.9], [0.4, NAN], [0.3, NAN], [0.5, NAN])
    assert lines(ax)[0].get_xydata().tolist() == [[0.5, 0.4]]
    assert ends(ax) == [[[0.5, 0.3], [0.5, 0.5]]]
    assert guides(ax)[0].get_xydata().tolist() == [[0, 0], [1, 1]]


def test_predicted_against_true() -> None:
    ax = plots.predicted_against_true(new_axes(), POINTS)
    assert lines(ax)[0].get_xydata().tolist() == [[1, 1.5], [2, 2], [4, 3]]
    assert lines(ax)[0].get_linestyle() == "None"
    assert ends(ax) == [[[1, 1], [1, 2]], [[2, 1.75], [2, 2.25]], [[4, 2], [4, 4]]]
    assert guides(ax)[0].get_xydata().tolist() == [[1, 1], [4, 4]]
    plots.predicted_against_true(ax, SimpleNamespace(target=[9.0], mean=[0.0], sd=[0.0]))
    assert [guide.get_xydata().tolist() for guide in guides(ax)] == [[[0, 0], [9, 9]]]  # one, made longer
    with pytest.raises(ValueError, match="sd must be >= 0; 1 are not, the first is -1"):
        plots.predicted_against_true(ax, SimpleNamespace(target=[9.0], mean=[0.0], sd=[-1.0]))


def test_pictures_on_a_figure() -> None:
    grey, colour = np.linspace(0.1, 0.5, 12).reshape(3, 4), np.arange(12, dtype=np.int64).reshape(2, 2, 3)
    figure = Figure(figsize=(4.2, 3.2))
    axes = plots.pictures(
        figure, [grey, grey[..., None], colour] * 2 + [grey], ["a", "b", "a caption of many words"] * 2 + ["c"]
    )
    assert figure.axes == axes
    assert len(axes) == 7
    assert axes[0].get_subplotspec().get_gridspec().get_geometry() == (2, 4)
    assert_allclose(axes[0].images[0].get_array(), grey)
    assert_allclose(axes[1].images[0].get_array(), grey)
    assert_allclose(axes[2].images[0].get_array(), colour)
    assert axes[2].images[0].get_array().dtype == np.uint8
    assert axes[0].images[0].get_clim() == (0, 1)  # a dark image stays dark
    assert {ax.images[0].get_interpolation() for ax in axes} == {"nearest"}
    assert axes[0].get_xlabel() == "a"
    assert axes[2].get_xlabel().replace("\n", " ") == "a caption of many words"
    assert "\n" in axes[2].get_xlabel()
    assert len(axes[0].get_xticks()) == 0


def test_pictures_on_axes() -> None:
    axes = Figure().subplots(1, 2)
    assert plots.pictures(axes, [np.zeros((2, 2)), np.ones((2, 2), bool)], ["0", "1"]) == list(axes)
    assert plots.pictures(axes[0], [np.zeros((2, 2))], ["0"]) == [axes[0]]
    with pytest.raises(ValueError, match="axes for each of 1 images; got 2 axes"):
        plots.pictures(axes, [np.zeros((2, 2))], ["0"])


@pytest.mark.parametrize(
    ("images", "captions", "says"),
    [
        ([], [], "at least one image"),
        ([np.zeros((2, 2))], [], "1 images, 0 captions"),
        ([np.zeros((2, 2, 2))], ["a"], r"image 0 must have shape .*; got \(2, 2, 2\)"),
        ([np.full((2, 2), -0.5)], ["a"], "image 0 of float64 must be numbers from 0 to 1; got -0.5 to -0.5"),
        ([np.full((2, 2), 256)], ["a"], "image 0 of int64 must be integers from 0 to 255"),
        ([np.full((2, 2), NAN)], ["a"], "must be numbers from 0 to 1"),
    ],
)
def test_pictures_that_are_none(images: list[Any], captions: list[str], says: str) -> None:
    figure = Figure()
    with pytest.raises(ValueError, match=says):
        plots.pictures(figure, images, captions)
    assert not figure.axes
