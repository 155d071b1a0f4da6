"""docs/memory.md says what the code does."""

import re
import shlex
from pathlib import Path

import pytest

from memopt import METHODS
from memopt.accounting import CONVENTIONS
from memopt.accounting.__main__ import main


@pytest.fixture(scope="module")
def page() -> str:
    return (Path(__file__).parents[3] / "docs" / "memory.md").read_text()


def first_column(page: str, heading: str) -> list[str]:
    table = page.split(heading)[1].split("\n\n")[0]
    return re.findall(r"^\| `(\w+)`", table, flags=re.MULTILINE)


def test_tables_have_every_method_and_convention(page: str) -> None:
    assert sorted(first_column(page, "| Method |")) == sorted(METHODS)
    assert sorted(first_column(page, "| `--convention` |")) == sorted(CONVENTIONS)


def test_commands_run(page: str, capsys) -> None:
    commands = re.findall(r"^\$ python -m memopt\.accounting (.+)$", page, flags=re.MULTILINE)
    runnable = [shlex.split(command) for command in commands if "path/to" not in command]
    assert len(runnable) == 3
    for words in runnable:
        assert main(words) == 0
