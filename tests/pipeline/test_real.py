"""The real commands under the real workflow: the suite `ci`, from corpus to gallery."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Project

pytestmark = pytest.mark.slow

SUITE = ["--config", "suite=ci"]
RUNS = Path("results/ci/runs")
WALL_CLOCK = ("seconds", "tokens_per_second", "peak_rss_bytes", "time_shares")


def results(root: Path) -> dict[str, object]:
    """All that must not depend on kills, order or day: losses, bytes, hashes of weights."""
    found: dict[str, object] = {}
    for folder in sorted((root / RUNS).iterdir()):
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        summary = json.loads((folder / "summary.json").read_text())
        for content in [*rows, summary]:
            for key in WALL_CLOCK:
                content.pop(key, None)
        found[folder.name] = (rows, summary)
    return found


def drawn(root: Path) -> dict[str, str]:
    """The data of figures and tables, but for those about time."""
    files = (root / "paper_figures").glob("*_ci/data.csv")
    return {f.parent.name: f.read_text() for f in files if "time" not in f.parent.name}


@pytest.fixture(scope="module")
def real(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A finished run of the suite `ci` in a copy of the repository."""
    root = tmp_path_factory.mktemp("real")
    skip = shutil.ignore_patterns("__pycache__", "prepared", "local")
    for folder in ("experiments", "memopt", "workflow", "config", "notebooks", "data"):
        shutil.copytree(repo / folder, root / folder, ignore=skip)
    for file in ("pyproject.toml", "environment.yml", "CITATION.cff"):
        shutil.copy(repo / file, root)
    project = Project(root)
    project.run(*SUITE)
    return project


def test_everything_is_there(real: Project) -> None:
    assert real.planned(*SUITE) == {}
    assert {"convergence_ci", "pretraining_ci"} <= set(drawn(real.root))
    for name in drawn(real.root):
        assert name in real.read("paper_figures/README.md")


def test_plans_after_a_change(real: Project, tmp_path: Path) -> None:
    changed = real.copy(tmp_path)
    changed.edit("notebooks/figlib/style.py", "import", "# a change\nimport")
    shared = ("gallery", "pages")
    notebooks = {rule: n for rule, n in changed.planned(*SUITE).items() if rule not in shared}
    shown = ("convergence", "memory", "memory_tables", "overview")
    assert set(notebooks) == {f"notebook_{name}" for name in shown}
    changed.edit("experiments/methods/gwt.yaml", "level: 2", "level: 1")
    assert changed.planned(*SUITE) == {
        **dict.fromkeys(["train", "collect", "memory", "memory_steps", *shared], 1),
        **notebooks,
    }


def test_again_from_the_start_gives_the_same_bits(real: Project, tmp_path: Path) -> None:
    again = real.copy(tmp_path)
    for folder in ("results", "paper_figures", ".snakemake", "data/prepared"):
        shutil.rmtree(again.root / folder)
    again.run(*SUITE)
    assert results(again.root) == results(real.root)
    assert drawn(again.root) == drawn(real.root)


@pytest.mark.parametrize("kill", [os.kill, os.killpg], ids=["workflow", "training too"])
def test_killed_workflow_goes_on_to_the_same_end(
    real: Project, tmp_path: Path, wait_until: Callable, kill: Callable[[int, int], None]
) -> None:
    disturbed = real.copy(tmp_path)
    for folder in ("results", ".snakemake"):
        shutil.rmtree(disturbed.root / folder)
    arguments = ["results/ci/tables/runs.parquet", *SUITE, "only=gwt"]
    workflow = subprocess.Popen(
        disturbed.command(*arguments),
        cwd=disturbed.root,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    # Killed alone, Snakemake leaves its training behind, which goes on; the next call must
    # neither disturb it nor train the run twice.
    work = disturbed.root / "results/ci/work"
    wait_until(lambda: any(work.glob("*/checkpoints/*")))
    assert not any((disturbed.root / RUNS).glob("*/summary.json"))
    kill(workflow.pid, signal.SIGKILL)
    workflow.wait()

    disturbed.run(*arguments)
    (name, content), *others = results(disturbed.root).items()
    assert not others
    assert content == results(real.root)[name]
