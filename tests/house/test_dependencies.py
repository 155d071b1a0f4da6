"""pyproject.toml, requirements.lock and environment.yml say the same, and say it well."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def listed(repo: Path) -> dict[str, Requirement]:
    """Everything that pyproject.toml names, over all extras, by canonical name."""
    project = tomllib.loads((repo / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *sum(project["optional-dependencies"].values(), [])]
    requirements = [Requirement(line) for line in lines]
    by_name = {canonicalize_name(r.name): r for r in requirements}
    assert len(by_name) == len(requirements), "a package is listed in two places"
    return by_name


def locked_lines(repo: Path) -> list[str]:
    lines = (repo / "requirements.lock").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


@pytest.fixture(scope="module")
def here(repo: Path) -> dict[str, Requirement]:
    """The pins that hold on this Python and system."""
    pins = [Requirement(line) for line in locked_lines(repo)]
    kept = [p for p in pins if p.marker is None or p.marker.evaluate()]
    by_name = {canonicalize_name(p.name): p for p in kept}
    assert len(by_name) == len(kept), "two pins of one package hold at once"
    return by_name


def test_every_lock_line_is_one_exact_public_version(repo: Path) -> None:
    for line in locked_lines(repo):
        specifiers = list(Requirement(line).specifier)
        assert [s.operator for s in specifiers] == ["=="], line
        assert re.fullmatch(r"[0-9][0-9A-Za-z.]*", specifiers[0].version), line


def test_no_host_index_or_path_is_named(repo: Path) -> None:
    for name in ("requirements.lock", "environment.yml", "pyproject.toml"):
        text = (repo / name).read_text()
        assert not re.search(r"https?://|file:|--(extra-)?index|find-links|\+cpu|\+cu\d", text), (
            name
        )


def test_lock_pins_what_pyproject_pins(repo: Path, here: dict[str, Requirement]) -> None:
    for name, requirement in listed(repo).items():
        assert [s.operator for s in requirement.specifier] == ["=="], str(requirement)
        assert here[name].specifier == requirement.specifier


def test_torch_is_the_one_pinned(here: dict[str, Requirement]) -> None:
    assert str(here["torch"]) == "torch==2.13.0"


def test_environment_yml_is_python_pip_and_the_lock(repo: Path) -> None:
    environment = yaml.safe_load((repo / "environment.yml").read_text())
    assert environment["name"] == "memopt"
    assert environment["channels"] == ["conda-forge"]
    python, pip, section = environment["dependencies"]
    assert (python, pip) == ("python=3.11", "pip")
    assert section == {"pip": locked_lines(repo)}


def needed(name: str, extras: frozenset[str], done: set[tuple[str, frozenset[str]]]) -> None:
    """Walks what an installed package requires on this machine, as its own metadata says."""
    if (name, extras) in done:
        return
    done.add((name, extras))
    for line in importlib.metadata.requires(name) or []:
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": e}) for e in (*extras, "")):
            below = canonicalize_name(requirement.name)
            needed(below, frozenset(requirement.extras), done)


def test_lock_is_complete_and_holds_nothing_else(repo: Path, here: dict[str, Requirement]) -> None:
    done: set[tuple[str, frozenset[str]]] = set()
    for name, requirement in listed(repo).items():
        needed(name, frozenset(requirement.extras), done)
    # What torch's CUDA build brings is pinned by torch, see tools/lock.py.
    cuda = re.compile(r"nvidia-|cuda-|triton$")
    assert {name for name, _ in done if not cuda.match(name)} == set(here)


def test_installed_packages_fit_together_as_locked(here: dict[str, Requirement]) -> None:
    for name, pin in here.items():
        installed = importlib.metadata.version(name)
        assert pin.specifier.contains(installed, prereleases=True), f"{name} {installed}"
