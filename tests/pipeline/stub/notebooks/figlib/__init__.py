"""Writes bundles."""

from pathlib import Path

COLOUR = "blue"
FORMATS = {"figure": ("pdf", "svg", "png"), "table": ("csv", "md", "tex")}


def write(folder: str, kind: str, text: str) -> None:
    """A folder with the files that the workflow expects."""
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    for name in [f"{kind}.{suffix}" for suffix in FORMATS[kind]] + ["data.csv", "provenance.json"]:
        (out / name).write_text(f"{COLOUR} {text}")
    (out / "caption.md").write_text(f"**Stub {kind}.** What is seen: lower is better.")
