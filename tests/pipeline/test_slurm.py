"""The Slurm profile, against commands that stand in for a cluster."""

import os
import re
from pathlib import Path

import pytest

from .conftest import Project


@pytest.mark.slow
def test_jobs_go_through_slurm_with_what_they_need(fresh: Project) -> None:
    fresh.edit("suite.json", '"level": 2', '"threads": 2, "gpus": 4, "level": 2')
    calls = fresh.root / "slurm"
    done = fresh.snakemake(
        *("--workflow-profile", "workflow/profiles/slurm"),
        *("--slurm-init-seconds-before-status-checks", "1"),
        PATH=f"{Path(__file__).parent / 'slurm'}:{os.environ['PATH']}",
        FAKE_SLURM=str(calls),
        CUDA_VISIBLE_DEVICES="0,1,2,3",
    )
    assert done.returncode == 0, done.stdout
    submitted = fresh.read("slurm/calls").splitlines()
    (gwt,) = (call for call in submitted if "train_wildcards_gwt-2" in call)
    assert "--cpus-per-task=8" in gwt and "--gpus=4" in gwt  # one process a GPU
    assert "--mem 10 " in gwt and "-t 1 " in gwt
    assert len(submitted) == 8  # memory, memory_steps, data, three runs, collect, notebook
    # this machine gives no more threads than it has cores
    assert re.search(r"gwt from 0, \d threads, 4 processes\n", fresh.read("trained.log"))
    assert fresh.read("paper_figures/README.md") == "curves_smoke\ntuned_smoke"
