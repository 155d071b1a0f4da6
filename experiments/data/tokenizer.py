"""Tokenizers: trained on the spot, from the hub, from a folder, or from an installed package."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.errors import UserError
from experiments.spec import TokenizerSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BOS, EOS, PAD, UNK = "<s>", "</s>", "<pad>", "<unk>"
# A byte-level alphabet has 256 entries; below that, some bytes would have no id.
SMALLEST_BPE = 256 + 3
SMALLEST_UNIGRAM = 256 + 4
# Training looks at so many characters, the first ones: its suffix array takes some 20 bytes each.
UNIGRAM_CHARACTERS = 50_000_000
LONGEST_LINE = 2**20  # bytes; sentencepiece leaves longer ones out


def make_tokenizer(spec: TokenizerSpec, texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """The tokenizer of a specification; ``texts`` are only read to train one.

    Raises:
        UserError: it cannot be had, or has no token that ends a document.
    """
    if spec.kind == "bpe":
        return train_bpe(texts, spec.vocab_size or 0)
    if spec.kind == "unigram":
        return train_unigram(texts, spec.vocab_size or 0)
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


def train_unigram(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Trains a unigram model with sentencepiece, as a fast tokenizer that gives the same ids.

    Nothing is lost: text is not normalised, and characters without a piece become bytes. One
    thread, so that the same texts give the same scores to the bit; the trainer in ``tokenizers``
    sums in an order that differs from call to call.

    Args:
        texts: training documents only; lines are its sentences, `UNIGRAM_CHARACTERS` are read.
        vocab_size: entries, 256 bytes and four special tokens included. A corpus with fewer pieces
            gives a smaller vocabulary.

    Raises:
        UserError: too small a vocabulary, or no text.
    """
    import sentencepiece
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import SpmConverter, import_protobuf

    if vocab_size < SMALLEST_UNIGRAM:
        raise UserError(f"tokenizer: 'vocab_size' must be at least {SMALLEST_UNIGRAM}")
    written = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_lines(texts),
            model_writer=written,
            model_type="unigram",
            vocab_size=vocab_size,
            hard_vocab_limit=False,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            max_sentence_length=LONGEST_LINE,
            num_threads=1,
            minloglevel=2,
            **{f"{name}_id": place for place, name in enumerate(("bos", "eos", "pad", "unk"))},
            **{"bos_piece": BOS, "eos_piece": EOS, "pad_piece": PAD, "unk_piece": UNK},
        )
    except RuntimeError as error:  # its messages name the line of its source first
        reason = str(error).rpartition("] ")[2] or "there is no text to train on"
        raise UserError(f"tokenizer: no unigram model of {vocab_size} entries: {reason}") from None
    model = import_protobuf().ModelProto()
    model.ParseFromString(written.getvalue())
    pieces = [(piece.piece, piece.score) for piece in model.pieces]
    return PreTrainedTokenizerFast(
        tokenizer_object=SpmConverter.build_tokenizer_from_spm_proto(model, pieces),
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        unk_token=UNK,
    )


def _lines(texts: Iterable[str]) -> Iterator[str]:
    """Lines of the texts, as long as there are characters left to read."""
    left = UNIGRAM_CHARACTERS
    for text in texts:
        yield from text[:left].splitlines()
        left -= len(text)
        if left <= 0:
            return


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
