"""Device leases: two commands on one machine never share a GPU by accident.

    python -m experiments.lease --gpus 1 -- python -m experiments.pretrain RUN.yaml OUT_DIR

waits until a device is free, sets ``CUDA_VISIBLE_DEVICES`` and becomes the command. The lease is
a file lock that the command's process inherits: it ends with that process, however it ends. With
``--gpus 0`` the command sees no device and starts at once.

Each lease adds a row to ``leases.jsonl`` beside the locks, in a folder of the user's in the
machine's temporary folder; ``MEMOPT_LEASES`` names another one (to be shared by several users).
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn

from experiments.errors import UserError, command_line

POLL_SECONDS = 0.2


def visible_devices() -> list[str]:
    """Names of the devices that this process may use: ``CUDA_VISIBLE_DEVICES``, else all."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [device.strip() for device in named.split(",") if device.strip() not in ("", "-1")]
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True)
    return answer.stdout.split() if answer.returncode == 0 else []


def lease_folder() -> Path:
    """Where the locks lie; made if need be."""
    default = Path(tempfile.gettempdir()) / f"memopt-leases-{os.getuid()}"
    folder = Path(os.environ.get("MEMOPT_LEASES", default))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def acquire(count: int, devices: list[str], folder: Path) -> list[str]:
    """Waits for ``count`` free devices and locks them for this process.

    First come, first served: whoever waits holds the queue's lock, so a command that wants four
    devices is not overtaken for ever by commands that want one.

    Raises:
        UserError: there are fewer devices than that.
    """
    if count > len(devices):
        shown = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
        raise UserError(
            f"{count} GPUs are asked for and {len(devices)} are visible "
            f"(CUDA_VISIBLE_DEVICES: {shown}); choose a run with fewer, or another machine"
        )
    with open(folder / "queue.lock", "w") as queue:
        fcntl.flock(queue, fcntl.LOCK_EX)
        held: list[str] = []
        while True:
            for device in devices:
                wanted = len(held) < count and device not in held
                if wanted and _try_lock(folder / f"device-{device}.lock"):
                    held.append(device)
            if len(held) == count:
                break
            time.sleep(POLL_SECONDS)
        row = {"time": time.time(), "pid": os.getpid(), "devices": held}
        with open(folder / "leases.jsonl", "a") as log:
            log.write(json.dumps(row) + "\n")
    return held


def _try_lock(path: Path) -> bool:
    """Locks a file for the rest of this process's life, ``exec`` included."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return False
    os.set_inheritable(handle, True)
    return True


def run(count: int, command: list[str]) -> NoReturn:
    """Becomes ``command``, with ``count`` devices leased and all others hidden."""
    held = acquire(count, visible_devices(), lease_folder()) if count else []
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(held)}
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        raise UserError(f"cannot start {command[0]!r}: {error.strerror}") from None


def _main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.lease",
        description="Run a command with GPUs of its own, waiting until they are free.",
        usage="%(prog)s (--gpus N -- COMMAND ... | --list)",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--gpus", type=int, metavar="N", help="devices the command needs")
    what.add_argument("--list", action="store_true", help="print the visible devices as JSON")
    parser.add_argument("command", nargs="*")
    arguments = parser.parse_args()
    if arguments.list:
        print(json.dumps(visible_devices()))
        return
    if arguments.gpus < 0 or not arguments.command:
        parser.error("give --gpus N (0 or more) and, after --, a command")
    sys.stdout.flush()
    run(arguments.gpus, arguments.command)


if __name__ == "__main__":
    command_line(_main)
