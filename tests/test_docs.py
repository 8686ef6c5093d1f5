"""Every Python block of the README and the docs runs, top to bottom, and every relative link leads somewhere."""

from __future__ import annotations

import ast
import dataclasses
import pathlib
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bnn.bayesianize import bayesian_from_template
from bnn.nn import base
from bnn.nn.draw import Draw
from bnn.nn.fcg import FCGOptions
from bnn.nn.ffg import FFGOptions
from bnn.nn.inducing import InducingOptions

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "configs").glob("*.md"))]
ALL_PAGES = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]


def blocks(page: pathlib.Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def name(page: pathlib.Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def same_pairings():
    """Forgets the pairings that a page defines."""
    before = dict(base._PAIRINGS)
    yield
    base._PAIRINGS.clear()
    base._PAIRINGS.update(before)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=name)
@pytest.mark.usefixtures("same_pairings")
def test_snippets_run(page: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    exec("import bnn", namespace)  # pages further down the line assume it
    run(page, namespace)


def run(page: pathlib.Path, namespace: dict[str, object]) -> None:
    for i, block in enumerate(blocks(page)):
        exec(compile(block, f"{page.name}, block {i + 1}", "exec", dont_inherit=True), namespace)


@pytest.mark.usefixtures("same_pairings")
def test_the_example_of_a_layer_type_is_right() -> None:
    """Its matrix and back, for one set of weights and for three draws; each draw's output is torch's own."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    run(ROOT / "docs" / "extending.md", namespace)
    plain, x = nn.ConvTranspose2d(3, 4, (2, 3), stride=2), torch.randn(5, 3, 4, 4)
    for inference in ("isotropic", "inducing"):
        layer = bayesian_from_template(plain, inference)
        weights = base.plain_weights(plain)
        W = layer.to_matrix(weights)
        assert all(map(torch.equal, layer.from_matrix(W), weights))
        assert all(
            torch.equal(three[2], one)
            for three, one in zip(layer.from_matrix(W.expand(3, -1, -1)), weights, strict=True)
        )
        draw = Draw(count=3)
        outputs = layer.output(x[None], draw)
        drawn = draw.once(layer, "weights", lambda draw: pytest.fail("no weights were drawn"))
        want = torch.stack([F.conv_transpose2d(x, weight, bias, stride=2) for weight, bias in zip(*drawn, strict=True)])
        torch.testing.assert_close(outputs, want)
        assert not torch.equal(outputs[0], outputs[1])


@pytest.mark.parametrize("page", ALL_PAGES, ids=name)
def test_links_lead_somewhere(page: pathlib.Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing


def test_the_readme_shows_the_two_commands_first() -> None:
    first_screen = (ROOT / "README.md").read_text().splitlines()[:25]
    assert any(line.startswith("make demo") for line in first_screen)
    assert any(line.startswith("make test") for line in first_screen)


def test_the_options_page_lists_every_option_with_its_default() -> None:
    page = (ROOT / "docs" / "options.md").read_text()
    sections = {part.split("\n")[0]: part for part in page.split("\n## ")[1:]}
    for title, options in (("`inducing`, `inducingdeterministic`", InducingOptions), ("`ffg`", FFGOptions)):
        rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", sections[title], flags=re.MULTILINE))
        defaults = {field.name: field.default for field in dataclasses.fields(options)}
        assert {name: ast.literal_eval(value.strip()) for name, value in rows.items()} == defaults
    for sampling in ("auto", "weight", "local"):
        assert f'- "{InducingOptions(sampling=sampling).sampling}": ' in sections["`inducing`, `inducingdeterministic`"]
    assert set(re.findall(r"`(\w+)`", sections["`fcg`"])) - {"fcg", "ffg"} == set(FCGOptions.names())
