"""A small project around the real workflow, and what a call of Snakemake says."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

STUB = Path(__file__).parent / "stub"
NO_SIGN_OF_A_TRACE = ("Traceback", 'File "')


class Project:
    """A working folder in which Snakemake is called."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def command(self, *arguments: str) -> list[str]:
        """The call, with as many cores as the tests' arithmetic assumes."""
        cores = [] if "--workflow-profile" in arguments else ["--cores", "2"]
        return [sys.executable, "-m", "snakemake", *cores, *arguments]

    def snakemake(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Calls Snakemake; stdout and stderr come back together as ``stdout``."""
        return subprocess.run(
            self.command(*arguments),
            cwd=self.root,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=3600,  # a hang, not a slow machine
        )

    def run(self, *arguments: str) -> str:
        """Calls Snakemake, which must succeed."""
        done = self.snakemake(*arguments)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def refusal(self, *arguments: str, **environment: str) -> str:
        """Calls Snakemake, which must refuse in one line of plain words."""
        done = self.snakemake(*arguments, **environment)
        assert done.returncode != 0, done.stdout
        assert not any(sign in done.stdout for sign in NO_SIGN_OF_A_TRACE), done.stdout
        return next(line for line in done.stdout.splitlines() if line.startswith("error: "))

    def planned(self, *arguments: str) -> dict[str, int]:
        """Jobs a rule that a call would run."""
        text = self.run(*arguments, "--dry-run", "--quiet", "rules")
        table = re.findall(r"^(\w+) +(\d+)$", text.partition("Job stats:")[2], re.MULTILINE)
        return {rule: int(count) for rule, count in table if rule not in ("all", "total")}

    def read(self, path: str) -> str:
        """A file's text."""
        return (self.root / path).read_text()

    def edit(self, path: str, old: str, new: str) -> None:
        """Replaces text that must be there."""
        text = self.read(path)
        assert old in text, f"{path} does not hold {old!r}"
        (self.root / path).write_text(text.replace(old, new))

    def copy(self, root: Path) -> "Project":
        """The same files, with the same times, elsewhere."""
        shutil.copytree(self.root, root, dirs_exist_ok=True)
        return Project(root)


@pytest.fixture(scope="session")
def fresh_stub(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The stand-in project, nothing run yet."""
    root = tmp_path_factory.mktemp("stub")
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(STUB, root, dirs_exist_ok=True, ignore=skip)
    for folder in ("workflow", "config"):
        shutil.copytree(repo / folder, root / folder, ignore=skip)
    for file in ("environment.yml", "CITATION.cff"):
        shutil.copy(repo / file, root)
    for module in ("lease.py", "errors.py"):
        shutil.copy(repo / "experiments" / module, root / "experiments")
    return Project(root)


@pytest.fixture(scope="session")
def finished_stub(
    fresh_stub: Project, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Project, str]:
    """The stand-in project after one whole run, and what that run printed."""
    project = fresh_stub.copy(tmp_path_factory.mktemp("finished"))
    return project, project.run()


@pytest.fixture
def fresh(fresh_stub: Project, tmp_path: Path) -> Project:
    """A copy of the stand-in project to change at will, nothing run yet."""
    return fresh_stub.copy(tmp_path)


@pytest.fixture
def finished(finished_stub: tuple[Project, str], tmp_path: Path) -> Project:
    """A copy of the finished stand-in project to change at will."""
    return finished_stub[0].copy(tmp_path)


@pytest.fixture
def wait_until() -> Callable[[Callable[[], bool]], None]:
    """Waits for a condition, which must come true within ten minutes."""
    import time

    def wait(condition: Callable[[], bool]) -> None:
        for _ in range(6000):
            if condition():
                return
            time.sleep(0.1)
        raise AssertionError("waited ten minutes in vain")

    return wait
