"""Runs the conformance suite and writes its results to docs/conformance.md.

`python tools/conformance.py`: some two minutes. Nothing is written unless every test has passed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from xml.etree import ElementTree

from memopt.capabilities import CAPABILITIES
from memopt.catalog import METHODS

REPO = Path(__file__).resolve().parents[1]
DOCUMENT = REPO / "docs" / "conformance.md"
RECORD = "MEMOPT_CONFORMANCE"  # where tests/conformance/conftest.py writes what came out
SUITE = "tests/conformance"
ELSEWHERE = {
    "fsdp2": "tests/distributed/test_fsdp2.py"
}  # held to, method by method, by other files

HEAD = """# What every method does, and what some do not

*Made by `python tools/conformance.py` from the results of `tests/conformance` (and, for `fsdp2`,
of `tests/distributed`), which hold every row of the catalog to the same promises. Where a method
does not keep one, `memopt/catalog.py` says why, and a test holds that to be so: an exception that
is none any more fails (not for `fsdp2`).*

**yes**: kept, by every test of the promise. **refused**: the method says so by an error that names
what to do instead. **no**: not kept, and nothing can say so at run time (there is no gradient to
clip, no key to refuse). The numbers lead to the reasons below each table.
"""

Outcomes = Mapping[str, Mapping[str, str]]


def declared() -> Outcomes:
    """What the catalog promises: method to capability to ``yes`` or ``no``."""
    return {
        name: {key: "no" if key in method.limits else "yes" for key in CAPABILITIES}
        for name, method in METHODS.items()
    }


def measured() -> Outcomes:
    """Runs the tests.

    Raises:
        SystemExit: a test failed, or its outcome contradicts the catalog.
    """
    with tempfile.TemporaryDirectory() as folder:
        record, report = Path(folder) / "outcomes.json", Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        chosen = [SUITE, *ELSEWHERE.values(), "-m", "law or distributed"]
        done = subprocess.run(
            [*command, *chosen, f"--junitxml={report}", "--durations=30"],
            cwd=REPO,
            env=os.environ | {RECORD: str(record)},
        )
        if done.returncode:
            raise SystemExit("not written: a test failed")
        lists = json.loads(record.read_text())
        passed = _passed(report)
    found = {
        name: {key: "yes" if set(each) == {"yes"} else "no" for key, each in results.items()}
        for name, results in lists.items()
    }
    for key, path in ELSEWHERE.items():
        for name, results in found.items():
            results[key] = "yes" if (path, name) in passed else "no"
    told = declared()
    if wrong := [name for name in told if found.get(name) != told[name]]:
        raise SystemExit(f"not written: outcomes and catalog differ for {', '.join(wrong)}")
    return {name: {key: found[name][key] for key in CAPABILITIES} for name in told}


def _passed(report: Path) -> set[tuple[str, str]]:
    """Files and last parameters of the tests of a JUnit report, all of which have passed."""
    cases = ElementTree.parse(report).iter("testcase")
    return {
        (f"{case.get('classname', '').replace('.', '/')}.py", name[1])
        for case in cases
        if (name := re.search(r"\[(?:.*-)?(\w+)\]$", case.get("name", "")))
    }


def document(outcomes: Outcomes) -> str:
    """The document as Markdown."""
    parts = [HEAD]
    for group, keys in groupby(CAPABILITIES, key=lambda key: CAPABILITIES[key].group):
        parts.append(_section(group, list(keys), outcomes))
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
