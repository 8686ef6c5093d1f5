"""What an `Evaluation` is made of. All of it is plain data: numbers, text, tuples and dicts."""

from __future__ import annotations

from dataclasses import dataclass, field

from bnn.metrics.bootstrap import Interval


@dataclass(frozen=True)
class TargetScores:
    """How well one of several real targets is predicted, over the inputs where it is known; how unsure, over all.

    `uncertainty` is None in older files.
    """

    inputs: int
    metrics: dict[str, Interval]
    uncertainty: Uncertainty | None = None


@dataclass(frozen=True)
class Uncertainty:
    """Over inputs: for classes means, in nats; for real targets standard deviations in the target's own units.

    Of the latter the root of the mean of squares, so that total^2 = aleatoric^2 + epistemic^2.
    """

    total: float  # classes: the entropy of the mean prediction
    aleatoric: float  # classes: the mean entropy of the draws
    epistemic: float  # classes: mutual information, how much the draws disagree; real targets: the sd of their means


@dataclass(frozen=True)
class Histogram:
    """How a score is spread over the test inputs and over out-of-distribution inputs, in the same bins."""

    edges: tuple[float, ...]  # (B + 1,)
    inside: tuple[int, ...]  # test inputs in each bin (B,)
    outside: tuple[int, ...]  # out-of-distribution inputs


@dataclass(frozen=True)
class ROC:
    """Shares of inputs above a threshold of a score, from (0, 0) to (1, 1), at no more than 200 thresholds."""

    false_positive: tuple[float, ...]  # of the test inputs
    true_positive: tuple[float, ...]  # of the out-of-distribution inputs


@dataclass(frozen=True)
class Example:
    """One input and what the network says about it.

    Args:
        index: its place in its part.
        target: the true class, or number; None where there is none.
        prediction: the predicted class, or number.
        probability: of the predicted class; None for real targets.
        total, aleatoric, epistemic: as in `Uncertainty`.
        values: what was put in, by its column, where inputs are rows of a table.
        picture: a PNG in base64, of at most 96 pixels a side; None where inputs are no images.
        each: of several real targets, each one's uncertainty, whose units may differ.
    """

    index: int
    target: str | None
    prediction: str
    probability: float | None
    total: float
    aleatoric: float
    epistemic: float
    picture: str | None = None
    values: dict[str, str] = field(default_factory=dict)
    each: tuple[Uncertainty, ...] = ()


@dataclass(frozen=True)
class Examples:
    """The inputs of the smallest and of the largest total uncertainty, the most extreme first."""

    certain: tuple[Example, ...]
    uncertain: tuple[Example, ...]


@dataclass(frozen=True)
class Points:
    """Some inputs with real targets, in the target's own units; of several outputs the first."""

    target: tuple[float, ...]
    mean: tuple[float, ...]
    sd: tuple[float, ...]


@dataclass(frozen=True)
class Coverage:
    """How much intervals, or sets of classes, of one level hold.

    Args:
        level: the promise.
        covered: the share of targets inside, with Wilson's 95 % interval.
        size: mean width in the target's own units, or mean number of classes; NaN where it was not measured.
        inputs: that were looked at.
    """

    level: float
    covered: Interval
    size: float
    inputs: int


@dataclass(frozen=True)
class BeforeAfter:
    """Of one of several real targets: the model's own intervals, and those of a guarantee, as in `Guaranteed`."""

    before: tuple[Coverage, ...]
    after: tuple[Coverage, ...]


@dataclass(frozen=True)
class Guaranteed:
    """What a guarantee (`bnn.conformal`) changes on inputs that neither training nor the guarantee has seen.

    Args:
        rows: that stand behind it; of several targets, or classes, behind that with the fewest.
        method: its score.
        on: which part was looked at.
        before, after: the model's own intervals or sets, and those of the guarantee, at 50, 80 and 90 %; of the latter
            those that there are enough rows for.
        statement: what is guaranteed at the highest of these levels, in a sentence; "" where the rows are too few.
        inputs: how many were set aside; 0 in older files.
        rows_of_each: of several targets, or where it is made for each class, how many of them stand behind each.
        classes: of sets of classes, what those of the guarantee hold of each class, at the levels of `after`, by its
            name; empty in older files.
        by_target: of several real targets, the same for each by its name or its number. Empty in older files.
    """

    rows: int
    method: str
    on: str
    before: tuple[Coverage, ...]
    after: tuple[Coverage, ...]
    statement: str
    inputs: int = 0
    rows_of_each: dict[str, int] = field(default_factory=dict)
    classes: dict[str, tuple[Coverage, ...]] = field(default_factory=dict)
    by_target: dict[str, BeforeAfter] = field(default_factory=dict)


@dataclass(frozen=True)
class Time:
    """How long a prediction takes: medians over rounds that take turns.

    Args:
        inputs: predicted together.
        seconds: of the whole prediction, with all draws.
        plain: of one pass of the plain network on the same inputs; None if it was not there.
        rounds: how many.
    """

    inputs: int
    seconds: float
    plain: float | None
    rounds: int


@dataclass(frozen=True)
class OOD:
    """How out-of-distribution inputs look to the network, and how well a score tells them from the test inputs."""

    inputs: int
    uncertainty: Uncertainty
    detection: dict[str, dict[str, Interval]]  # score -> auroc, aupr, fpr95
    histograms: dict[str, Histogram] = field(default_factory=dict)  # score -> how it is spread
    roc: dict[str, ROC] = field(default_factory=dict)  # score -> its curve
    examples: Examples | None = None
    behind: dict[str, dict[str, Interval]] = field(default_factory=dict)  # score -> as in `Detection`
    by_target: dict[str, Uncertainty] = field(default_factory=dict)  # of several real targets, by name or number


@dataclass(frozen=True)
class Detection:
    """Scores side by side, on the mean over all sets of out-of-distribution inputs.

    Args:
        mean: score -> auroc, aupr, fpr95; of the scores that all sets have.
        behind: score -> how much worse each is than the best score, on the same resamples; the best has none.
    """

    mean: dict[str, dict[str, Interval]]
    behind: dict[str, dict[str, Interval]]


@dataclass(frozen=True)
class Corrupted:
    """The test inputs under one corruption, by the brief metrics: accuracy, nll and ece, or rmse, nll and crps."""

    kind: str
    severity: int
    metrics: dict[str, Interval]
    uncertainty: Uncertainty


@dataclass(frozen=True)
class Severity:
    """Means over the kinds of corruption of one severity."""

    severity: int
    kinds: int
    metrics: dict[str, float]
    uncertainty: Uncertainty


@dataclass(frozen=True)
class Selective:
    """Accuracy on the most certain share of the inputs, at no more than 200 shares; their area is the metric `aurc`."""

    coverage: tuple[float, ...]
    accuracy: tuple[float, ...]


@dataclass(frozen=True)
class RiskCoverage:
    """What is left of the risk when only inputs of least uncertainty are answered, at no more than 200 shares of them.

    Args:
        coverage: share of the inputs.
        risk: on these: the error rate, or the RMSE, in `unit`.
        area: under the curve, the mean risk over all shares.
        behind: by how much the area is larger than that of the better uncertainty, on the same resamples; None: it is
            the better one, or the only one.
        unit: of an RMSE: "own" units of the target; of several targets "sd", where every error is divided by the sd
            of its target over the test inputs.
    """

    coverage: tuple[float, ...]
    risk: tuple[float, ...]
    area: Interval
    behind: Interval | None = None
    unit: str = "own"


@dataclass(frozen=True)
class Reliability:
    """The calibration curve of the most probable class, in bins of equal width; empty bins hold NaN, NaN and 0."""

    probability: tuple[float, ...]
    frequency: tuple[float, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True)
class ClassResult:
    """How one class is answered.

    Args:
        name: of the class.
        inputs: test inputs of this class.
        predicted: test inputs that are answered with it.
        probability: what it is given on average over all test inputs; with true probabilities the share of its inputs.
        precision: share of `predicted` that is right; NaN where it is never predicted.
        recall: share of `inputs` that is found; NaN where there are none.
        f1: 2 right / (inputs + predicted); NaN where both are 0.
    """

    name: str
    inputs: int
    predicted: int
    probability: float
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class Mistake:
    """Inputs of one class that are taken for another."""

    true: str
    predicted: str
    inputs: int
    share: float  # of all inputs of the true class


@dataclass(frozen=True)
class Classes:
    """Class by class.

    Args:
        results: of every class, in the order of the outputs.
        confusion: counts (C, C), rows true and columns predicted; empty above 100 classes.
        mistakes: the most frequent ones, at most 20.
        weights: of the classes in training, (C,), with mean 1 over its data; empty where there were none.
    """

    results: tuple[ClassResult, ...]
    confusion: tuple[tuple[int, ...], ...]
    mistakes: tuple[Mistake, ...]
    weights: tuple[float, ...] = ()

    @property
    def unequal(self) -> bool:
        """Whether a class that test inputs have is at least half as frequent again as another."""
        counts = [one.inputs for one in self.results if one.inputs]
        return 2 * max(counts, default=0) >= 3 * min(counts, default=1)

    @property
    def never_predicted(self) -> tuple[ClassResult, ...]:
        """Those that test inputs have and no answer is, the most frequent first."""
        missed = [one for one in self.results if one.inputs and not one.predicted]
        return tuple(sorted(missed, key=lambda one: -one.inputs))


@dataclass(frozen=True)
class Scale:
    """Where standard deviations, or values of lamda, ended.

    Args:
        count: how many there are.
        mean, largest: of the values themselves.
        cap: the largest value allowed; None: there is none, or (of several layers) not the same everywhere.
        ratio: mean of value / cap, over those that have one; None if none has.
        at_cap: share of these with value / cap >= 0.99.
        capped: how many have a cap.
    """

    count: int
    mean: float
    largest: float
    cap: float | None = None
    ratio: float | None = None
    at_cap: float | None = None
    capped: int = 0


@dataclass(frozen=True)
class LayerPosterior:
    """Where the posterior of one layer ended; None where it has no such noise."""

    name: str
    family: str
    sd: Scale | None  # ffg, fcg: of the weights; inducing: of U, for Ensemble-U the spread of its members
    lamda: Scale | None


@dataclass(frozen=True)
class Posterior:
    """Where sds and lamda ended, over all layers and for each."""

    sd: Scale | None
    lamda: Scale | None
    layers: tuple[LayerPosterior, ...]


@dataclass(frozen=True)
class Size:
    """What the network takes.

    Args:
        parameters: of everything, tied ones counted once.
        bytes: of the state dict as it is stored, shared tensors once.
        networks: how many networks an ensemble holds; else 1.
        plain: parameters that *one* of these has without its posterior.
        ratio: parameters / plain.
    """

    parameters: int
    bytes: int
    networks: int
    plain: int
    ratio: float
