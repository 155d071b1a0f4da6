"""A finished run's model, as a folder that transformers loads: weights, config, tokenizer.

    python -m experiments.export results/smoke/runs/RUN_ID

makes ``results/smoke/runs/RUN_ID/model``. The workflow does it for runs that others start from.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from experiments import models, spec
from experiments.errors import UserError, command_line
from experiments.files import write_atomic
from experiments.spec import RunSpec
from experiments.starts import model_folder, placed


def export(run_dir: Path, work: Path | None = None, data: Path | None = None) -> Path:
    """Puts the model of a finished run beside its results.

    Args:
        run_dir: the run's folder with ``run.yaml`` and ``summary.json``.
        work: the run's work folder, which keeps the final weights; default ``../../work/RUN_ID``.
        data: prepared data, for the tokenizer of a pretrained model; default
            ``data/prepared/DATA_ID``.

    Returns:
        The folder.

    Raises:
        UserError: the run has not finished, has diverged, or its weights are gone.
    """
    summary = run_dir / "summary.json"
    if not summary.is_file():
        raise UserError(f"{summary} is missing: the run has not finished")
    run = spec.load(RunSpec, run_dir / "run.yaml")
    if json.loads(summary.read_text(encoding="utf-8"))["diverged"]:
        raise UserError(f"the run {run.run_id} has diverged: nothing can start from its weights")
    made = (work or run_dir.parent.parent / "work" / run.run_id) / "model"
    if not (made / "config.json").is_file():
        raise UserError(
            f"{made}: the final weights of {run.run_id} are no longer there; delete {run_dir} and "
            f"train the run again, which gives the same bits"
        )
    if run.task == "pretrain":
        origin = str((data or Path("data/prepared") / run.data.data_id) / "tokenizer")
    else:
        origin = models.pretrained_origin(placed(run, run_dir.parent).model)
    tokenizer = AutoTokenizer.from_pretrained(origin, revision=run.model.revision)
    config = AutoConfig.from_pretrained(made)
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(config, key, getattr(tokenizer, key))  # a shape's are the library's defaults
    folder = model_folder(run_dir)
    folder.mkdir(exist_ok=True)
    for file in made.glob("*.safetensors*"):
        shutil.copy(file, folder)
    tokenizer.save_pretrained(folder)
    GenerationConfig.from_model_config(config).save_pretrained(folder)
    write_atomic(folder / "config.json", config.to_json_string())  # last: now it is whole
    return folder


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.export", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN_DIR")
    parser.add_argument("--work", type=Path, help="default RUN_DIR/../../work/RUN_ID")
    parser.add_argument("--data", type=Path, help="default data/prepared/DATA_ID")
    arguments = parser.parse_args()
    print(export(arguments.run, arguments.work, arguments.data))


if __name__ == "__main__":
    command_line(_main)
