"""The workflow's form: lint, format, schema, profiles, report."""

import json
import re
import subprocess
import sys
from pathlib import Path

import yaml

from .conftest import Project


def test_lint_is_clean(fresh: Project) -> None:
    assert "in a good condition" in fresh.run("--lint")


def test_format_is_clean(repo: Path) -> None:
    call = [sys.executable, "-m", "snakefmt", "--check", str(repo / "workflow")]
    done = subprocess.run(call, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_settings_file_holds_the_schemas_defaults(repo: Path) -> None:
    schema = yaml.safe_load((repo / "workflow/schemas/config.schema.yaml").read_text())
    defaults = {key: entry["default"] for key, entry in schema["properties"].items()}
    assert yaml.safe_load((repo / "config/config.yaml").read_text()) == defaults


def test_profiles_agree_where_they_should(repo: Path) -> None:
    default, slurm = (
        yaml.safe_load((repo / f"workflow/profiles/{name}/config.yaml").read_text())
        for name in ("default", "slurm")
    )
    of_the_machine = {"cores", "resources", "__use_yte__", "__definitions__"}
    common = {key: value for key, value in default.items() if key not in of_the_machine}
    assert common == {key: slurm[key] for key in common}


def test_slurm_profile_plans_without_slurm(fresh: Project) -> None:
    # neither Slurm nor what the run needs is here
    fresh.edit("suite.json", '"level": 2', '"threads": 64, "gpus": 4, "level": 2')
    assert fresh.planned("--workflow-profile", "workflow/profiles/slurm")["train"] == 3


def embedded(page: str, name: str) -> dict:
    """What a report's script of that name holds."""
    found = re.search(rf'<script id="{name}">\s*var {name} = (.*);', page)
    assert found, f"the report has no {name}"
    return json.loads(found[1])


def test_report_shows_figures_with_their_captions(finished: Project) -> None:
    finished.run("--report", "report.html")
    page = finished.read("report.html")
    assert "What is seen: lower is better." in page  # caption.md of the bundle
    assert "<strong>Stub figure.</strong>" in page and "<strong>Stub table.</strong>" in page
    assert "memopt compares memory-efficient optimizers" in page  # report/workflow.rst
    shown = embedded(page, "results")
    kinds = {Path(path).stem: (entry["mime_type"], entry["job_properties"]["rule"])
             for path, entry in shown.items()}  # fmt: skip
    # HTML is what the report opens beside its menu; a CSV it only offers for download
    assert kinds == dict.fromkeys(["curves", "tuned", "runs"], ("text/html", "pages"))
    listed = embedded(page, "categories")
    assert set(listed) == {"Figures", "Tables", "Runs"}
    # Chrome 147 takes what is embedded with a file's name for plain text
    head = "data:text/html;charset=utf8;base64,"
    assert all(entry["data_uri"].startswith(head) for entry in shown.values())
