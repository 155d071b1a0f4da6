"""Expands suite.json, whose name stands for any suite but `unknown`."""

import json
import sys
from pathlib import Path

suite, out = sys.argv[2], Path(sys.argv[4])
only = sys.argv[6] if len(sys.argv) > 6 else ""
if suite == "unknown":
    sys.exit("error: unknown suite 'unknown'; did you mean 'known'?")
content = json.loads(Path("suite.json").read_text())
ids = {run["method"]: f"{run['method']}-{run['level']}" for run in content["runs"]}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


runs = []
for run in content["runs"]:
    run_id = ids[run["method"]]
    write(out / "runs" / f"{run_id}.yaml", json.dumps(run))
    runs.append(
        {
            "run_id": run_id,
            "task": run.get("task", "pretrain"),
            "tuning": False,
            "study": "stub",
            "model": "none",
            "method": run["method"],
            "data_id": "text",
            "threads": run.get("threads", 1),
            "gpus": run.get("gpus", 0),
            "mem_mb": run.get("mem_mb", 10),
            "disk_mb": run.get("disk_mb", 1),
            "runtime_min": 1,
            "needs": [ids[need] for need in run.get("needs", [])],
        }
    )
for dataset in content["datasets"]:
    write(out / "datasets" / f"{dataset}.yaml", "{}")
runs = [run for run in runs if only in run["run_id"]]
missing = content.get("missing")
datasets = [{"data_id": name, "missing": missing} for name in content["datasets"]]
print(json.dumps({"suite": suite, "runs": runs, "gradients": {}, "datasets": datasets}))
