"""Writes the tables of docs/benchmarks.md from benchmarks/results/*.json.

python benchmarks/report.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ways import GUARANTEES, regrets

ROOT = Path(__file__).parent
PAGE = ROOT.parent / "docs" / "benchmarks.md"


def load(name: str) -> Any:
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


def against(ratio: float, bar: float | None) -> str:
    """A ratio beside its bar, bold where it is missed."""
    if bar is None:
        return f"{ratio:.2f}"
    return f"{ratio:.2f} / {bar:.2f}" if ratio <= bar else f"**{ratio:.2f}** / {bar:.2f}"


def prediction_table(rows: list[dict[str, Any]]) -> str:
    labels = ["lamda=0", "auto", "local", "ffg", "paper", "auto / paper"]
    lines = ["| network | batch | K | " + " | ".join(labels) + " |", "|---" * (3 + len(labels)) + "|"]
    for row in rows:
        cells = [against(row["ratios"][label], row["bars"].get(label)) for label in labels]
        lines.append(f"| {row['net']} | {row['batch']} | {row['draws']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def training_table(rows: list[dict[str, Any]]) -> str:
    lines = ["| network | batch | lamda=0 | local | auto |", "|---|---|---|---|---|"]
    for row in rows:
        cells = [against(row["ratios"][label], row["bars"].get(label)) for label in ("lamda=0", "local", "auto")]
        lines.append(f"| {row['net']} | {row['batch']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def dense_table(rows: list[dict[str, Any]]) -> str:
    lines = ["| network | batch | K | lamda=0 | auto |", "|---|---|---|---|---|"]
    for row in rows:
        cells = [against(row["ratios"][label], row["bars"].get(label)) for label in ("lamda=0", "auto")]
        lines.append(f"| {row['net']} | {row['batch']} | {row['draws']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


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
    threads, versions = machine["threads"], f"torch {machine['torch']}, Python {machine['python']}"
    return f"{machine['name']}, {threads} threads, {versions}."


def main() -> None:
    speed, ways, memory = load("speed"), load("ways"), load("memory")
    tables = {
        "machine": machine_line(speed["machine"]),
        "predict": prediction_table(speed["predict"]),
        "train": training_table(speed["train"]),
        "dense": dense_table(speed["dense"]),
        "memory": memory_table(memory["rows"]),
        "regret": regret_table(ways["cases"]),
    }
    page = PAGE.read_text()
    for name, table in tables.items():
        place = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        page, found = re.subn(place, lambda m, table=table: f"{m[1]}{table}\n{m[2]}", page, flags=re.DOTALL)
        if not found:
            raise SystemExit(f"docs/benchmarks.md has no place for {name!r}")
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
