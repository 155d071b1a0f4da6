"""Makes a prepared data folder, whole or not at all."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from experiments.data import classification, images, instruction, packed
from experiments.data.packages import Progress, Row
from experiments.data.readers import Corpus, open_source
from experiments.data.sources import AnySource, source_of
from experiments.data.splits import in_slice, split_documents
from experiments.data.tokenizer import end_of_document, make_tokenizer, tokenizer_hash
from experiments.data.tokens import MANIFEST, Rows, split_rows
from experiments.errors import UserError
from experiments.files import content_hash
from experiments.spec import DataSpec, to_plain


def prepare(
    spec: DataSpec,
    out_dir: str | Path,
    workers: int = 1,
    progress: Progress = lambda *_: None,
) -> dict[str, Any]:
    """Prepares what ``spec`` describes in ``out_dir``, unless it is there already.

    Everything is written to a hidden folder beside ``out_dir`` that takes its name when it is
    complete, so that nothing half-written can be taken for whole. A killed preparation of tokens
    goes on from its last mark, if the source still begins with the same texts. Two processes that
    ask for the same folder prepare it once.

    Args:
        spec: the source, its tokenizer and its split.
        out_dir: for token data ``manifest.json``, ``tokenizer/`` and the shards; for
            classification and instructions ``manifest.json`` and a Parquet file a split.
        workers: processes and threads.
        progress: told what is being done and how far it is.

    Returns:
        The manifest.

    Raises:
        UserError: the source cannot be read, the folder holds something else, the disk is full.
    """
    out_dir = Path(out_dir)
    source = source_of(spec)
    try:
        out_dir.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(out_dir.parent / f".{out_dir.name}.lock"):
            return finished(spec, out_dir) or _make(out_dir, spec, source, workers, progress)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"no space left for {out_dir}: free some and give the same command again, or "
                f"prepare elsewhere"
            ) from None
        raise UserError(f"cannot prepare {out_dir}: {error}") from error


def finished(spec: DataSpec, out_dir: Path) -> dict[str, Any] | None:
    """The manifest in ``out_dir`` if that is complete and made from ``spec``.

    Raises:
        UserError: the folder holds other data, or something that is no prepared data.
    """
    file = out_dir / MANIFEST
    if not file.is_file():
        if out_dir.is_dir() and any(out_dir.iterdir()):
            raise UserError(
                f"{out_dir} is not empty and has no {MANIFEST}: delete it or name another"
            )
        return None
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
        same = manifest["spec_hash"] == content_hash(to_plain(spec))
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{file} is damaged: delete {out_dir} and prepare it again") from None
    if not same:
        raise UserError(
            f"{out_dir} was prepared from another specification ({manifest['data_id']}, asked is "
            f"{spec.data_id}): delete it or name another folder"
        )
    return manifest


def _make(
    out_dir: Path, spec: DataSpec, source: AnySource, workers: int, progress: Progress
) -> dict[str, Any]:
    partial = out_dir.parent / f".{out_dir.name}.partial"
    made_for = partial / "spec_hash"
    spec_hash = content_hash(to_plain(spec))
    if not made_for.is_file() or made_for.read_text() != spec_hash:
        shutil.rmtree(partial, ignore_errors=True)  # of another specification
        partial.mkdir()
        made_for.write_text(spec_hash)
    try:
        manifest = _fill(partial, spec, source, workers, progress)
        for file in (made_for, *partial.glob(f"*{packed.MARK}")):
            file.unlink()
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
        partial.rename(out_dir)
    finally:
        if not list(partial.glob(f"*{packed.MARK}")):  # nothing there to go on from
            shutil.rmtree(partial, ignore_errors=True)
    return manifest


def _fill(
    folder: Path, spec: DataSpec, source: AnySource, workers: int, progress: Progress
) -> dict[str, Any]:
    if source.task not in KINDS:
        raise UserError(
            f"source {spec.source!r} is declared for the task {source.task!r}, "
            f"which cannot be prepared yet"
        )
    if (source.task == "text") != (spec.tokenizer is not None):
        word = "needs a" if source.task == "text" else "takes no"
        raise UserError(f"source {spec.source!r} (task {source.task!r}) {word} 'tokenizer'")
    corpus = open_source(source, spec, workers, progress)
    kind, make = KINDS[source.task]
    content = make(folder, spec, source, corpus, progress)
    return {
        "kind": kind,
        "data_id": spec.data_id,
        "spec": to_plain(spec),
        "spec_hash": content_hash(to_plain(spec)),
        "source": {
            "name": spec.source,
            "title": source.title,
            "licence": source.licence,
            "corpus_fingerprint": corpus.fingerprint,
            "as_recorded": corpus.fingerprint == source.fingerprint if source.fingerprint else None,
            # of the text that went into the splits
            "fingerprint": content_hash(
                {name: part["text_sha256"] for name, part in content["splits"].items()}
            ),
            **corpus.origin,
        },
        **content,
        "versions": {name: metadata.version(name) for name in ("datasets", "tokenizers", "numpy")},
    }


def _tokens(
    folder: Path, spec: DataSpec, source: AnySource, corpus: Corpus, progress: Progress
) -> dict[str, Any]:
    """Writes tokenizer and shards; returns their part of the manifest."""
    assert spec.tokenizer and spec.sequence_length  # DataSpec and _fill saw to it
    length = spec.sequence_length
    column = source.fields["text"]
    held_out, train = split_documents(
        {name: Texts(rows, column, spec) for name, rows in corpus.splits.items()}, spec
    )
    progress("training the tokenizer", 0, None)
    tokenizer = make_tokenizer(spec.tokenizer, train)
    tokenizer.save_pretrained(folder / "tokenizer")

    layout = spec.layout or "packed"
    splits, counts = {}, {}
    for name, texts in (("train", train), ("validation", held_out)):
        splits[name], counts[name] = packed.write_split(
            folder, name, texts, tokenizer, length, layout, progress
        )
        if not splits[name]["rows"]:
            raise UserError(
                f"source {spec.source!r}: the {name} part has {splits[name]['tokens']} tokens, "
                f"less than one row of {length}; give more documents to it"
            )
    manifest = {
        "layout": layout,
        "sequence_length": length,
        "dtype": packed.dtype_for(len(tokenizer)).str,
        "vocab_size": len(tokenizer),
        # T5's tokenizer has a hundred entries that no text gives; models may leave them out.
        "largest_id": int(max(np.flatnonzero(count)[-1] for count in counts.values())),
        "tokenizer": {
            "label": spec.tokenizer.label,
            "hash": tokenizer_hash(folder / "tokenizer"),
            "end_of_document": end_of_document(tokenizer),
        },
        "splits": splits,
    }
    targets = _targets(split_rows(folder, manifest, "validation"), len(tokenizer))
    return {**manifest, "unigram_validation_loss": packed.unigram_loss(counts["train"], targets)}


def _targets(rows: Rows, vocab_size: int) -> np.ndarray:
    """How often each id is what a model is asked to predict, shape (vocabulary,)."""
    targets = np.zeros(vocab_size, dtype=np.int64)
    for row in range(len(rows)):
        labels = rows[row]["labels"][1:]  # the first token of a row is given, not predicted
        targets += np.bincount(labels[labels >= 0], minlength=vocab_size)
    return targets


class Texts:
    """One column of the rows of a slice; can be gone through again."""

    def __init__(self, rows: Iterable[Row], column: str, spec: DataSpec) -> None:
        self.rows, self.column, self.spec = rows, column, spec

    def __iter__(self) -> Iterator[str]:
        texts = (row[self.column] for row in self.rows)
        return (text for text in texts if in_slice(text, self.spec))


# By task of the source: what a prepared folder is called, and who fills it.
KINDS = {
    "text": ("tokens", _tokens),
    "classification": ("classification", classification.write),
    "images": ("images", images.write),
    "instruction": ("instruction", instruction.write),
}
