"""Writes the tables of methods from memopt's catalog: `python tools/readme.py`.

One in README.md, one in docs/methods.md, each between two comments.
"""

import re
from pathlib import Path

from memopt.catalog import METHODS, UNAVAILABLE, Method

REPO = Path(__file__).resolve().parents[1]
README = REPO / "README.md"
OVERVIEW = REPO / "docs" / "methods.md"
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


def rows_of(cells: list[list[str]]) -> str:
    """Rows of a Markdown table, the first one its head."""
    lines = [cells[0], ["---"] * len(cells[0]), *cells[1:]]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def unavailable() -> str:
    """What stands beside the methods of the catalog and is not in it."""
    return "".join(f"\nNot here: {reason}.\n" for reason in UNAVAILABLE.values())


def table() -> str:
    """README's: what each method is."""
    cells = [[cell.format(m=method) for cell in COLUMNS.values()] for method in METHODS.values()]
    return rows_of([[*COLUMNS], *cells]) + unavailable()


def overview() -> str:
    """That of docs/methods.md: how each method is used, and what it does not do."""
    head = ["method", "class", "kind", "weights", "gradient is used", "promises not kept"]
    return rows_of([head, *map(_use, METHODS.values())]) + unavailable()


def _use(method: Method) -> list[str]:
    limits = ", ".join(f"`{key}`" for key in method.limits)
    return [
        f"`{method.name}`",
        f"`memopt.{method.factory.partition(':')[2]}`",
        method.kind,
        "added" if method.kind == "adapter" else "chosen" if method.chooses() else "all",
        method.timing,
        limits or "none",
    ]


def with_table(text: str, made: str) -> str:
    """A document's text with the table of today's catalog."""
    return BETWEEN.sub(lambda _: made, text)


if __name__ == "__main__":
    for path, made in ((README, table()), (OVERVIEW, overview())):
        path.write_text(with_table(path.read_text(), made))
