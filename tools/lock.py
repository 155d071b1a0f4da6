"""Makes requirements.lock and environment.yml from the dependencies in pyproject.toml.

    python tools/lock.py                 # resolve again (needs the network)
    python tools/lock.py --environment   # only write environment.yml again from the lock

The lock holds for every Python and system that pyproject.toml allows (by markers). torch is
pinned by its public version alone, so that the index at hand decides between a CPU and a CUDA
build; what a CUDA build needs besides is pinned by torch's own metadata and left to it.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
PYPROJECT = REPO / "pyproject.toml"
LOCK = REPO / "requirements.lock"
ENVIRONMENT = REPO / "environment.yml"

LOCK_HEADER = """\
# Made by tools/lock.py from pyproject.toml; do not edit.
# torch comes as a CPU or CUDA build by what the index serves; a CUDA build brings its own
# nvidia-* and triton packages, pinned by torch itself.
"""
ENVIRONMENT_HEADER = """\
# Made by tools/lock.py from requirements.lock; do not edit.
# conda env create -f environment.yml && conda activate memopt && pip install --no-deps -e .
name: memopt
channels:
  - conda-forge
dependencies:
  - python=3.11
  - pip
  - pip:
"""
CUDA_BUILD = re.compile(r"(nvidia-|cuda-|triton==)")


def resolve() -> list[str]:
    """Asks uv for exact versions of everything that all extras together need."""
    command = ["uv", "pip", "compile", str(PYPROJECT), "--all-extras", "--universal"]
    command += ["--python-version", "3.11", "--no-header", "--no-annotate", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"error: uv could not resolve pyproject.toml\n{done.stderr}")
    return done.stdout.splitlines()


def pins(resolved: list[str]) -> list[str]:
    """The lines of the lock: torch by its public version, its CUDA packages left to it."""
    kept = {
        "torch==" + re.match(r"torch==([^+ ;]+)", line)[1] if line.startswith("torch==") else line
        for line in resolved
        if not CUDA_BUILD.match(line)
    }
    return sorted(kept)


def read_lock() -> list[str]:
    """The pins in requirements.lock, comments left out."""
    return [line for line in LOCK.read_text().splitlines() if line and not line.startswith("#")]


def environment(lock: list[str]) -> str:
    """The text of environment.yml: conda brings python and pip, pip brings the lock."""
    return ENVIRONMENT_HEADER + "".join(f'      - "{line}"\n' for line in lock)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--environment", action="store_true", help="keep the lock as it is")
    if not parser.parse_args().environment:
        LOCK.write_text(LOCK_HEADER + "\n".join(pins(resolve())) + "\n")
    ENVIRONMENT.write_text(environment(read_lock()))


if __name__ == "__main__":
    main()
