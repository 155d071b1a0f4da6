"""Bundles: complete, the same bytes each time, escaped; the gallery lists each."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from figlib import bars, bundle, captions, gallery, lines, stats, style
from figlib.errors import FigureError

from . import fixture_tables

REPO = Path(__file__).resolve().parents[3]
COLUMNS = {"label": ("Method", ""), "value": ("Share (%)", ".1f"), "name": ("Name_x", "")}
NASTY = pd.DataFrame(
    {
        "label": ["a|b", "50% & $x_1^2$", "#{~}\\"],
        "value": [1.0, float("nan"), 2.25],
        "name": ["*bold*", "<b>", "[link](x)"],
    }
)


def source(seeds: int = 1) -> bundle.Source:
    runs, _ = fixture_tables.tables(seeds)
    labelled = stats.with_labels(runs[runs.task == "pretrain"])
    return bundle.Source("notebooks/convergence.ipynb", labelled)


def write_convergence(folder: Path, suite: str = "made-up") -> Path:
    style.use()
    runs, metrics = fixture_tables.tables(seeds=2)
    runs = stats.with_labels(runs[runs.task == "pretrain"])
    curves = stats.curves(runs, metrics)
    unigram = runs.groupby(["study", "model"]).final_unigram_perplexity.mean()
    figure = lines.convergence(curves, unigram)
    caption = f"**Made-up curves.** {captions.of_runs(runs)}"
    out = bundle.write_figure(
        folder, "convergence", figure, curves, caption, suite=suite, source=source(2)
    )
    plt.close(figure)
    return out


@pytest.fixture(scope="module")
def convergence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One written figure bundle, for all tests that only read it."""
    return write_convergence(tmp_path_factory.mktemp("bundles"))


def write_nasty(folder: Path) -> Path:
    return bundle.write_table(
        folder, "nasty", NASTY, "**Odd | text.**", suite="made-up", source=source(), columns=COLUMNS
    )


def test_figure_bundle_is_complete_and_its_bytes_repeat(convergence: Path, tmp_path: Path) -> None:
    first, second = convergence, write_convergence(tmp_path)
    names = sorted(p.name for p in first.iterdir())
    assert names == sorted([*gallery.EXPECTED["figure"], *gallery.COMMON])
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    assert [p.name for p in tmp_path.iterdir()] == ["convergence_made-up"]
    drawn = pd.read_csv(first / "data.csv")
    assert len(drawn) == 7 * fixture_tables.STEPS // fixture_tables.EVERY
    record = json.loads((first / "provenance.json").read_text())
    assert [r["run_id"] for r in record["runs"]] == sorted(source(2).runs.run_id)
    assert {r["commit"] for r in record["runs"]} == {fixture_tables.COMMIT}


def test_smoke_results_say_so_in_picture_and_caption(convergence: Path, tmp_path: Path) -> None:
    note = "smoke run: tiny model, 300 steps, not a result to cite"
    assert source().smoke_note == note
    assert note in (convergence / "caption.md").read_text()
    plain = bundle.Source("n", source().runs.assign(smoke=False))
    assert plain.smoke_note is None
    figure = plt.figure()
    bundle.write_figure(tmp_path, "x", figure, NASTY, "**X.**", suite="made-up", source=source())
    assert [t.get_text() for t in figure.texts] == [note]
    other = plt.figure()
    bundle.write_figure(tmp_path, "y", other, NASTY, "**Y.**", suite="made-up", source=plain)
    assert not other.texts and "smoke" not in (tmp_path / "y_made-up/caption.md").read_text()
    plt.close("all")


def test_tables_are_escaped_and_rounded(tmp_path: Path) -> None:
    out = write_nasty(tmp_path)
    assert sorted(p.name for p in out.iterdir()) == sorted(
        [*gallery.EXPECTED["table"], *gallery.COMMON]
    )
    assert (out / "table.md").read_text().splitlines() == [
        r"| Method | Share (%) | Name\_x |",
        "| --- | ---: | --- |",
        r"| a\|b | 1.0 | \*bold\* |",
        r"| 50% & $x\_1^2$ | – | \<b\> |",
        r"| #\{\~\}\\ | 2.2 | \[link\](x) |",
    ]
    tex = (out / "table.tex").read_text()
    assert r"50\% \& \$x\_1\textasciicircum 2\$" in tex
    assert r"\#\{\textasciitilde \}\textbackslash" in tex
    assert r"\begin{tabular}{lrl}" in tex and r"\toprule" in tex
    assert pd.read_csv(out / "table.csv")["Share (%)"].tolist() == ["1.0", "–", "2.2"]
    assert pd.read_csv(out / "data.csv").value.tolist()[2] == 2.25


def test_a_bundle_takes_the_place_of_the_old_one_whole(tmp_path: Path) -> None:
    out = write_nasty(tmp_path)
    (out / "stale.txt").write_text("left over")
    assert not (write_nasty(tmp_path) / "stale.txt").exists()


def test_bad_names_columns_and_empty_data(tmp_path: Path) -> None:
    with pytest.raises(FigureError, match="bundle name '../x'"):
        bundle.folder(tmp_path, "../x", "smoke")
    with pytest.raises(FigureError, match="no column 'lable'; it has label, value, name"):
        bundle.display(NASTY, {"lable": ("Method", "")})
    with pytest.raises(FigureError, match="'nothing'.*no rows"):
        bundle.write_table(
            tmp_path, "nothing", NASTY[:0], "**N.**", suite="s", source=source(), columns=COLUMNS
        )
    assert not (tmp_path / "nothing_s").exists()
    with pytest.raises(FigureError, match="two columns are headed 'Method'"):
        bundle.markdown(NASTY, {"label": ("Method", ""), "name": ("Method", "")})


def test_captions_tell_model_data_steps_seeds_commit_and_repetition() -> None:
    runs = source(seeds=3).runs
    text = captions.of_runs(runs)
    for part in ("nano (0.46 M weights)", "made_up-bpe2048-00000000", "300 steps", "0.614 million",
                 "seeds per line: 3", "Code: 0123456789."):  # fmt: skip
        assert part in text
    assert "more than once" not in text
    assert "seen more than once** by every method" in captions.of_runs(runs.assign(epochs=1.5))
    some = runs.assign(epochs=[2.0 if m == "gwt" else 0.5 for m in runs.method])
    assert "seen more than once** by GWT:" in captions.of_runs(some)
    assert "with uncommitted changes" in captions.of_runs(runs.assign(dirty=True))
    lost = runs.assign(diverged=runs.method == "lomo")
    assert "Diverged with at least one seed: LOMO;" in captions.of_runs(lost)


def test_gallery_lists_each_bundle(convergence: Path, tmp_path: Path) -> None:
    shutil.copytree(convergence, tmp_path / convergence.name)
    write_nasty(tmp_path)
    command = [sys.executable, "-m", "figlib.gallery", str(tmp_path)]
    subprocess.run(command, cwd=REPO / "notebooks", check=True)
    text = (tmp_path / "README.md").read_text()
    assert "convergence_made-up/figure.png" in text and "Made-up curves" in text
    assert r"| a\|b | 1.0 |" in text
    assert "convergence_made-up/provenance.json" in text
    assert text.count("smoke run: tiny model") == 2
    assert "@software{memopt" in text


def test_committed_bundles_are_whole_and_listed() -> None:
    """What paper_figures/ holds is what the notebooks wrote, and its page is up to date."""
    folder = REPO / "paper_figures"
    if not folder.is_dir():
        pytest.skip("no bundles here: run the smoke suite")
    for record in gallery.read_bundles(folder):
        for name, digest in record["sha256"].items():
            content = (folder / record["id"] / name).read_bytes()
            assert hashlib.sha256(content).hexdigest() == digest, f"{record['id']}/{name}"
    assert (folder / "README.md").read_text(encoding="utf-8") == gallery.page(folder)


def test_gallery_names_what_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (write_nasty(tmp_path) / "table.tex").unlink()
    with pytest.raises(FigureError, match="nasty_made-up: table.tex is missing"):
        gallery.page(tmp_path)
    monkeypatch.setattr(sys, "argv", ["gallery", str(tmp_path / "none")])
    with pytest.raises(SystemExit) as ended:
        gallery.main()
    assert ended.value.code == 2
    assert re.fullmatch(r"error: .*none: no such folder.*\n", capsys.readouterr().err)


def test_end_labels_do_not_overlap() -> None:
    places = lines.spread_out([0.0, 1.0, 2.0, 100.0], gap=10)
    assert list(places) == pytest.approx([-9, 1, 11, 100])  # centred on their wishes


def test_amounts_have_units() -> None:
    assert bars.amount(0) == "0 B"
    assert bars.amount(1536) == "1.50 KiB"
    assert bars.amount(173 * 2**20) == "173 MiB"
    assert bars.amount(12.55 * 2**30) == "12.6 GiB"
