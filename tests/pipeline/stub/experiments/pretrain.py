"""Counts to 40, a step in WORK/step at a time; notes each start in trained.log."""

import argparse
import json
import os
import time
from pathlib import Path

if int(os.environ.get("RANK", "0")) > 0:  # as under torchrun: the first process writes
    raise SystemExit

parser = argparse.ArgumentParser()
parser.add_argument("spec", type=Path)
parser.add_argument("out", type=Path)
parser.add_argument("--data", type=Path)
parser.add_argument("--work", type=Path)
arguments = parser.parse_args()
assert (arguments.data / "manifest.json").exists()

arguments.work.mkdir(parents=True, exist_ok=True)
checkpoint = arguments.work / "step"
first = int(checkpoint.read_text()) if checkpoint.exists() else 0
spec = json.loads(arguments.spec.read_text())
with open("trained.log", "a") as log:
    several = f", {os.environ['WORLD_SIZE']} processes" if "WORLD_SIZE" in os.environ else ""
    threads = f"{os.environ['OMP_NUM_THREADS']} threads{several}"
    log.write(f"{spec['method']} from {first}, {threads}\n")
total = 40
for step in range(first, total):
    time.sleep(spec.get("seconds", 0) / total)
    temporary = checkpoint.with_suffix(".new")
    temporary.write_text(str(step + 1))
    temporary.replace(checkpoint)
arguments.out.mkdir(parents=True, exist_ok=True)
for name in ("run.yaml", "metrics.jsonl", "provenance.json", "summary.json"):
    (arguments.out / name).write_text(json.dumps({**spec, "steps": total}))
