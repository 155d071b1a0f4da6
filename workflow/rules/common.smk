# What the other files stand on: the suite and its runs, and what must hold before a start.
# Here are functions only; they ask the project's commands and never import its code.
import base64
import difflib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml
from snakemake.exceptions import WorkflowError
from snakemake.utils import validate

# Commands run with the Python that runs Snakemake (`--sdm conda` puts another one before it).
os.environ.update(
    PATH=os.pathsep.join([str(Path(sys.executable).parent), os.getenv("PATH", "")])
)


def stop(message):
    """Ends with the reason alone; an exception would print a trace of Snakefile lines."""
    print(f"error: {str(message).removeprefix('error: ')}", file=sys.stderr)
    sys.exit(2)


def command(*arguments):
    """What a command of the project prints; where it refuses, its words are ours."""
    call = [sys.executable, "-m", *arguments]
    done = subprocess.run(call, capture_output=True, text=True)
    if done.returncode:
        stop(done.stderr.strip())
    return done.stdout


def check_config():
    """Names a misspelt setting and its nearest neighbour; the schema checks the rest."""
    schema = Path(workflow.basedir, "schemas", "config.schema.yaml")
    known = list(yaml.safe_load(schema.read_text())["properties"])
    for key in config:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            stop(f"unknown setting '{key}' (there are: {', '.join(known)}){hint}")
    try:
        validate(config, str(schema))
    except WorkflowError as refusal:
        stop(str(refusal).split("\n\n")[0])


def expand_suite():
    """The suite's runs and data sets, and the ids that `only` selects.

    Jobs on other machines read this file again, so the first process keeps the answer.
    """
    only = config["only"]
    kept = (
        SPEC / f"plan{re.sub(r'[^A-Za-z0-9]+', '-', f'-{only}') if only else ''}.json"
    )
    if not workflow.is_main_process:
        return json.loads(kept.read_text())
    call = ["experiments.suites", "expand", config["suite"], "--out", str(SPEC)]
    plan = json.loads(command(*call))
    chosen = json.loads(command(*call, "--only", only)) if only else plan
    plan["selected"] = [run["run_id"] for run in chosen["runs"]]
    kept.write_text(json.dumps(plan))
    return plan


def summary(run_id):
    """The file that says that a run has ended."""
    return RESULTS / "runs" / run_id / "summary.json"


def summaries(run_ids):
    """The summaries of several runs."""
    return [str(summary(run_id)) for run_id in run_ids]


def run_of(wildcards):
    """The suite's entry of a job's run."""
    return RUNS[wildcards.run]


def launcher(run):
    """What starts a run's command: torchrun, one process a GPU, where it has several GPUs."""
    if run["gpus"] > 1:
        return f"torchrun --standalone --nproc-per-node {run['gpus']} -m"
    return "python -m"


def cores_of(run):
    """Cores of all processes of a run, each of which has the run's threads."""
    return run["threads"] * max(run["gpus"], 1)


def manifest(run):
    """The prepared data of a run."""
    return f"data/prepared/{run['data_id']}/manifest.json"


def manifest_of(wildcards):
    """The prepared data of a job's run."""
    return manifest(run_of(wildcards))


def needed_models(wildcards):
    """The models from which this run starts: what other runs have pretrained."""
    needs = run_of(wildcards)["needs"]
    return [str(RESULTS / "runs" / run_id / "model/config.json") for run_id in needs]


def files(*patterns):
    """The repository's files that match, in one order."""
    return sorted(str(path) for pattern in patterns for path in Path().glob(pattern))


def bundle(name, kind):
    """The files of a folder in paper_figures/."""
    suffixes = {"figure": ["svg", "pdf", "png"], "table": ["csv", "md", "tex"]}[kind]
    shown = [f"{kind}.{suffix}" for suffix in suffixes]
    notes = ["data.csv", "caption.md", "provenance.json"]
    return [f"paper_figures/{name}_{SUITE}/{file}" for file in [*shown, *notes]]


def page(name, category, caption):
    """A page of the report."""
    return report(
        f"{RESULTS}/report/{name}.html",
        caption=caption,
        category=category,
        labels={"name": name.replace("_", " "), "suite": SUITE},
    )


def data_uri(data, filename, encoding="utf8", mime="text/plain"):
    """What Snakemake embeds in report.html, without its parameter `filename`.

    With it Chrome 147 takes what is embedded for plain text and shows no page and no SVG
    (131 did); Snakemake 9 has no setting for it.
    """
    return f"data:{mime};charset={encoding};base64,{base64.b64encode(data).decode()}"


def notebook_bundles():
    """Bundles that each notebook writes, given the tasks that were run (notebooks/bundles.yaml):
    for each notebook, kinds by name."""
    collected = [RUNS[run] for run in COLLECTED]
    # A run from which others start is a means: alone it has nothing beside it to compare.
    started = {need for run in collected for need in run["needs"]}
    shown = [run for run in collected if run["run_id"] not in started]
    final = {run["task"] for run in shown if not run["tuning"]}
    tasks = final | {"tuning" for run in collected if run["tuning"]} | {None}
    # The control stands beside the methods (figlib.compare): alone it is no ablation.
    varied = {run["study"] for run in collected} - {"ablation_two_rates"}
    tasks |= {"ablation" for study in varied if study.startswith("ablation_")}
    tasks |= {"micro_batches"} if MICRO_BATCHES else set()
    tasks |= {"gradients" for table in GRADIENTS}
    return {
        notebook: {
            name: entry["kind"]
            for name, entry in content["bundles"].items()
            if entry.get("task") in tasks
        }
        for notebook, content in yaml.safe_load(
            Path("notebooks/bundles.yaml").read_text()
        ).items()
        if content.get("task") in tasks and content.get("suite") in (None, SUITE)
    }


def further_tables(notebook):
    """Tables that this notebook alone reads."""
    return {"adama": [f"{RESULTS}/tables/micro_batches.parquet"]}.get(notebook, [])


def preflight():
    """Refuses to start what cannot be finished here: data, disk, and on this machine the rest."""
    waiting = [RUNS[run] for run in COLLECTED if not summary(run).exists()]
    if not waiting:
        return
    check_data({run["data_id"] for run in waiting})
    if workflow.local_exec:
        check_machine(waiting)
    # A run frees its checkpoints at its end; so many lie on the disk as runs go on at once.
    at_once = workflow.cores if workflow.local_exec else len(waiting)
    need = sum(sorted((run["disk_mb"] for run in waiting), reverse=True)[:at_once])
    # Its final weights stay, a ninth of that (experiments.spec.Resources), and once more where
    # other runs start from them.
    started_from = {start for run in waiting for start in run["needs"]}
    need += sum(run["disk_mb"] // 9 for run in waiting)
    need += sum(RUNS[start]["disk_mb"] // 9 for start in started_from)
    free = shutil.disk_usage(RESULTS).free // 2**20
    if free < need:
        stop(
            f"suite '{SUITE}' needs about {need:,} MB of disk for checkpoints and weights, and "
            f"{RESULTS.resolve()} has {free:,} MB free. Free some, make results/ a symbolic "
            "link to a larger disk, or run a part: --config only=MODEL/METHOD"
        )


def check_data(wanted):
    """Names the files that nobody can fetch, before other runs have trained for hours."""
    lacking = {
        data["missing"]
        for data in PLAN["datasets"]
        if data["data_id"] in wanted
        and data.get("missing")
        and not Path(f"data/prepared/{data['data_id']}/manifest.json").exists()
    }
    if lacking:
        stop(
            f"suite '{SUITE}' lacks data. {'; '.join(sorted(lacking))}. Or run a part that has "
            "its data: --config only=STUDY"
        )


def check_machine(waiting):
    """Compares the largest runs with the cores, memory and GPUs at hand.

    Snakemake would give a run the cores that there are; the run would then end with other
    bits than its specification promises.
    """
    devices = json.loads(command("experiments.lease", "--list"))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    at_hand = {
        "gpus": (len(devices), "GPUs (see nvidia-smi and CUDA_VISIBLE_DEVICES)"),
        "mem_mb": (memory, "MB of memory"),
        "threads": (workflow.cores, "cores (see --cores)"),
    }
    for need, (there, what) in at_hand.items():
        wanted = {
            run["run_id"]: cores_of(run) if need == "threads" else run[need]
            for run in waiting
        }
        largest = max(wanted, key=wanted.get)
        if wanted[largest] > there:
            stop(
                f"run {largest} needs {wanted[largest]:,} and there are {there:,} "
                f"{what}. Choose a smaller suite, a part of this one (--config "
                "only=MODEL/METHOD), a larger machine, or a cluster (--workflow-profile "
                "workflow/profiles/slurm)"
            )


if any(word.startswith("--report") for word in sys.argv):
    import snakemake.report.common

    snakemake.report.common.data_uri = data_uri
check_config()
SUITE = config["suite"]
RESULTS = Path("results") / SUITE
SPEC = RESULTS / "spec"
PLAN = expand_suite()
RUNS = {run["run_id"]: run for run in PLAN["runs"]}
# Tables hold what `only` selects and what earlier calls have finished, so that a suite can
# be run piece by piece. What a selected run starts from is made for it.
ASKED = {need for run in PLAN["selected"] for need in [run, *RUNS[run]["needs"]]}
COLLECTED = [run for run in RUNS if run in ASKED or summary(run).exists()]
# Runs of which the gradients are measured as well, while they train a second time.
MEASURED = [run for run in PLAN["gradients"].get("runs", []) if run in COLLECTED]
GRADIENTS = [f"{RESULTS}/tables/gradients.parquet"] if MEASURED else []
# Pretrained models are also asked about real web text, where somebody has put a sample of it.
SAMPLE = "c4_sample"
ELSEWHERE = [
    run
    for run in COLLECTED
    if Path("data/local", SAMPLE).exists()
    and RUNS[run]["task"] == "pretrain"
    and not RUNS[run]["tuning"]
]
# AdamA's steps are measured along AdamW's runs in the studies of its micro-batches.
MICRO_BATCHES = [
    run
    for run in COLLECTED
    if RUNS[run]["study"].startswith("ablation_adama_")
    and RUNS[run]["method"] == "adamw"
]
BUNDLES = notebook_bundles()
SHOWN = {name: kind for made in BUNDLES.values() for name, kind in made.items()}
NOTEBOOKS = {
    notebook: [file for name, kind in made.items() for file in bundle(name, kind)]
    for notebook, made in BUNDLES.items()
}
