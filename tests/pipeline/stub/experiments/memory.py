"""Writes a table."""

import sys
from pathlib import Path

Path(sys.argv[1]).write_text("bytes")
