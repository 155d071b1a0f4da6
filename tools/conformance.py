"""Runs the conformance suite and writes its results to docs/conformance.md.

`python tools/conformance.py`: some two minutes. Nothing is written unless every test has passed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path

from memopt.capabilities import CAPABILITIES
from memopt.catalog import METHODS

REPO = Path(__file__).resolve().parents[1]
DOCUMENT = REPO / "docs" / "conformance.md"
RECORD = "MEMOPT_CONFORMANCE"  # where tests/conformance/conftest.py writes what came out
ELSEWHERE = {"fsdp2": "tests/distributed"}  # held by tests that are not of this suite

HEAD = """# What every method does, and what some do not

*Made by `python tools/conformance.py` from the results of `tests/conformance`, which holds every
row of the catalog to the same promises. Where a method does not keep one, `memopt/catalog.py` says
why, and a test holds that to be so: an exception that is none any more fails.*

**yes**: kept, by every test of the promise. **refused**: the method says so by an error that names
what to do instead. **no**: not kept, and nothing can say so at run time (there is no gradient to
clip, no key to refuse). The numbers lead to the reasons below each table.
"""

Outcomes = Mapping[str, Mapping[str, str]]


def declared() -> Outcomes:
    """What the catalog promises: method to capability to ``yes`` or ``no``."""
    return {
        name: {key: "no" if key in method.limits else "yes" for key in held_here()}
        for name, method in METHODS.items()
    }


def held_here() -> list[str]:
    """The capabilities that tests/conformance holds methods to."""
    return [key for key in CAPABILITIES if key not in ELSEWHERE]


def measured() -> Outcomes:
    """Runs the suite.

    Raises:
        SystemExit: a test failed, or its outcome contradicts the catalog.
    """
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "outcomes.json"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, "tests/conformance", "-m", "law"],
            cwd=REPO,
            env=os.environ | {RECORD: str(record)},
        )
        if done.returncode:
            raise SystemExit("not written: a test failed")
        lists = json.loads(record.read_text())
    found = {
        name: {key: "yes" if set(each) == {"yes"} else "no" for key, each in results.items()}
        for name, results in lists.items()
    }
    told = declared()
    if wrong := [name for name in told if found.get(name) != told[name]]:
        raise SystemExit(f"not written: outcomes and catalog differ for {', '.join(wrong)}")
    return {name: found[name] for name in told}


def document(outcomes: Outcomes) -> str:
    """The document as Markdown."""
    parts = [HEAD]
    for group, keys in groupby(held_here(), key=lambda key: CAPABILITIES[key].group):
        parts.append(_section(group, list(keys), outcomes))
    for key, place in ELSEWHERE.items():
        reasons = [f"- `{n}`: {m.limits[key]}" for n, m in METHODS.items() if key in m.limits]
        parts.append(
            f"## {CAPABILITIES[key].group}\n\n`{key}`: {CAPABILITIES[key].says}. Tried for some "
            f"methods by `{place}`. Not:\n\n" + "".join(f"{line}.\n" for line in reasons)
        )
    return "\n".join(parts)


def _section(group: str, keys: list[str], outcomes: Outcomes) -> str:
    """Promises, table and reasons of one group."""
    numbers: dict[tuple[str, str], int] = {}
    users: dict[tuple[str, str], list[str]] = {}
    rows = [["method", *(f"`{key}`" for key in keys)], ["---"] * (len(keys) + 1)]
    for name, found in outcomes.items():
        row = [f"`{name}`"]
        for key in keys:
            if found[key] == "yes":
                row.append("yes")
                continue
            reason = (key, METHODS[name].limits[key])
            number = numbers.setdefault(reason, len(numbers) + 1)
            users.setdefault(reason, []).append(f"`{name}`")
            row.append(f"{'refused' if CAPABILITIES[key].refused else 'no'} ({number})")
        rows.append(row)
    promises = "".join(f"- `{key}`: {CAPABILITIES[key].says}.\n" for key in keys)
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    reasons = "".join(
        f"{number}. `{key}`, {', '.join(users[key, why])}: {why}.\n"
        for (key, why), number in numbers.items()
    )
    return f"## {group}\n\n{promises}\n{table}" + (f"\n{reasons}" if reasons else "")


if __name__ == "__main__":
    DOCUMENT.write_text(document(measured()))
    print(f"wrote {DOCUMENT.relative_to(REPO)}")
