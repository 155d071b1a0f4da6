"""The arrows of the house go one way, and the picture shows the code as it is."""

import subprocess
import sys

import pytest

from tools import architecture

# memopt is a library for other people's training loops: it must not drag anything in.
LIBRARIES_OF_MEMOPT = {"torch", "numpy", "pywt"}
# Met only by who asks for it, with a plain message where it is missing.
OPTIONAL = {
    "memopt.accounting": {"rich"},
    "memopt.accounting.real": {"transformers"},
    "memopt.adapters": {"peft"},
}
FOREIGN = {
    "rich",
    "peft",
    "transformers",
    "datasets",
    "accelerate",
    "pandas",
    "pydantic",
    "scipy",
    "yaml",
}
DOORS = {  # which rooms a room may look into
    "workflow": {"experiments", "memopt", "notebooks"},
    "notebooks": {"experiments", "memopt"},
    "experiments": {"memopt"},
    "memopt": set(),
}


@pytest.fixture(scope="module")
def edges() -> list[tuple[str, str]]:
    return architecture.graph()[0]


def test_arrows_go_one_way(edges: list[tuple[str, str]]) -> None:
    for a, b in edges:
        here, there = a.split(".")[0], b.split(".")[0]
        assert here == there or there in DOORS[here], f"{a} must not look into {b}"


def test_no_rooms_look_at_each_other_in_a_circle(edges: list[tuple[str, str]]) -> None:
    assert architecture.cycles(set(edges)) == set()


def test_memopt_stands_on_torch_alone() -> None:
    for name, text, is_package in architecture.modules():
        if name.split(".")[0] != "memopt":
            continue
        allowed = LIBRARIES_OF_MEMOPT.union(
            *(libs for place, libs in OPTIONAL.items() if f"{name}.".startswith(f"{place}."))
        )
        tops = {t.split(".")[0] for t in architecture.imported(text, name, is_package)}
        foreign = tops - set(sys.stdlib_module_names) - {"memopt"}
        assert foreign <= allowed, name


def test_memopt_works_where_only_torch_is_installed() -> None:
    """Imports every module, and trains a step, with all optional libraries out of reach."""
    names = [n for n, _, _ in architecture.modules() if n.split(".")[0] == "memopt"]
    names = [n for n in names if not n.endswith("__main__")]
    script = f"""
import importlib, sys
sys.modules.update(dict.fromkeys({sorted(FOREIGN)}))
for name in {names}:
    importlib.import_module(name)
import memopt, torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
optimizer = memopt.create("gwt", model, lr=0.1)
before = model[0].weight.clone()
model(torch.ones(2, 8)).sum().backward()
optimizer.step()
assert not torch.equal(before, model[0].weight)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_picture_is_fresh() -> None:
    told = architecture.EDGES.read_text()
    assert told == architecture.document(), "run: python tools/architecture.py"


def test_relative_and_plain_imports_are_read() -> None:
    text = "import os.path\nfrom . import a\nfrom ..b import c\nfrom memopt.rules import adam"
    found = set(architecture.imported(text, "memopt.x.y", False))
    assert found == {"os.path", "memopt.x.a", "memopt.b.c", "memopt.rules.adam"}


def test_reduction_keeps_only_what_does_not_follow() -> None:
    edges = {("a", "b"), ("b", "c"), ("a", "c"), ("a", "d")}
    assert architecture.reduced(edges) == {("a", "b"), ("b", "c"), ("a", "d")}
    assert architecture.cycles(edges | {("c", "a")}) == {"a", "b", "c"}
