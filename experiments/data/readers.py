"""One way to open every source: rows with the official fields, split by split.

Hub and local files come through ``datasets.load_dataset`` as streams, so that a corpus larger
than the memory passes through; text of packages is small and comes as a list. What follows
(splits, tokens, labels) does not know which it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from experiments.data import packages
from experiments.data.packages import Progress, Row
from experiments.data.sources import (
    AnySource,
    HubSource,
    NpmSource,
    PackageSource,
    local_path,
    missing,
)
from experiments.errors import UserError, nearest
from experiments.files import canonical_json
from experiments.spec import DataSpec

# How the hub's repositories name their files; the builder of `datasets` that reads them.
BUILDERS = {
    ".parquet": "parquet",
    ".json": "json",
    ".jsonl": "json",
    ".json.gz": "json",
    ".jsonl.gz": "json",
}


@dataclass
class Corpus:
    """An opened source.

    Attributes:
        splits: ``train`` and, where the source has one, ``validation``: rows, iterable anew.
        origin: where they came from, for the manifest: versions, files, revision.
        fingerprint: SHA-256 of the whole corpus, where that is cheap to know.
    """

    splits: Mapping[str, Iterable[Row]]
    origin: dict[str, Any] = field(default_factory=dict)
    fingerprint: str | None = None


class FileRows:
    """Rows of some files of one format, in the order of the files and their rows."""

    def __init__(self, files: list[Path], columns: Iterable[str]) -> None:
        self.files, self.columns = files, list(columns)

    def __iter__(self) -> Iterator[Row]:
        return (row for _, row in self.numbered())

    def numbered(self) -> Iterator[tuple[str, Row]]:
        """Rows with their file and their number in it, from 1."""
        for file in self.files:
            rows = check_fields(_stream(file), self.columns, str(file))
            yield from ((f"{file}, row {number}", row) for number, row in enumerate(rows, 1))


class HubRows:
    """Rows of one split of a data set on the hub, streamed from one commit.

    Args:
        source: names the data set.
        split: official name.
        commit: hash that the source's revision stood for when it was opened.
    """

    def __init__(self, source: HubSource, split: str, commit: str) -> None:
        self.source, self.split, self.commit = source, split, commit

    def __iter__(self) -> Iterator[Row]:
        from datasets import load_dataset

        source, row = self.source, 0
        try:
            rows = load_dataset(
                source.id, source.config, revision=self.commit, split=self.split, streaming=True
            )
            for item in check_fields(rows, source.fields.values(), f"{source.id} on the hub"):
                yield item
                row += 1
        except UserError:
            raise
        except Exception as error:  # httpx, fsspec, gzip, pyarrow: each has its own classes
            raise UserError(
                f"{source.id} on the hub, commit {self.commit[:10]}, split {self.split!r}, broke "
                f"off after row {row} ({_first_line(error)}): give the same command again; what is "
                f"written already stays"
            ) from None


def commit_of(source: HubSource) -> str:
    """The commit for which the source's revision stands now.

    Raises:
        UserError: the hub cannot be reached, or has no such data set or revision.
    """
    from huggingface_hub import HfApi

    try:
        return str(HfApi().dataset_info(source.id, revision=source.revision).sha)
    except Exception as error:  # the client's errors have no common class of its own
        raise UserError(
            f"{source.id} on the hub, revision {source.revision!r}, cannot be opened: "
            f"{_first_line(error)}. Without the hub, copy its files into data/local/ or give "
            f"their folder as 'path' beside 'source' (data/README.md)."
        ) from None


def open_source(
    source: AnySource, spec: DataSpec, workers: int = 1, progress: Progress = lambda *_: None
) -> Corpus:
    """Opens the source of a data specification.

    Args:
        source: entry of ``data/sources.yaml``.
        spec: with ``path``, or files in ``data/local/<source>``, those are read instead of the hub.
        workers: processes for parsing package files.
        progress: told how far the parsing of package files is.

    Raises:
        UserError: nothing there, not readable, or without the fields the source declares.
    """
    if isinstance(source, PackageSource):
        if spec.path:
            raise UserError(f"source {spec.source!r} lies in packages: it takes no 'path'")
        rows = packages.read(source, workers, progress)
        # "2.13.0+cpu" and "2.13.0+cu130" are builds of one version
        versions = {n: metadata.version(n).split("+")[0] for n in source.distributions}
        return Corpus({"train": rows}, {"versions": versions}, _fingerprint(rows))
    if isinstance(source, NpmSource):
        folder = Path(spec.path or Path("node_modules") / source.package)
        rows = packages.read_npm(source, folder)
        origin = {"package": source.package, "versions": packages.npm_version(source, folder)}
        return Corpus({"train": rows}, origin, _fingerprint(rows))
    if path := local_path(spec):
        found = find_files(path, source)
        files = {split: [file.name for file in paths] for split, paths in found.items()}
        columns = source.fields.values()
        return Corpus({s: FileRows(paths, columns) for s, paths in found.items()}, {"files": files})
    if isinstance(source, HubSource):
        commit = commit_of(source)
        splits = {ours: HubRows(source, name, commit) for ours, name in source.splits.items()}
        origin = {"id": source.id, "revision": source.revision, "commit": commit}
        return Corpus(splits, origin)
    raise UserError(str(missing(spec)))


def _fingerprint(rows: list[Row]) -> str:
    texts = (row["text"] if "text" in row else canonical_json(row) for row in rows)
    return packages.text_hash(texts)


def find_files(path: Path, source: AnySource) -> dict[str, list[Path]]:
    """The data files of each split under ``path``.

    ``path`` is one file (then it is the first split, ``train``), or a folder. In a folder, files
    belong to the split whose official name their name begins with or contains between marks, as on
    the hub: ``train.parquet``, ``c4-train.00000-of-01024.json.gz``. The subfolder named like the
    source's ``config`` is looked into where the folder itself holds none.

    Raises:
        UserError: no such path, or no file of the first split in it.
    """
    first = next(iter(source.splits))
    if path.is_file():
        _builder(path)
        return {first: [path]}
    if not path.is_dir():
        raise UserError(f"data path {path}: no such file or folder")
    folders = [path]
    if isinstance(source, HubSource) and source.config:
        folders.append(path / source.config)
    for folder in folders:
        data_files = sorted(f for f in folder.glob("*") if f.name.endswith(tuple(BUILDERS)))
        found = {}
        for ours, official in source.splits.items():
            name = re.compile(rf"(?:^|[-.]){re.escape(official)}(?:[-.]|$)")
            matching = [file for file in data_files if name.search(file.name)]
            if matching:
                found[ours] = matching
        if first in found:
            return found
    here = sorted(file.name for file in path.glob("[!.]*"))[:8]
    raise UserError(
        f"{path}: no file of the split {source.splits[first]!r} "
        f"(named like {source.splits[first]}.parquet or .json.gz); it holds: {', '.join(here)}"
    )


def numbered(rows: Iterable[Row], part: str) -> Iterator[tuple[str, Row]]:
    """Rows with the words that say where each stands: the file where there is one, and a number."""
    if isinstance(rows, FileRows):
        return rows.numbered()
    return ((f"{part} row {number}", row) for number, row in enumerate(rows, 1))


def check_fields(rows: Iterable[Row], columns: Iterable[str], where: str) -> Iterator[Row]:
    """Passes rows on after looking at the first one's fields.

    Raises:
        UserError: a declared field is missing; the message names it and those present.
    """
    columns = list(columns)
    for number, row in enumerate(rows):
        if number == 0:
            for column in columns:
                if column not in row:
                    present = ", ".join(row)
                    hint = nearest(column, row)
                    raise UserError(f"{where}: no field {column!r}; present: {present}{hint}")
        yield row


def _builder(file: Path) -> str:
    for suffix, builder in BUILDERS.items():
        if file.name.endswith(suffix):
            return builder
    raise UserError(f"{file}: not a data file; known endings: {', '.join(BUILDERS)}")


def _stream(file: Path) -> Iterator[Row]:
    """Rows of one file; damage becomes an error that names the file and the row."""
    from datasets import load_dataset

    row = 0
    try:
        for item in load_dataset(
            _builder(file), data_files=str(file), split="train", streaming=True
        ):
            yield item
            row += 1
    except StopIteration:  # what datasets 5.2 raises for a file without rows
        return
    except Exception as error:  # gzip, zlib, pyarrow, json, unicode: each has its own classes
        raise UserError(
            f"{file}: broken after row {row} ({type(error).__name__}: {_first_line(error)}); "
            f"copy or download the file again"
        ) from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:300]
