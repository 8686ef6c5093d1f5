"""Every Python block of the README and the docs runs, top to bottom; every relative link and anchor leads somewhere."""

from __future__ import annotations

import ast
import dataclasses
import itertools
import pathlib
import re
import shlex
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import sizes_of
from PIL import Image
from torch import nn

import bnn
from bnn import likelihoods, metrics
from bnn._conversion.method import Method
from bnn._conversion.methods import METHODS
from bnn._engine.draw import Draw
from bnn._engine.noise import Seeds
from bnn.bayesianize import bayesian_from_template
from bnn.cli.app import app
from bnn.cli.app import run as cli
from bnn.data.sources import SOURCES
from bnn.nn import base
from bnn.nn.families.batchensemble import BatchEnsembleOptions
from bnn.nn.families.fcg import FCGOptions
from bnn.nn.families.ffg import FFGOptions
from bnn.nn.families.inducing import InducingOptions
from bnn.nn.families.ktied import KTiedOptions
from bnn.nn.families.matrixnormal import MatrixNormalOptions
from bnn.nn.families.mcdropout import MCDropoutOptions
from bnn.nn.families.q.base import CLASSES
from bnn.nn.families.q.choice import names as q_names
from bnn.nn.families.rank1 import Rank1Options
from bnn.nn.families.singular import SingularOptions

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "configs").glob("*.md"))]
ALL_PAGES = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]


def blocks(page: pathlib.Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def name(page: pathlib.Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def same_pairings(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """Forgets everything that a page registers, and the files it writes."""
    monkeypatch.chdir(tmp_path)
    likelihoods.names("regression")  # imports the library's own: what is forgotten below would not come back
    registries: list[Any] = [base.PAIRINGS.known, CLASSES, METHODS, SOURCES]
    registries += [likelihoods.registry._REGISTERED, metrics.registry._REGISTERED]
    before = [dict(one) for one in registries]
    commands = list(app.registered_commands)
    yield
    for registry, kept in zip(registries, before, strict=True):
        registry.clear()
        registry.update(kept)
    app.registered_commands[:] = commands


# Its Python uses the runs that its commands train, so it runs after them.
AFTER_COMMANDS = ROOT / "docs" / "command_line.md"


@pytest.mark.filterwarnings("ignore::bnn._conversion.energy.EnergyWarning")  # trained for seconds, then truncated
@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page) and page != AFTER_COMMANDS], ids=name)
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


def commands(page: pathlib.Path) -> list[list[str]]:
    """The arguments of every `bayesianize ...` line of a page's shell blocks."""
    shell = "".join(re.findall(r"^```bash\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL))
    lines = [shlex.split(line, comments=True) for line in shell.splitlines()]
    return [words[1:] for words in lines if words[:1] == ["bayesianize"]]


def files_of_a_newcomer(folder: pathlib.Path, page: pathlib.Path) -> None:
    """What the pages assume: a table, labelled and new rows, a folder of images with a folder per class, arrays."""
    random = np.random.default_rng(0)
    size, rooms, city = random.uniform(30, 200, 120), random.integers(1, 6, 120), random.choice(["Ulm", "Kiel"], 120)
    price = 2.5 * size + 10 * rooms + 40 * (city == "Kiel") + random.normal(0, 15, 120)
    rows = [f"{a:.1f},{b},{c},{d:.1f}" for a, b, c, d in zip(size, rooms, city, price, strict=True)]
    (folder / "houses.csv").write_text("\n".join(["size,rooms,city,price", *rows]))
    (folder / "sold.csv").write_text("size,rooms,city,price\n85,3,Ulm,251.3\n110,4,Kiel,342.6\n60,2,Ulm,160.2\n")
    (folder / "new.csv").write_text("size,rooms,city\n80,3,Ulm\n120,4,Kiel\n")
    for name, shade in (("photos/night", 40), ("photos/day", 200), ("inbox", 120)):
        (folder / name).mkdir(parents=True)
        for i in range(15):
            pixels = random.normal(shade, 30, (20, 24)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    np.save(folder / "images.npy", random.integers(256, size=(4, 1, 8, 8), dtype=np.uint8))
    for toml in re.findall(r"^```toml\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL):
        (folder / "recipe.toml").write_text(toml)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=name)
def test_commands_run(
    page: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command of a page, one after the other, in a folder with the files of a newcomer."""
    files_of_a_newcomer(tmp_path, page)
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # they are notes on the command line
        for words in commands(page):
            code = cli(words)
            captured = capsys.readouterr()
            assert code == 0, f"bayesianize {' '.join(words)}: {captured.err}"
            assert (captured.out + captured.err).strip()
    if page == AFTER_COMMANDS:
        run(page, {"__name__": "__main__", "bnn": bnn})
    made = {word for words in commands(page) for flag, word in itertools.pairwise(words) if flag == "--out"}
    assert all((tmp_path / one).exists() for one in made)


@pytest.mark.usefixtures("same_pairings")
def test_the_example_of_a_layer_type_is_right() -> None:
    """Its matrix and back, for one set of weights and for three draws; each draw's output is torch's own."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    run(ROOT / "docs" / "extending.md", namespace)
    plain, x = nn.ConvTranspose2d(3, 4, (2, 3), stride=2), torch.randn(5, 3, 4, 4)
    for inference in ("isotropic", "inducing"):
        layer = bayesian_from_template(plain, inference, **sizes_of(inference))
        weights = base.plain_weights(plain)
        W = layer.to_matrix(weights)
        assert all(map(torch.equal, layer.from_matrix(W), weights))
        assert all(
            torch.equal(three[2], one)
            for three, one in zip(layer.from_matrix(W.expand(3, -1, -1)), weights, strict=True)
        )
        draw = Draw(count=3, seeds=Seeds(layer, 1))  # whose noise is the same whenever it is asked for
        outputs, drawn = layer.output(x[None], draw), layer.sample_weights(draw)
        want = torch.stack([F.conv_transpose2d(x, weight, bias, stride=2) for weight, bias in zip(*drawn, strict=True)])
        torch.testing.assert_close(outputs, want)
        assert not torch.equal(outputs[0], outputs[1])


@pytest.mark.usefixtures("same_pairings")
def test_the_example_of_a_q_is_right(tmp_path: pathlib.Path) -> None:
    """It is `diagonal` with equal standard deviations in a row: the same KL and draws; and a file keeps its option."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    run(ROOT / "docs" / "extending.md", namespace)
    sizes = {"inducing_rows": 3, "inducing_cols": 2}
    for whitened in (True, False):
        plain = nn.Linear(6, 5)
        q = namespace["RowSds"](init_sd=0.3)
        layer = bayesian_from_template(plain, "inducing", q_inducing=q, whitened_u=whitened, **sizes)
        same = bayesian_from_template(plain, "inducing", whitened_u=whitened, **sizes)
        with torch.no_grad():
            layer._inducing_row_sd.add_(torch.randn(3, 1))
            same._inducing_sd.copy_(layer._inducing_row_sd.expand(3, 2))
        same.load_state_dict({k: v for k, v in layer.state_dict().items() if k in same.state_dict()}, strict=False)
        torch.testing.assert_close(layer.kl_divergence(), same.kl_divergence())
        draws = [one.sample_weights(Draw(count=3, seeds=Seeds(one, 1))).weight for one in (layer, same)]
        torch.testing.assert_close(*draws)
        bnn.save(layer, tmp_path / "layer.safetensors")
        bnn.load_(plain, tmp_path / "layer.safetensors")
        assert plain.q == q
        torch.testing.assert_close(plain.kl_divergence(), layer.kl_divergence())


def anchors(page: pathlib.Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them: small letters, digits, `-` and `_`; blanks become `-`."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    found: dict[str, int] = {}
    for title in titles:
        anchor = anchor_of(title)
        found[anchor] = found.get(anchor, 0) + 1
    return {f"{anchor}-{i}" if i else anchor for anchor, times in found.items() for i in range(times)}


def anchor_of(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def broken_links(page: pathlib.Path) -> list[str]:
    """The relative links of a page whose file, or whose heading in it, does not exist."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("http:", "https:")):
            continue
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", ALL_PAGES, ids=name)
def test_links_lead_somewhere(page: pathlib.Path) -> None:
    assert not broken_links(page)


def test_a_broken_link_is_found(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A q(U), say\n[1](#a-qu-say) [2](#a-qu) [3](page.md#a-qu-say) [4](gone.md) [5](https://a.org/b)\n"
    )
    assert broken_links(page) == ["#a-qu", "gone.md"]


def test_every_page_is_reached_from_the_readme() -> None:
    linked = set(re.findall(r"\]\((docs/\w+\.md)", (ROOT / "README.md").read_text()))
    assert linked == {str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md")}


def test_extending_lists_its_sections_at_the_top() -> None:
    page = ROOT / "docs" / "extending.md"
    top = page.read_text().split("\n## ")[0]
    listed = re.findall(r"^\| \[.+\]\(#([\w-]+)\)", top, flags=re.MULTILINE)
    titles = [title.split("\n")[0] for title in page.read_text().split("\n## ")[1:]]
    assert listed == [anchor_of(title) for title in titles]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_pages_use_the_words_of_the_field(page: pathlib.Path) -> None:
    """Out-of-distribution, resume, by default, synthetic: no words of our own for these."""
    text = " ".join(page.read_text().split())
    found = [word for word in ("from elsewhere", "strange", "goes on", "nobody says", "made inputs") if word in text]
    assert not found


def test_the_readme_shows_the_two_commands_first() -> None:
    first_screen = (ROOT / "README.md").read_text().splitlines()[:30]
    assert any(line.startswith("make demo") for line in first_screen)
    assert any(line.startswith("make test") for line in first_screen)
    assert any("docs/images/report.png" in line for line in first_screen)
    assert any(line.startswith("bnn.bayesianize_(") for line in first_screen)


def test_the_readme_has_the_table_of_methods() -> None:
    rows = [f"| `{one.name}` | {one.about} | `{one.formula}` | {one.when} |" for one in METHODS.values()]
    head = ["| method | what it is | parameters of a layer | when to choose it |", "|---|---|---|---|"]
    table = "\n".join([*head, *rows])
    page = (ROOT / "README.md").read_text()
    assert f"\n\n{table}\n\n" in page, f"README.md, Choosing a method, should be\n{table}"
    assert f"There are {len(METHODS)}; `bayesianize methods`" in page


def test_the_page_of_methods_has_what_they_take() -> None:
    def options(one: Method) -> str:
        return ", ".join(f"`{name}={value!r}`" for name, value in one.options.items()) or "-"

    rows = [f"| `{one.name}` | {one.family} | {options(one)} | `{one.multiplies}` |" for one in METHODS.values()]
    head = ["| method | family | its options | multiplies |", "|---|---|---|---|"]
    table = "\n".join([*head, *rows])
    page = (ROOT / "docs" / "methods.md").read_text()
    assert f"\n\n{table}\n\n" in page, f"docs/methods.md, What they take, should be\n{table}"


def test_the_words_of_concepts_list_what_there_is() -> None:
    page = (ROOT / "docs" / "concepts.md").read_text()
    rows = dict(re.findall(r"^\| ([\w() ]+) \| (.+) \|$", page, flags=re.MULTILINE))
    for word, names in (("family", base.PAIRINGS.families()), ("q(U)", q_names())):
        assert set(re.findall(r"`([\w-]+)`", rows[word])) == set(names)


def test_the_page_of_the_command_line_lists_every_method_and_command() -> None:
    page = " ".join((ROOT / "docs" / "command_line.md").read_text().split())
    names = ", ".join(f"`{name}`" for name in METHODS).replace("`ffg-u`", "`ffg-u` (the default)")
    assert f"`--method` takes the names of the paper: {names};" in page
    for command in app.registered_commands:
        assert f"| `{command.name}` |" in page


def test_the_options_page_lists_every_option_with_its_default() -> None:
    page = (ROOT / "docs" / "options.md").read_text()
    sections = {part.split("\n")[0]: part for part in page.split("\n## ")[1:]}
    tables = {
        "`inducing`, `inducingdeterministic`": InducingOptions,
        "`ffg`": FFGOptions,
        "`singular`": SingularOptions,
        "`matrixnormal`": MatrixNormalOptions,
        "`ktied`": KTiedOptions,
        "`rank1`": Rank1Options,
        "`batchensemble`": BatchEnsembleOptions,
        "`mcdropout`": MCDropoutOptions,
    }
    for title, options in tables.items():
        rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", sections[title], flags=re.MULTILINE))
        defaults = {field.name: field.default for field in dataclasses.fields(options)}
        assert {name: ast.literal_eval(value.strip()) for name, value in rows.items()} == defaults
    for sampling in ("auto", "weight", "local"):
        assert f'- "{InducingOptions(sampling=sampling).sampling}": ' in sections["`inducing`, `inducingdeterministic`"]
    assert set(re.findall(r"`(\w+)`", sections["`fcg`"])) - {"fcg", "ffg"} == set(FCGOptions.names())
