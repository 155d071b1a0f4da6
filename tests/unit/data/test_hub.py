"""The way to the hub, walked for real: `datasets` streams from a server on this machine.

The live hub has not been reached from here; its client, its protocol and its failures have.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from experiments.data import load_tokens
from experiments.data.prepare import prepare
from experiments.spec import DataSpec

from . import fake_hub
from .conftest import BPE

SPEC = {"source": "c4", "tokenizer": BPE, "sequence_length": 32}
PREPARE = """
import json, sys
import datasets
from experiments.data import packed
from experiments.data.prepare import prepare
from experiments.errors import command_line
from experiments.spec import DataSpec

datasets.config.STREAMING_READ_MAX_RETRIES = 2
datasets.config.STREAMING_READ_RETRY_INTERVAL = 0
packed.BATCH, packed.SAVE_EVERY = 8, 1
command_line(lambda: prepare(DataSpec(**json.loads(sys.argv[1])), sys.argv[2]))
"""


@contextmanager
def hub(*broken: str) -> Iterator[str]:
    """Address of a running hub."""
    call = [sys.executable, fake_hub.__file__, *broken]
    with subprocess.Popen(call, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        try:
            yield server.stdout.readline().strip()
        finally:
            server.kill()


def prepare_from(address: str, out: Path, repo: Path, home: Path) -> subprocess.CompletedProcess:
    """Preparation in a process that takes ``address`` for the hub."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "http", "HTTP"))}
    environment |= {"HF_ENDPOINT": address, "HF_HOME": str(home), "NO_PROXY": "127.0.0.1"}
    environment |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    call = [sys.executable, "-c", PREPARE, json.dumps(SPEC), str(out)]
    return subprocess.run(call, cwd=repo, env=environment, capture_output=True, text=True)


def test_streaming_from_a_hub_gives_what_its_files_give(tmp_path: Path, repo: Path) -> None:
    with hub() as address:
        done = prepare_from(address, tmp_path / "out", repo, tmp_path / "home")
    assert done.returncode == 0, done.stderr
    for name, body in fake_hub.contents().items():
        (tmp_path / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "copy" / name).write_bytes(body)
    local = prepare(DataSpec(**SPEC, path=str(tmp_path / "copy")), tmp_path / "local")
    streamed = load_tokens(tmp_path / "out").manifest
    assert streamed["splits"] == local["splits"]
    assert streamed["splits"]["train"]["documents"] == 80
    assert streamed["source"]["commit"] == fake_hub.COMMIT


def test_a_stream_that_breaks_off_goes_on(tmp_path: Path, repo: Path) -> None:
    second = "en/c4-train.00001-of-00002.json.gz"
    with hub(second) as address:
        broken = prepare_from(address, tmp_path / "out", repo, tmp_path / "home")
    assert broken.returncode == 2
    assert "allenai/c4 on the hub, commit c0ffee0000, split 'train', broke off" in broken.stderr
    assert "Traceback" not in broken.stderr
    assert not (tmp_path / "out").exists()
    with hub() as address:
        done = prepare_from(address, tmp_path / "out", repo, tmp_path / "home")
        assert done.returncode == 0, done.stderr
        again = prepare_from(address, tmp_path / "undisturbed", repo, tmp_path / "home")
        assert again.returncode == 0, again.stderr
    for file in (tmp_path / "undisturbed").rglob("*.*"):
        other = tmp_path / "out" / file.relative_to(tmp_path / "undisturbed")
        assert other.read_bytes() == file.read_bytes()


def test_no_hub_is_said_in_one_line(tmp_path: Path, repo: Path) -> None:
    done = prepare_from("http://127.0.0.1:9", tmp_path / "out", repo, tmp_path / "home")
    assert done.returncode == 2
    assert "allenai/c4 on the hub, revision 'main', cannot be opened" in done.stderr
    assert "give their folder as 'path'" in done.stderr and "Traceback" not in done.stderr
