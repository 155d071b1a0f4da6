"""A hub on this machine: one data set in the form of allenai/c4, served over HTTP.

It answers the requests that `datasets` and `huggingface_hub` make for a public data set: its
commit, its list of files, and the files. Started as a program, it prints its address.
"""

import gzip
import hashlib
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlparse

NAME = "allenai/c4"
COMMIT = "c0ffee" + "0" * 34
CARD = """---
configs:
- config_name: en
  data_files:
  - {split: train, path: en/c4-train.*.json.gz}
  - {split: validation, path: en/c4-validation.*.json.gz}
---
"""


def texts(split: str, shard: int) -> list[str]:
    """Documents of one file."""
    return [f"Document {n} of {split} file {shard} says {n * n} things." for n in range(40)]


def contents() -> dict[str, bytes]:
    """Every file of the data set."""
    files = {"README.md": CARD.encode()}
    for split, count in {"train": 2, "validation": 1}.items():
        for shard in range(count):
            lines = (json.dumps({"text": text, "url": ""}) + "\n" for text in texts(split, shard))
            name = f"en/c4-{split}.{shard:05d}-of-{count:05d}.json.gz"
            files[name] = gzip.compress("".join(lines).encode(), mtime=0)
    return files


class Hub(BaseHTTPRequestHandler):
    """Answers for `contents`; files named in ``broken`` cannot be had."""

    protocol_version = "HTTP/1.1"  # connections stay open, as clients expect
    files = contents()
    broken: set[str] = set()

    def log_message(self, *_: Any) -> None:
        """Silent."""

    def answer(self, body: bytes, status: int = 200, **headers: str) -> None:
        """One response."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        """As GET, without the body."""
        self.do_GET()

    def do_GET(self) -> None:
        """Commit, list of files, or a file."""
        path = unquote(urlparse(self.path).path)
        if path.startswith(f"/api/datasets/{NAME}/tree/"):
            folder = path.split("/tree/")[1].partition("/")[2]
            self.answer(json.dumps(self.listing(folder)).encode(), Content_Type="application/json")
        elif path.startswith(f"/api/datasets/{NAME}"):
            info = {"_id": "0", "id": NAME, "sha": COMMIT, "private": False, "gated": False}
            info |= {"downloads": 0, "likes": 0, "tags": [], "disabled": False}
            info["siblings"] = [{"rfilename": name} for name in self.files]
            self.answer(json.dumps(info).encode(), Content_Type="application/json")
        elif path.startswith(f"/datasets/{NAME}/resolve/") and self.wanted(path) in self.files:
            name = self.wanted(path)
            if name in self.broken:
                self.answer(b"{}", status=403)
            else:
                body = self.files[name]
                tag = hashlib.sha1(body).hexdigest()
                self.answer(body, X_Repo_Commit=COMMIT, ETag=f'"{tag}"', Accept_Ranges="bytes")
        else:
            self.answer(b"{}", status=404, X_Error_Code="EntryNotFound")

    @staticmethod
    def wanted(path: str) -> str:
        """File name in the path of a download."""
        return path.split("/resolve/")[1].partition("/")[2]

    def listing(self, folder: str) -> list[dict[str, Any]]:
        """Files and folders directly inside ``folder``."""
        inside = f"{folder}/" if folder else ""
        found: dict[str, dict[str, Any]] = {}
        for name, body in self.files.items():
            if name.startswith(inside):
                head, _, rest = name.removeprefix(inside).partition("/")
                kind = "directory" if rest else "file"
                found[head] = {"type": kind, "path": inside + head, "oid": "0" * 40}
                found[head] |= {} if rest else {"size": len(body)}
        return list(found.values())


if __name__ == "__main__":
    Hub.broken = set(sys.argv[1:])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
