"""README is true: its Python runs, its commands run, its links lead somewhere."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
TEXT = (REPO / "README.md").read_text()
COMMANDS = [
    line
    for block in re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL)
    for line in block.splitlines()
]

# Commands that are not run here as they stand: they would set up an environment, or run this very
# test. What is run in their place, and where they are run as written.
INSTEAD = {
    # Set-up: test_setup_env.py. The pipeline: suite ci, a few lines further on in README.
    "make reproduce": ["make -n reproduce", "snakemake --dry-run"],
    # As written by .ci/run, which takes the command from README.
    "make test": ["make -n test", "pytest --collect-only -q tests/house"],
}


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the working tree's files, as a fresh clone would have them."""
    folder = tmp_path_factory.mktemp("clone") / "memopt"
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (REPO / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPO / name, folder / name)
    return folder


def shell(command: str, folder: Path) -> str:
    """Runs a command with this environment's programs, as in an activated one."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=os.environ | {"PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, f"$ {command}\n{done.stdout}"
    return done.stdout


def test_python_blocks_run_in_the_order_of_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) >= 3
    names: dict = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"README.md, Python block {number}", "exec"), names)
    assert names["loss"] < 0.5  # the targets have variance 1: the loop does train
    assert names["trainer"].state.log_history[-1]["train_loss"] < 4.2  # ln 64 = 4.16 at the start


def test_commands_replaced_here_stand_in_readme() -> None:
    assert set(INSTEAD) <= set(COMMANDS)


@pytest.mark.slow  # some minutes, suite ci among them; .ci/run asks for it
def test_commands_run_in_the_order_of_reading(clone: Path) -> None:
    """Every command of README but those in `INSTEAD`, as written, in one fresh clone."""
    for line in COMMANDS:
        for command in INSTEAD.get(line, [line]):
            shell(command, clone)
    assert "Nothing to be done" in shell("snakemake --config suite=ci --dry-run", clone)


def test_ci_takes_its_test_command_from_readme() -> None:
    script = (REPO / ".ci" / "run").read_text()
    find = re.search(r"^from_readme\(\) \{\n(.*?)\n\}", script, re.DOTALL | re.MULTILINE)
    assert find, "the function is gone"
    command = f"from_readme() {{ {find[1]}; }}; from_readme"
    assert shell(command, REPO).strip() == "make test"


def test_links_lead_to_files_of_the_repository(clone: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", TEXT)
    local = [target for target in targets if "://" not in target]
    assert local
    assert [target for target in local if not (clone / target).exists()] == []
