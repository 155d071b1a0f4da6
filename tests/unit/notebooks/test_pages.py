"""The report's pages: whole, literal, and captions that Snakemake's report can show as well."""

import base64
import json
import re
from html import unescape
from pathlib import Path

import docutils.core
import pandas as pd
import pytest
from figlib import bundle, pages

from . import fixture_tables

REPO = Path(__file__).resolve().parents[3]
RUNS = fixture_tables.tables(seeds=1)[0]
NASTY = pd.DataFrame({"label": ["<b>a & b</b>", "two\nlines"], "value": [1.25, float("nan")]})


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return bundle.write_table(
        tmp_path, "nasty", NASTY, "**A title.** Less < more & *so on*.", suite="made-up",
        source=bundle.Source("notebooks/x.ipynb", RUNS, {"formula": "a.b"}),
        columns={"label": ("Label", ""), "value": ("Value", ".1f")},
    )  # fmt: skip


def cells(page: str) -> list[list[str]]:
    rows = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    return [[unescape(c) for c in re.findall(r"<td[^>]*>(.*?)</td>", r, re.DOTALL)] for r in rows]


def test_a_bundles_page_holds_table_caption_numbers_and_runs(table: Path) -> None:
    page = pages.page(table)
    assert cells(page)[1:3] == [["<b>a & b</b>", "1.2"], ["two\nlines", "–"]]
    assert "<strong>A title.</strong> Less &lt; more &amp; *so on*." in page
    data = re.search(r'href="data:text/csv;base64,([^"]+)"', page)
    assert data and base64.b64decode(data[1]) == (table / "data.csv").read_bytes()
    assert ["formula", "a.b"] in cells(page) and ["notebook", "notebooks/x.ipynb"] in cells(page)
    for run in RUNS.itertuples():
        assert run.run_id in page and f'title="{run.commit}"' in page
    assert "http" not in page  # nothing to fetch


def test_the_runs_page_holds_costs_versions_and_machines() -> None:
    runs = pd.read_parquet(REPO / "paper_figures/tables/smoke/runs.parquet").head(4)
    runs = runs.assign(seconds=[12.34, None, 1.0, 1.0], peak_rss_bytes=3 * 2**20)
    runs["versions"] = ['{"torch": "1.0"}'] + ['{"torch": "2.0"}'] * 3
    page = pages.runs_page("made-up", runs)
    rows = {row[0]: row for row in cells(page) if row}
    assert {"12.3", "3"} <= set(rows[runs.run_id.iloc[0]])
    assert {"–", "3"} <= set(rows[runs.run_id.iloc[1]])
    assert ["1", "1.0"] in cells(page) and ["3", "2.0"] in cells(page)
    assert json.loads(runs.machine.iloc[0])["system"] in page
    for run in runs.itertuples():
        assert f'title="{run.config_hash}"' in page and f'title="{run.data_fingerprint}"' in page


def test_a_figure_is_drawn_into_its_page() -> None:
    folder = REPO / "paper_figures/differences_smoke"
    page = pages.page(folder)
    assert page.count("<svg") == page.count("</svg>") == 1
    assert "<?xml" not in page and "<!DOCTYPE svg" not in page


def test_a_missing_file_is_named(
    table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (table / "data.csv").unlink()
    call = ["pages", str(table.parent), "made-up", "runs.parquet", "out", "nasty"]
    monkeypatch.setattr("sys.argv", call)
    with pytest.raises(SystemExit, match="2"):
        pages.main()
    assert "nasty_made-up/data.csv is missing" in capsys.readouterr().err


def test_captions_in_git_are_restructured_text_too() -> None:
    # the report renders a caption as a Jinja template of reStructuredText
    for caption in sorted((REPO / "paper_figures").glob("*/caption.md")):
        text = caption.read_text(encoding="utf-8")
        assert not re.search(r"\{[{%#]", text), caption
        strict = {"halt_level": 2, "report_level": 5}
        html = docutils.core.publish_parts(text, writer="html", settings_overrides=strict)
        words = unescape(re.sub(r"<[^>]+>", " ", html["body"])).split()
        assert words == text.replace("**", " ").split(), caption
