"""Every Python block of the README and the docs runs, top to bottom, and every relative link leads somewhere."""

from __future__ import annotations

import ast
import dataclasses
import pathlib
import re

import pytest

from bnn.nn import base
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
    for i, block in enumerate(blocks(page)):
        exec(compile(block, f"{page.name}, block {i + 1}", "exec", dont_inherit=True), namespace)


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
    assert set(re.findall(r"`(\w+)`", sections["`fcg`"])) - {"fcg", "ffg"} == set(FCGOptions.names())
