"""Writes the methods table of README.md from memopt's catalog: `python tools/readme.py`."""

import re
from pathlib import Path

import memopt.catalog

README = Path(__file__).resolve().parents[1] / "README.md"
START, END = "<!-- methods: made by tools/readme.py -->\n", "<!-- end -->"
BETWEEN = re.compile(f"(?<={START}).*?(?={END})", re.DOTALL)
COLUMNS = {
    "method": "`{m.name}`",
    "paper": "[{m.title}]({m.link})",
    "moments live in": "{m.subspace}",
    "rule": "{m.rule}",
    "kept as": "{m.storage}",
    "gradient is used": "{m.timing}",
    "numbers kept for an m × n weight": "{m.state_formula}",
}


def table() -> str:
    """The table of methods as Markdown."""
    rows = [COLUMNS.keys(), ["---"] * len(COLUMNS)]
    rows += [
        [cell.format(m=method) for cell in COLUMNS.values()]
        for method in memopt.catalog.METHODS.values()
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def with_table(text: str) -> str:
    """README's text with the table of today's catalog."""
    return BETWEEN.sub(lambda _: table(), text)


if __name__ == "__main__":
    README.write_text(with_table(README.read_text()))
