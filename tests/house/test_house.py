"""The house's own papers are in order: licence, citation, changelog, sizes, listed imports."""

import ast
import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools import architecture, readme


@pytest.fixture(scope="module")
def project(repo: Path) -> dict:
    return tomllib.loads((repo / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def python_files(repo: Path) -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    listed = subprocess.run(command, cwd=repo, capture_output=True, text=True, check=True)
    return [repo / name for name in listed.stdout.splitlines() if (repo / name).exists()]


def test_citation_has_what_the_format_asks_for(repo: Path, project: dict) -> None:
    citation = yaml.safe_load((repo / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["version"] == project["version"]
    assert citation["license"] == project["license"] == "Apache-2.0"
    assert [a["name"] for a in citation["authors"]] == [a["name"] for a in project["authors"]]


def test_licence_is_apache_2(repo: Path) -> None:
    text = (repo / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text


def test_no_file_is_longer_than_a_reader_bears(python_files: list[Path]) -> None:
    assert python_files
    long = {p.name: n for p in python_files if (n := len(p.read_text().splitlines())) >= 400}
    assert long == {}


def test_every_imported_library_is_listed(
    repo: Path, python_files: list[Path], project: dict
) -> None:
    """A library that only comes along with another one may be gone with its next version."""
    lines = [*project["dependencies"], *sum(project["optional-dependencies"].values(), [])]
    listed = {canonicalize_name(Requirement(line).name) for line in lines}
    owners = importlib.metadata.packages_distributions()
    own = {"memopt", "experiments", "notebooks", "figlib", "tools", "tests", "workflow"}
    for path in python_files:
        module = ".".join(path.relative_to(repo).with_suffix("").parts)
        found = architecture.imported(path.read_text(), module, False)
        tops = {name.split(".")[0] for name in found} - set(sys.stdlib_module_names) - own
        for top in tops:
            distributions = {canonicalize_name(d) for d in owners.get(top, [top])}
            assert distributions & listed, f"{path}: {top} is not in pyproject.toml"


def test_tables_of_methods_are_the_catalog() -> None:
    for path, made in ((readme.README, readme.table()), (readme.OVERVIEW, readme.overview())):
        text = path.read_text()
        assert text == readme.with_table(text, made), "run: python tools/readme.py"
        assert made in text


def test_setup_runs_on_old_pythons_far_enough_to_say_so(repo: Path) -> None:
    """Syntax of Python 3.4: nothing newer may keep the message from being printed."""
    ast.parse((repo / "tools" / "setup_env.py").read_text(), feature_version=(3, 4))
