"""Collects the summaries' text."""

import sys
from pathlib import Path

out, *runs = map(Path, sys.argv[2:])
text = "\n".join((run / "summary.json").read_text() for run in runs)
for name in ("runs", "metrics"):
    (out / f"{name}.parquet").write_text(text)
