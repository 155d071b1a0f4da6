"""Writes the report's pages."""

import sys
from pathlib import Path

bundles, suite, runs, out, *names = sys.argv[1:]
for name in names:
    caption = Path(bundles, f"{name}_{suite}", "caption.md").read_text()
    Path(out, f"{name}.html").write_text(f"<p>Page of {name}: {caption}</p>")
Path(out, "runs.html").write_text(Path(runs).read_text())
