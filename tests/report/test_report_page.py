"""The page: complete, self-contained, escaped, accessible in its structure, and the same for the same runs."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from made_runs import HOSTILE, bare, full, real, two

from bnn import plots
from bnn.report import Entry, html, write
from bnn.report.page import HERE

VOID = {"meta", "link", "img", "br", "hr", "input"}


class Seen(HTMLParser):
    """Tags with attributes in order, nesting checked, and the text within each kind of tag."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[tuple[str, str]] = []
        self.feed(page)
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(attrs) == len(dict(attrs)), (tag, attrs)
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.text.append((self.open[-1], data))

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


@pytest.fixture(scope="module")
def page() -> str:
    return html(two(), title="A title", about="About <it>.", made="on a day")


@pytest.fixture(scope="module")
def seen(page: str) -> Seen:
    return Seen(page)


def test_all_sections_are_there_and_linked(seen: Seen) -> None:
    sections = [attrs["class"] for attrs in seen.of("section")]
    expected = "comparison classes calibration ood corruptions selective training tradeoff examples reproduce"
    assert sections == expected.split()
    links = [attrs["href"] for attrs in seen.of("a")]
    assert links == ["#main", *(f"#g1-{name}" for name in sections)]


def test_ids_are_unique_and_every_reference_has_a_target(page: str, seen: Seen) -> None:
    ids = [attrs["id"] for _, attrs in seen.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    used = re.findall(r"url\(#([^)]+)\)", page) + re.findall(r'href="#([^"]+)"', page)
    used += re.findall(r'aria-labelledby="([^"]+)"', page)
    assert len(used) > 20
    assert set(used) <= set(ids)


def test_nothing_is_fetched(page: str, seen: Seen) -> None:
    for tag, attrs in seen.tags:
        for name in ("src", "href", "action", "srcset", "data", "poster"):
            value = attrs.get(name)
            assert value is None or value.startswith(("#", "data:")), (tag, value)
    assert not re.search(r"https?://|@import|url\((?!#)|//fonts|\bfetch\(|XMLHttpRequest|import\(", page)
    assert {tag for tag, _ in seen.tags}.isdisjoint({"iframe", "object", "embed", "base", "form"})
    assert seen.of("script") == [{}]


def test_names_and_recipes_are_escaped(page: str) -> None:
    assert "<script>alert" not in page
    assert "</script><b>" not in page
    assert page.count("<script>") == page.count("</script>") == 1
    assert "&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt; &amp; $a_b$" in page
    assert "About &lt;it&gt;." in page


def test_names_are_shown_as_they_are(seen: Seen) -> None:
    assert HOSTILE in [text for tag, text in seen.text if tag == "th"]
    keys = [text for tag, text in seen.text if tag == "text"]  # letters of the pictures
    assert any("$a_b$" in text for text in keys)


def test_each_figure_has_one_title_and_one_sentence(page: str) -> None:
    figures = re.findall(r"<figure.*?</figure>", page, flags=re.DOTALL)
    assert len(figures) == 2 + 1 + 1 + 1 + 3 + 1 + 4 + 2 + 2 * 3  # small multiples share a frame
    for figure in figures:
        assert len(re.findall(r"<h[2-6]", figure)) == 1
        (caption,) = re.findall(r"<figcaption>(.*?)</figcaption>", figure)
        assert len(re.findall(r"[.!?](?:\s|$)", caption)) == 1


def test_pictures_have_words(seen: Seen) -> None:
    svgs = seen.of("svg")
    assert len(svgs) == 2 + 2 + 1 + 2 + 3 + 1 + 4 + 2
    for attrs in svgs:
        assert attrs["role"] == "img"
        assert attrs["aria-label"]
        assert "width" not in attrs
    labels = [attrs["aria-label"] for attrs in svgs]
    assert "Reliability of plain: expected calibration error 3.0 %" in labels
    assert all(attrs["alt"] for attrs in seen.of("img"))


def test_headings_are_in_order(seen: Seen) -> None:
    levels = [int(tag[1]) for tag, _ in seen.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_the_head_and_tables_are_accessible(page: str, seen: Seen) -> None:
    assert page.startswith("<!doctype html>")
    assert seen.of("html") == [{"lang": "en"}]
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in seen.of("meta")
    assert all(attrs.get("scope") in ("row", "rowgroup", "col", "colgroup") for attrs in seen.of("th"))
    assert "<title>A title</title>" in page
    assert "Made on a day with bayesianize" in page


def test_the_best_is_marked_by_more_than_colour(page: str) -> None:
    row = re.search(r'<td class="best">(.*?)</td>', page)
    assert row is not None
    assert "★" in row[1]
    assert "<b>" in row[1]
    assert "(best)" in row[1]
    assert "its interval overlaps that of the best" in page
    wrong = re.search(r'<li class="wrong">.*?</li>', page, flags=re.DOTALL)
    assert wrong is not None
    assert "✗" in wrong[0]
    assert "wrong: " in wrong[0]


def test_pictures_take_their_colours_from_the_page(page: str) -> None:
    svgs = "".join(re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL))
    assert not re.findall(r"#[0-9a-fA-F]{6}", svgs)
    used = set(re.findall(r"var\((--[a-z0-9-]+)\)", page))
    defined = set(re.findall(r"(--[a-z0-9-]+):", page))
    assert used <= defined
    assert {f"--series-{i}" for i in range(len(plots.PALETTE))} <= defined


def luminance(color: str) -> float:
    """Relative luminance as WCAG defines it."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


@pytest.mark.parametrize("block", [":root {", ':root[data-theme="dark"] {'], ids=["light", "dark"])
def test_lines_stand_out_from_what_is_behind_them(page: str, block: str) -> None:
    own = " ".join(part.split("}")[0] for part in page.split(f"\n{block}")[1:])
    colors = dict(re.findall(r"(--[a-z0-9-]+): (#[0-9a-f]{6})", own))
    behind = luminance(colors["--surface"])
    for i in range(len(plots.PALETTE)):
        line = luminance(colors[f"--series-{i}"])
        assert (max(line, behind) + 0.05) / (min(line, behind) + 0.05) >= 3, (i, colors)


def test_both_ways_to_the_dark_theme_are_the_same() -> None:
    style = (HERE / "report.css").read_text()
    asked = re.search(r':root:not\(\[data-theme="light"\]\) \{(.*?)\}', style, flags=re.DOTALL)
    chosen = re.search(r':root\[data-theme="dark"\] \{(.*?)\}', style, flags=re.DOTALL)
    assert asked is not None
    assert chosen is not None
    assert asked[1].split() == chosen[1].split()
    light = re.search(r":root \{(.*?)\}", style, flags=re.DOTALL)
    assert light is not None
    names = [set(re.findall(r"(--[a-z0-9-]+):", block)) for block in (light[1], asked[1])]
    assert names[0] == names[1]


def test_recipes_can_be_copied_and_run(page: str) -> None:
    assert "&#34;name&#34;: &#34;&lt;/script&gt;&lt;b&gt;&amp;&#34;" in page
    assert "bayesianize train plain.json --out runs/plain" in page
    assert page.count('class="copy"') == 2


def test_the_same_runs_give_the_same_page() -> None:
    entries = [Entry("a", bare(selective=full().selective, ood=full().ood))]
    assert html(entries) == html(entries)


def test_the_page_is_small(page: str) -> None:
    assert len(page) < 400_000


def test_one_bare_run() -> None:
    seen = Seen(html([Entry("a", bare())]))
    assert [attrs["class"] for attrs in seen.of("section")] == ["comparison", "reproduce"]
    assert ("title", "a on digits") in seen.text
    assert not seen.of("figure")


def test_runs_on_other_data_stand_apart() -> None:
    seen = Seen(html([Entry("a", bare()), Entry("a", bare("other")), Entry("b", bare(), {"seed": 1})]))
    assert [attrs["id"] for attrs in seen.of("div") if attrs.get("class") == "group"] == ["g1", "g2"]
    assert ("title", "3 runs on digits and other") in seen.text
    assert "a (2)" in [text for _, text in seen.text]
    ids = [attrs["id"] for _, attrs in seen.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    levels = [int(tag[1]) for tag, _ in seen.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels == [1, 2, 3, 4, 3, 4, 3, 2, 3, 4, 3]


def test_real_targets_show_inputs_as_a_table() -> None:
    page = html([Entry("a", real())])
    assert "one sd" in page
    assert "<img" not in page
    assert 'class="calibration"' in page
    assert "Coverage of intervals" in page


def test_it_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    write([Entry("a", bare())], path)
    before = path.read_text(encoding="utf-8")
    assert before == html([Entry("a", bare())])
    with pytest.raises(ValueError, match="at least one run"):
        write([], path)
    assert [one.name for one in tmp_path.iterdir()] == ["report.html"]
    assert path.read_text(encoding="utf-8") == before


def test_bad_places_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        write([Entry("a", bare())], tmp_path / "no" / "report.html")
    with pytest.raises(IsADirectoryError, match="name a file in it"):
        write([Entry("a", bare())], tmp_path)
