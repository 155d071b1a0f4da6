"""`python -m experiments.memory`: its table, and what it refuses."""

import json
import re

import pandas as pd
import pytest

from experiments import memory, spec
from experiments.errors import UserError
from memopt import METHODS
from memopt.accounting import predict

ONE_PROCESS = {name for name, method in METHODS.items() if method.kind != "distributed"}


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return memory.table("smoke")


def printed(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame.standing != "formula"]


def test_columns_are_the_documented_ones(frame: pd.DataFrame) -> None:
    documented = re.findall(r"``([a-z_]+)``", memory.__doc__.split("Columns:")[1])
    assert set(frame.columns) <= set(documented)


def test_a_row_is_what_predict_says(frame: pd.DataFrame) -> None:
    row = frame[(frame.table == "papers") & (frame.model == "llama_1b") & (frame.method == "coap")]
    assert list(row.part) == ["weights", "gradients", "states", "projections"]
    arguments = json.loads(row.arguments.iloc[0])
    assert arguments["rank"] == 512  # COAP's script
    report = predict("llama_1b", "coap", "bfloat16", storage="bfloat16", **arguments)
    assert row.bytes.sum() == report.total


def test_papers_rows_are_complete(frame: pd.DataFrame) -> None:
    rows = frame[frame.table == "papers"]
    assert set(rows.method) == ONE_PROCESS
    assert len(rows) == 4 * len(ONE_PROCESS) * len(memory.PAPER_MODELS)
    assert rows.bytes.notna().all()
    ranks = {
        (row.model, json.loads(row.arguments)["rank"])
        for row in rows[rows.method == "galore"].itertuples()
    }
    assert ranks == {
        ("llama_60m", 128),
        ("llama_130m", 256),
        ("llama_350m", 256),
        ("llama_1b", 512),
        ("llama_3b", 512),
        ("llama_7b", 1024),
    }


def test_suite_rows_follow_training(frame: pd.DataFrame) -> None:
    rows = frame[(frame.table == "suite") & (frame.model == "llama_nano")]
    assert set(rows.method) == ONE_PROCESS
    gradients = rows[rows.part == "gradients"].set_index("method").bytes
    # two micro-batches: LOMO must hold every gradient in between, AdamA none
    assert gradients["lomo"] == gradients["adamw"] == 4 * 463_424
    assert gradients["adama"] == 4 * 2048 * 64


def test_every_printed_figure_is_met_or_explained(frame: pd.DataFrame) -> None:
    rows = printed(frame)
    assert set(rows.agreement) <= set(memory.AGREEMENTS)
    unmet = rows[rows.agreement.isin(["differs", "not computed"])]
    assert (unmet.reason.str.len() > 20).all()
    assert rows[rows.agreement == "not computed"].bytes.isna().all()


TABLES_THAT_AGREE = (
    *("gwt_c4", "gwt_c4_states", "lomo_parts"),
    *("coap_llama", "coap_code", "coap_ldm"),
)


def test_tables_that_must_agree_do(frame: pd.DataFrame) -> None:
    met = ["printed digits", "within 0.1 %"]
    for name in TABLES_THAT_AGREE:
        rows = frame[(frame.table == name) & (frame.agreement != "not computed")]
        assert len(rows) > 0
        assert rows.agreement.isin(met).all(), name


@pytest.mark.parametrize(
    ("ours", "value", "expected"),
    [
        (1.9449, "1.94", "printed digits"),
        (1.9451, "1.94", "differs"),
        (5381.0, "5380.51", "within 0.1 %"),
        (0.0, "0.00", "printed digits"),
        (8.03, "8.04", "differs"),
        (8.0345, "8.04", "within 0.1 %"),
        (18.4, "18", "printed digits"),
    ],
)
def test_agreement(ours: float, value: str, expected: str) -> None:
    assert memory.agrees(ours, value) == expected


def one_table(**row) -> memory.PrintedFile:
    row = {"method": "adamw", "values": {"llama_60m": "0.348"}} | row
    head = {"source": "X", "where": "here", "standing": "printed", "convention": "gwt"}
    content = {"tables": {"t": head | {"rows": [row]}}}
    return spec.parse(memory.PrintedFile, content, "made up")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"method": "adamv"}, ["t: llama_60m, adamv", "Did you mean 'adamw'"]),
        ({"values": {"llama_61m": "1"}}, ["llama_60m"]),
        ({"values": {"llama_60m": "0.5"}}, ["differs", "no reason"]),
        ({"method": "gwt", "arguments": {"levle": 1}}, ["levle", "'level'"]),
        ({"unit": "Gib"}, ["'GiB'"]),
    ],
)
def test_a_bad_row_is_named(row: dict, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        list(memory.printed_rows(one_table(**row)))
    for word in words:
        assert word in str(caught.value)


def test_parts_are_shared_among_gpus() -> None:
    whole, eighth = (
        next(memory.printed_rows(one_table(shared=n, reason="other", part="states")))
        for n in (1, 8)
    )
    assert eighth["bytes"] == -(-whole["bytes"] // 8)


@pytest.mark.parametrize("row", [{"values": {"llama_60m": "1,5"}}, {"argument": {}}])
def test_a_malformed_row_is_refused(row: dict) -> None:
    with pytest.raises(UserError):
        one_table(**row)


def test_command_writes_parquet(tmp_path, monkeypatch, frame: pd.DataFrame) -> None:
    out = tmp_path / "new" / "memory.parquet"
    monkeypatch.setattr("sys.argv", ["memory", str(out), "--suite", "smoke"])
    memory._main()
    written = pd.read_parquet(out)
    pd.testing.assert_frame_equal(written, frame)
    assert set(written.attrs) == {"commit", "dirty"}
    assert [path.name for path in out.parent.iterdir()] == ["memory.parquet"]


def test_unknown_suite() -> None:
    with pytest.raises(UserError, match="did you mean 'smoke'"):
        memory.table("smokee")
