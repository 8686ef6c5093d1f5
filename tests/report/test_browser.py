"""The page in a real browser: nothing cut off, all of it readable, in both themes, on a phone and on a wide screen."""

from __future__ import annotations

import html as text_html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from made_runs import bare, two

from bnn.report import Entry, html

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--hide-scrollbars"]
WIDTHS, THEMES = (360, 768, 1280), ("light", "dark")
CATCH = """<script>
window.wrong = [];
addEventListener("error", (event) => window.wrong.push(String(event.message)));
addEventListener("securitypolicyviolation", (event) => window.wrong.push(event.violatedDirective));
console.error = (...words) => window.wrong.push(words.join(" "));
</script>"""
AROUND = """<!doctype html><body><pre id="measured"></pre><script>
const frames = FRAMES, found = {};
function next() {
  if (!frames.length) { document.getElementById("measured").textContent = JSON.stringify(found); return; }
  const [name, file, width] = frames.shift(), frame = document.createElement("iframe");
  frame.style.cssText = `border: 0; height: 900px; width: ${width}px`;
  frame.src = file;
  const take = (event) => { found[name] = JSON.parse(event.data); frame.remove(); next(); };
  addEventListener("message", take, { once: true });
  document.body.append(frame);
}
next();
</script>"""


def measured(folder: Path, page: str) -> dict[str, Any]:
    """What `measure.js` finds in every theme and at every width; a theme is asked for as the page's button does."""
    script = (Path(__file__).parent / "measure.js").read_text(encoding="utf-8")
    frames = []
    for theme in THEMES:
        themed = page.replace('<html lang="en">', f'<html lang="en" data-theme="{theme}">')
        themed = themed.replace("<head>", f"<head>{CATCH}").replace("</body>", f"<script>{script}</script></body>")
        (folder / f"{theme}.html").write_text(themed, encoding="utf-8")
        frames += [(f"{theme} {width}", f"{theme}.html", width) for width in WIDTHS]
    around = folder / "around.html"
    around.write_text(AROUND.replace("FRAMES", json.dumps(frames)), encoding="utf-8")
    found: dict[str, Any] = json.loads(result_of(around))
    return found


def result_of(page: Path, *flags: str) -> str:
    """The text of <pre id="measured"> once the page has run."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    command = [browser, *FLAGS, *flags, f"--user-data-dir={page.parent / 'profile'}", "--window-size=1400,1000"]
    command += ["--virtual-time-budget=20000", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    result = re.search(r'<pre id="measured">(.+?)</pre>', done.stdout, flags=re.DOTALL)
    assert result is not None, f"the browser measured nothing (exit code {done.returncode}): {done.stderr[-2000:]}"
    return text_html.unescape(result[1])


@pytest.mark.slow
def test_what_a_person_sees(tmp_path: Path) -> None:
    found = measured(tmp_path, html(two(), about="Two runs."))
    assert list(found) == [f"{theme} {width}" for theme in THEMES for width in WIDTHS]
    for name, seen in found.items():
        theme, width = name.split()
        assert seen["width"] == int(width)
        assert seen["errors"] == [], name
        # nothing wider than the screen, details closed or open
        assert max(seen["scroll"]) <= seen["client"], name
        assert seen["cut"] == [], name
        # all parts have a size
        assert [one[0] for one in seen["visible"]][::9] == ["comparison", "reproduce"]
        for what, wide, high in seen["visible"] + seen["headings"] + seen["pictures"]:
            assert wide > 20, (name, what)
            assert high > 10, (name, what)
        assert len(seen["pictures"]) == 17 + 2 * 9
        assert min(size for _, size in seen["letters"]) >= 9.5, name  # pixels
        # WCAG AA
        assert seen["texts"] > 200
        assert seen["contrasts"][0][0] >= 4.5, (name, seen["contrasts"])
        assert (seen["page"] < 0.1) == (theme == "dark"), name
        other = "light" if theme == "dark" else "dark"
        before, after, chosen, button = seen["toggled"]
        assert before != after, name
        assert (chosen, button) == (other, theme.capitalize())
        assert seen["copied"] in ("Copied", "Selected")


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "button"), [(0, "Light"), (1, "Dark")], ids=["dark", "light"])
def test_the_theme_follows_the_system(tmp_path: Path, setting: int, button: str) -> None:
    """The button offers the other one."""
    tell = 'document.getElementById("measured").textContent = document.getElementById("theme").textContent'
    tell += ' + " " + getComputedStyle(document.body).backgroundColor;'
    page = html([Entry("a", bare())]).replace("</body>", f'<pre id="measured"></pre><script>{tell}</script></body>')
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    seen, color = result_of(tmp_path / "page.html", f"--blink-settings=preferredColorScheme={setting}").split(" ", 1)
    assert seen == button
    assert (max(map(int, re.findall(r"\d+", color))) < 50) == (button == "Light")
