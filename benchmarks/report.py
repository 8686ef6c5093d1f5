"""Writes the tables of docs/benchmarks.md from benchmarks/results/*.json; a table without results stays as it is.

python benchmarks/report.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from common import RESULTS
from ways import GUARANTEES, regrets

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
CALL = {"network": "net", "batch": "batch"}  # columns that say what a row is, by the key they show
DRAWS = CALL | {"K": "draws"}
WHATS = {  # of small networks
    "pass": "`net(x)` once",
    "pass-grad": "`net(x)` once, gradients on",
    "step": "step",
    "epoch": "epoch of `bnn.fit`",
}


def load(name: str) -> Any:
    """What a script wrote; nothing if it has not run."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def against(ratio: float, bar: float | None) -> str:
    """A ratio beside its bar, bold where it is missed."""
    if bar is None:
        return f"{ratio:.2f}"
    return f"{ratio:.2f} / {bar:.2f}" if ratio <= bar else f"**{ratio:.2f}** / {bar:.2f}"


def table(rows: list[dict[str, Any]], columns: dict[str, str], labels: list[str]) -> str:
    """Rows of a result: what each is, then its ratios."""
    heads = [*columns, *labels]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for row in rows:
        cells = [str(row[key]) for key in columns.values()]
        cells += [against(row["ratios"][label], row["bars"].get(label)) for label in labels]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def small_tables(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Predictions of small networks, and all else that is measured of them."""
    predict = [row for row in rows if row["what"] == "predict"]
    rest = [row | {"what": WHATS[row["what"]]} for row in rows if row["what"] != "predict"]
    lamdas = ["lamda=0", "lamda=0.03"]
    return {
        "small": table(predict, DRAWS, [*lamdas, *(f"{label} / loop" for label in lamdas)]),
        "small steps": table(rest, {"network": "net", "what": "what", "batch": "batch"}, lamdas),
    }


def speed_tables(speed: dict[str, Any]) -> dict[str, str]:
    """Residual and dense networks, and the machine they ran on."""
    return {
        "machine": machine_line(speed["machine"]),
        "predict": table(speed["predict"], DRAWS, ["lamda=0", "auto", "local", "ffg", "paper", "auto / paper"]),
        "train": table(speed["train"], CALL, ["lamda=0", "local", "auto"]),
        "dense": table(speed["dense"], DRAWS, ["lamda=0", "auto"]),
    }


def memory_table(rows: list[dict[str, Any]]) -> str:
    labels = list(rows[0]["peak_mib"])
    lines = ["| network | " + " | ".join(labels) + " |", "|---" * (1 + len(labels)) + "|"]
    lines += [
        f"| {row['net']} | " + " | ".join(f"{row['peak_mib'][label]:.0f}" for label in labels) + " |" for row in rows
    ]
    return "\n".join(lines)


def regret_table(cases: list[dict[str, Any]]) -> str:
    lines = ["| guarantee | cases | mean regret | worst |", "|---|---|---|---|"]
    for sampling in GUARANTEES:
        values = [regrets(case)[sampling] for case in cases]
        lines.append(f"| {sampling} | {len(values)} | {sum(values) / len(values):.3f} | {max(values):.2f} |")
    return "\n".join(lines)


def machine_line(machine: dict[str, Any]) -> str:
    threads = f"{machine['threads']} thread{'' if machine['threads'] == 1 else 's'}"
    return f"{machine['name']}, {threads}, torch {machine['torch']}, Python {machine['python']}."


def main() -> None:
    speed, split, small, memory, ways = (load(name) for name in ("speed", "split", "small", "memory", "ways"))
    tables = speed_tables(speed) if speed else {}
    split = speed if speed and "split" in speed else split  # a part of the whole, or else a run of its own
    tables |= {"split": table(split["split"], DRAWS, ["lamda=0", "auto", "local"])} if split else {}
    tables |= small_tables(small["rows"]) if small else {}
    tables |= {"memory": memory_table(memory["rows"])} if memory else {}
    tables |= {"regret": regret_table(ways["cases"])} if ways else {}
    page = PAGE.read_text()
    for name, text in tables.items():
        place = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        page, found = re.subn(place, lambda m, text=text: f"{m[1]}{text}\n{m[2]}", page, flags=re.DOTALL)
        if not found:
            raise SystemExit(f"docs/benchmarks.md has no place for {name!r}")
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
