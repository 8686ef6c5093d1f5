"""The section on out-of-distribution inputs: scores side by side, the best of a row marked, and which score to use."""

from __future__ import annotations

import re

from made_runs import HOSTILE, around, bare, full, out_of, real

from bnn.evaluation import OOD, Evaluation, RiskCoverage, Uncertainty
from bnn.report import Entry, html
from bnn.report.figures import pictures
from bnn.report.scores import score_table


def drawn(mutual: float = 0.95) -> Evaluation:
    """A run whose draws disagree."""
    return full(ood={name: out_of(0.8, others={"mutual_information": mutual}) for name in ("letters", "noise")})


def curve(area: float) -> RiskCoverage:
    behind = around(0.1) if area > 0.1 else None
    return RiskCoverage((0.5, 1.0), (0.0, area), around(area), behind)


def section(page: str, kind: str) -> str:
    found = re.search(rf'<section id="g1-{kind}".*?</section>', page, flags=re.DOTALL)
    assert found is not None
    return found[0]


def test_rows_are_sets_and_columns_scores() -> None:
    table = score_table([Entry("a", drawn())])
    assert table is not None
    assert table.scores == ("max probability", "entropy", "mutual information")
    assert [title for title, _, _ in table.metrics] == ["AUROC", "AUPR", "FPR95"]
    assert [name for name, _ in table.blocks] == ["letters", "noise", "mean of 2 sets"]
    cells = table.blocks[0][1][0].cells
    assert [cell.text for cell in cells[:3]] == ["-", "-", "-"]  # not measured
    assert [(cell.text, cell.mark) for cell in cells[3::3]] == [("0.800", ""), ("0.950", "best")]
    assert cells[6].small == "[0.930, 0.970]"
    assert table.choices[0][1].startswith("Mutual information tells out-of-distribution inputs best: AUROC 0.950")
    assert score_table([Entry("a", bare())]) is None


def test_runs_share_the_table_and_only_means_over_all_sets_are_shown() -> None:
    other = full(ood={"letters": out_of(0.7)}, draws=1)
    table = score_table([Entry("none", bare()), Entry("one", other), Entry("both", drawn())])
    assert table is not None
    rows = {name: [row.name for row in each] for name, each in table.blocks}
    assert rows == {"letters": ["one", "both"], "noise": ["both"], "mean of 2 sets": ["both"]}
    assert [row.place for row in table.blocks[0][1]] == [1, 2]  # its colour is that of the comparison
    assert [name for name, _ in table.choices] == ["one", "both"]
    assert "one pass" in table.choices[0][1].lower()


def test_the_page_shows_the_table_and_the_choice() -> None:
    page = section(html([Entry("plain", full(draws=1)), Entry(HOSTILE, drawn())]), "ood")
    assert "<script>alert" not in page
    for score in ("max probability", "entropy", "mutual information"):
        assert f'class="first">by {score}</th>' in page
    assert 'data-score="by mutual information" data-metric="AUROC"' in page
    assert "Which score to use" in page
    assert "Mutual information tells out-of-distribution inputs best" in page
    assert page.index("Which score to use") < page.index("Scores side by side") < page.index("<figure")
    assert re.search(r'<td class="best[^>]*>.*?0\.950', page)


def test_the_comparison_shows_means_and_leaves_sets_to_their_section() -> None:
    page = section(html([Entry("a", drawn()), Entry("b", drawn(0.7))]), "comparison")
    assert "AUROC, mean of 2 sets" in page
    assert "AUROC of letters" not in page
    assert "AUROC of letters" in section(html([Entry("a", full())]), "comparison")  # one set is its own mean


def test_real_targets_have_two_scores() -> None:
    scores = {name: {"auroc": around(value)} for name, value in (("total", 0.8), ("epistemic", 0.9))}
    found = real(ood={"far": OOD(9, Uncertainty(1.0, 0.5, 0.5), scores)})
    page = section(html([Entry("a", found)]), "ood")  # a section without a picture
    assert 'class="first">by epistemic sd</th>' in page
    assert "Epistemic sd tells far best: AUROC 0.900 against 0.800 by total sd." in page


def test_both_scores_have_pictures_and_disagreement_its_own_scale() -> None:
    keys = [one.key for one in pictures([Entry("a", drawn())]) if one.section == "ood"]
    assert keys[:4] == ["roc-letters", "roc-letters-mutual-information", "roc-noise", "roc-noise-mutual-information"]
    assert keys[4:6] == ["histogram-letters-a", "histogram-letters-a-mutual-information"]


def test_risk_is_drawn_run_by_run_on_one_scale() -> None:
    risks = {"total": curve(0.05), "epistemic": curve(0.2)}
    entries = [Entry("a", full(risk_coverage=risks)), Entry("b", full(risk_coverage={"total": curve(0.1)}))]
    found = [one for one in pictures(entries) if one.key.startswith("risk-coverage")]
    assert [one.key for one in found] == ["risk-coverage-a", "risk-coverage-b"]
    assert (
        found[0].facts == "by total: 5.0 % on average over all shares, by epistemic: 20.0 % on average over all shares"
    )
    page = section(html(entries), "selective")
    assert "Error rate against coverage" in page
    assert "On test inputs abstain by total: mean error rate" in page
    reals = [Entry("c", real(risk_coverage={"total": curve(3.0)}))]
    assert "RMSE against coverage" in section(html(reals), "selective")
