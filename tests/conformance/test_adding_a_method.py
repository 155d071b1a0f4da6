"""docs/adding-a-method.md, executed: its file and its row, through the suite and the accounting."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = """
import memopt.catalog, memopt.optimizers
from memopt.catalog import Method

memopt.optimizers.__path__.append({folder!r})
row = {row}
memopt.catalog.METHODS[row.name] = row
"""


@pytest.fixture
def example(repo: Path, tmp_path: Path) -> dict[str, str]:
    """The document's Python by heading, with its file and its row in a pytest plugin."""
    text = (repo / "docs" / "adding-a-method.md").read_text()
    file, row, use = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "random_momentum.py").write_text(file)
    (tmp_path / "example.py").write_text(PLUGIN.format(folder=str(tmp_path), row=row))
    (tmp_path / "use.py").write_text(f"import example, memopt, torch\n{use}")
    return os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{repo}"}


def run(environment: dict[str, str], repo: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=repo, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def test_the_example_runs(repo: Path, tmp_path: Path, example: dict[str, str]) -> None:
    run(example, repo, str(tmp_path / "use.py"))
    lines = (tmp_path / "random_momentum.py").read_text().split("class ")[1].strip().splitlines()
    assert len(lines) <= 32  # what the page calls small


def test_the_row_alone_takes_it_through_the_suite(repo: Path, example: dict[str, str]) -> None:
    told = run(
        example, repo, "-m", "pytest", "-q", "-p", "example", "-p", "no:cacheprovider",
        "tests/conformance", "tests/unit/accounting/test_exact.py",
        "-k", "random_momentum and not closed_form",
    )  # fmt: skip
    (count,) = re.findall(r"(\d+) passed", told)
    assert int(count) > 50
