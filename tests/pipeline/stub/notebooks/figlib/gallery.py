"""Lists the bundles."""

import sys
from pathlib import Path

root = Path(sys.argv[1])
names = sorted(path.name for path in root.iterdir() if path.is_dir())
(root / "README.md").write_text("\n".join(names))
