"""Learning rates: equal grids, chosen by the lowest loss, read by the final study."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments import spec, suites
from experiments.data import load_tokens
from experiments.data.prepare import prepare
from experiments.data.splits import TUNING_SHARE, in_slice
from experiments.errors import UserError
from experiments.spec import DataSpec, RunSpec
from experiments.suites import SuiteFile
from experiments.tuning import TunedFile, choose

TRAIN = """
      steps: 4
      batch_size: 4
      sequence_length: 64
      eval_every: 2
      log_every: 2
      checkpoint_every: 2
"""
TUNING = f"""
description: made up
studies:
  - id: rates
    task: pydocs
    data: {{slice: tuning}}
    models: [llama_micro]
    methods: [adamw, {{name: gwt, args: {{level: 1}}}}]
    seeds: [7]
    grid: [3, 0.3, 1]
    train: {TRAIN}
"""
FINAL = f"""
description: made up
studies:
  - id: convergence
    task: pydocs
    data: {{slice: final}}
    models: [llama_micro]
    methods: [adamw, gwt]
    seeds: [0]
    rates: chosen
    train: {TRAIN}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the YAML folders to which a test may add."""
    for folder in ("models", "methods", "tasks", "suites"):
        (tmp_path / folder).symlink_to(suites.HOME / folder)
    (tmp_path / "suites").unlink()
    (tmp_path / "suites").mkdir()
    (tmp_path / "tuned").mkdir()
    monkeypatch.setattr(suites, "HOME", tmp_path)
    suites._read.cache_clear()
    yield tmp_path
    suites._read.cache_clear()


def table(losses: dict[tuple[str, float], list[float]]) -> pd.DataFrame:
    """Rows of runs.parquet: per method and rate the losses of its seeds; NaN diverged."""
    return pd.DataFrame(
        {
            "run_id": f"rates-nano-{method}-{lr}-{seed}",
            "suite": "made-up",
            "study": "rates",
            "model": "nano",
            "method": method,
            "method_args": "{}",
            "tuning": True,
            "lr": lr,
            "steps": 10,
            "data_fingerprint": "feed",
            "commit": "c0ffee",
            "final_validation_loss": loss,
            "diverged": bool(np.isnan(loss)),
        }
        for (method, lr), seeds in losses.items()
        for seed, loss in enumerate(seeds)
    )


def test_every_method_gets_the_same_factors(home: Path) -> None:
    (home / "suites" / "try.yaml").write_text(TUNING)
    runs = suites.expand("try")
    choices = [suites.MethodChoice(name=name) for name in ("adamw", "gwt")]
    base = {c.name: suites.method_spec(c, "llama_micro", "pydocs") for c in choices}
    rates = {name: [r.method.lr for r in runs if r.method.name == name] for name in base}
    for name, made in rates.items():
        assert made == pytest.approx([base[name].lr * factor for factor in (0.3, 1, 3)], rel=1e-3)
    assert all(run.tuning and run.data.slice == "tuning" for run in runs)
    assert all(run.method.args["level"] == 1 for run in runs if run.method.name == "gwt")


def test_the_lowest_mean_loss_wins_and_diverged_rates_never_do() -> None:
    runs = table(
        {
            ("adamw", 0.1): [3.0, 3.2],
            ("adamw", 0.2): [2.9, 3.1],
            ("adamw", 0.4): [1.0, np.nan],  # one seed diverged: not a choice, however good
            ("gwt", 0.01): [4.0, 4.0],
            ("gwt", 0.02): [3.9, 3.9],
            ("gwt", 0.04): [3.8, 3.8],
        }
    )
    tuned = choose(runs, "rates")
    assert tuned.methods["adamw"].lr == 0.2 and not tuned.methods["adamw"].at_edge
    assert tuned.methods["gwt"].lr == 0.04 and tuned.methods["gwt"].at_edge
    assert [trial.loss for trial in tuned.methods["adamw"].sweep] == [
        pytest.approx(3.1), pytest.approx(3.0), None
    ]  # fmt: skip
    assert tuned.methods["gwt"].sweep[0].run_ids == [
        "rates-nano-gwt-0.01-0",
        "rates-nano-gwt-0.01-1",
    ]
    assert spec.parse(TunedFile, spec.to_plain(tuned), "again") == tuned


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t[t.run_id != "rates-nano-gwt-0.1-0"], "unequal budgets .adamw 2 rates in 2"),
        (lambda t: t.assign(tuning=False), "not one that tunes"),
        (lambda t: t.assign(model=["a", "b", "a", "b"]), r"different model: \['a', 'b'\]"),
        (lambda t: t.assign(method_args=list("abab")), "ran with different arguments"),
        (lambda t: t.assign(diverged=True), "adamw diverged at every learning rate"),
        (lambda t: t.assign(study="ratse"), "no study 'rates'.*'ratse'"),
    ],
)
def test_what_cannot_be_compared_is_refused(change, message: str) -> None:
    runs = table({(m, lr): [3.0] for m in ("adamw", "gwt") for lr in (0.1, 0.2)})
    with pytest.raises(UserError, match=message):
        choose(change(runs), "rates")


def test_final_study_reads_the_chosen_rates(home: Path) -> None:
    runs = table({(m, lr): [1 + lr] for m in ("adamw", "gwt") for lr in (0.123, 0.2)})
    (home / "tuned" / "chosen.yaml").write_text(spec.to_yaml(choose(runs, "rates")))
    (home / "suites" / "try.yaml").write_text(FINAL)
    final = suites.expand("try")
    assert [run.method.lr for run in final] == [0.123, 0.123]
    assert not any(run.tuning for run in final)
    (home / "suites" / "try.yaml").write_text(FINAL.replace("adamw,", "adamw, lomo,"))
    suites._read.cache_clear()
    with pytest.raises(UserError, match=r"tuned/chosen.yaml has no rate for lomo.*tune it"):
        suites.expand("try")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rates: chosen", "rates: chosne", "unknown tuned 'chosne'"),
        ("rates: chosen", "rates: chosen\n    grid: [1, 2]", "'grid' or tuned 'rates', not both"),
        ("[adamw, gwt]", "[{name: adamw, lr: 1.0}, gwt]", "adamw cannot have an 'lr' of its own"),
        ("slice: final", "slice: tuning", "never see"),
        ("rates: chosen", "grid: [1, 2]", "never see"),
    ],
)
def test_contradictions_are_named(home: Path, old: str, new: str, message: str) -> None:
    runs = table({(m, lr): [1 + lr] for m in ("adamw", "gwt") for lr in (0.1, 0.2)})
    (home / "tuned" / "chosen.yaml").write_text(spec.to_yaml(choose(runs, "rates")))
    assert old in FINAL
    (home / "suites" / "try.yaml").write_text(FINAL.replace(old, new))
    with pytest.raises(UserError, match=message):
        suites.expand("try")


def test_slices_are_disjoint_whole_and_of_the_promised_size() -> None:
    tuning, final = (DataSpec(source="pydocs", slice=part) for part in ("tuning", "final"))
    documents = [f"document {n}" for n in range(4000)]
    taken = [in_slice(document, tuning) for document in documents]
    assert taken == [not in_slice(document, final) for document in documents]
    # binomial: 0.2 of 4000 with a standard deviation of 25; four of them
    assert abs(sum(taken) - TUNING_SHARE * 4000) < 100


def test_prepared_slices_share_no_document(tmp_path: Path) -> None:
    texts = [f"Document number {n} says {n * n} things about {n % 7} words." for n in range(300)]
    rows = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (tmp_path / "documents.jsonl").write_text(rows)
    seen = {}
    for part in ("tuning", "final", None):
        data = DataSpec(
            source="text_files",
            path=str(tmp_path / "documents.jsonl"),
            tokenizer={"kind": "bpe", "vocab_size": 300},
            sequence_length=128,
            layout="papers",
            validation_fraction=0.1,
            slice=part,
        )
        prepare(data, tmp_path / str(part))
        tokens = load_tokens(tmp_path / str(part))
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(tokens.tokenizer)
        seen[part] = {
            tokenizer.decode(row["labels"][row["labels"] >= 0][:-1])
            for split in (tokens.train, tokens.validation)
            for row in (split[n] for n in range(len(split)))
        }
    assert not seen["tuning"] & seen["final"]
    assert seen["tuning"] | seen["final"] == seen[None] == set(texts)


def test_command_writes_the_file_and_marks_edges(tmp_path: Path) -> None:
    runs = table({(m, lr): [1 + lr] for m in ("adamw", "gwt") for lr in (0.1, 0.2)})
    runs.to_parquet(tmp_path / "runs.parquet")
    runs.head(0).to_parquet(tmp_path / "metrics.parquet")
    call = [sys.executable, "-m", "experiments.tuning", str(tmp_path), "--study", "rates"]
    done = subprocess.run(
        [*call, "--out", str(tmp_path / "tuned/x.yaml")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "adamw        0.1  (at the edge" in done.stdout
    assert spec.load(TunedFile, tmp_path / "tuned/x.yaml").methods["gwt"].lr == 0.1
    wrong = subprocess.run(
        [*call[:-1], "rate", "--out", str(tmp_path / "y.yaml")], capture_output=True, text=True
    )
    assert wrong.returncode == 2 and "did you mean 'rates'" in wrong.stderr


def test_tuning_runs_and_their_slice_go_together() -> None:
    content = {
        "task": "pretrain", "study": "a", "suite": "b", "tuning": True,
        "model": {"name": "m", "shape": {"model_type": "llama"}},
        "method": {"name": "adamw", "lr": 0.1},
        "data": {"source": "pydocs", "tokenizer": {"kind": "bpe", "vocab_size": 300},
                 "sequence_length": 8, "slice": "tuning"},
        "train": {"steps": 1, "batch_size": 1, "sequence_length": 8, "eval_every": 1,
                  "log_every": 1, "checkpoint_every": 1},
    }  # fmt: skip
    with pytest.raises(UserError, match="never see"):
        spec.parse(RunSpec, {**content, "tuning": False}, "x")
    run = spec.parse(RunSpec, content, "x")
    other = {**content, "data": {**content["data"], "slice": "final"}, "tuning": False}
    assert run.config_hash != spec.parse(RunSpec, other, "x").config_hash


def test_suite_file_wants_more_than_one_factor() -> None:
    with pytest.raises(UserError, match="grid"):
        spec.parse(SuiteFile, {"description": "x", "studies": [{"id": "a", "grid": [1]}]}, "x")
