"""Tokenizers: trained on the spot, from the hub, from a folder, or from an installed package."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.errors import UserError
from experiments.spec import TokenizerSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BOS, EOS, PAD = "<s>", "</s>", "<pad>"
# A byte-level alphabet has 256 entries; below that, some bytes would have no id.
SMALLEST_BPE = 256 + 3


def make_tokenizer(spec: TokenizerSpec, texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """The tokenizer of a specification; ``texts`` are only read to train a ``bpe``.

    Raises:
        UserError: it cannot be had, or has no token that ends a document.
    """
    if spec.kind == "bpe":
        return train_bpe(texts, spec.vocab_size or 0)
    tokenizer = _load(spec)
    if end_of_document(tokenizer) is None:
        raise UserError(f"tokenizer {spec.label}: has neither an eos nor a sep token")
    return tokenizer


def train_bpe(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Trains a byte-level BPE; the same texts give the same tokenizer.

    Args:
        texts: training documents only, so that nothing of the held-out part shapes the ids.
        vocab_size: entries, the 256 bytes and three special tokens included. A corpus with fewer
            merges than that gives a smaller vocabulary.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    if vocab_size < SMALLEST_BPE:
        raise UserError(f"tokenizer: 'vocab_size' must be at least {SMALLEST_BPE}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS, EOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS, pad_token=PAD
    )


def end_of_document(tokenizer: PreTrainedTokenizerFast) -> int | None:
    """The id that marks where a document ends."""
    eos = tokenizer.eos_token_id
    return tokenizer.sep_token_id if eos is None else eos


def tokenizer_hash(folder: Path) -> str:
    """SHA-256 of a saved tokenizer's files."""
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def package_folder(distribution: str) -> Path:
    """The folder with ``tokenizer.json`` inside an installed distribution."""
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        raise UserError(f"tokenizer: distribution {distribution!r} is not installed") from None
    for file in files:
        if file.name == "tokenizer.json":
            return Path(str(file.locate())).parent
    raise UserError(f"tokenizer: distribution {distribution!r} carries no tokenizer.json")


def _load(spec: TokenizerSpec) -> PreTrainedTokenizerFast:
    from transformers import AutoTokenizer

    if spec.kind == "hub":
        name, options = spec.id or "", {"revision": spec.revision or "main"}
    else:
        folder = package_folder(spec.id or "") if spec.kind == "package" else Path(spec.path or "")
        name, options = str(_folder(folder)), {"local_files_only": True}
    try:
        return AutoTokenizer.from_pretrained(name, use_fast=True, **options)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"tokenizer {name!r} cannot be loaded: {reason}") from None


def _folder(path: Path) -> Path:
    """The folder of a saved fast tokenizer.

    A folder with only a sentencepiece model is refused: transformers builds a wrong tokenizer
    from it without a word, or fails with a message about another library.
    """
    folder = path.parent if path.name == "tokenizer.json" else path
    if not folder.is_dir():
        raise UserError(f"tokenizer: {folder} is no folder")
    if not (folder / "tokenizer.json").is_file():
        held = ", ".join(sorted(file.name for file in folder.iterdir())[:8]) or "nothing"
        raise UserError(
            f"tokenizer: {folder} has no tokenizer.json (it holds: {held}); load it once with its "
            f"own class where sentencepiece and protobuf are installed and save_pretrained it"
        )
    return folder
