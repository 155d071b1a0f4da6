"""Questions of benchmarks: read, checked, and put as their authors put them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from experiments.data.readers import FileRows, open_source
from experiments.data.sources import source_of
from experiments.data.splits import in_seeded_order
from experiments.errors import UserError
from experiments.exam import BenchmarkSpec
from experiments.spec import DataSpec

LETTERS = ("A", "B", "C", "D")
NUMBER = re.compile(r"#### (\-?[0-9\.\,]+)")  # where GSM8K's answers end

Row = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """One question with its examples.

    Attributes:
        subject: by which results are grouped.
        head: what stands before the examples.
        shots: examples with their answers, one text each.
        asked: the question, up to where the answer begins.
        answer: the right one: a letter, or a normalised number.
    """

    subject: str
    head: str
    shots: tuple[str, ...]
    asked: str
    answer: str

    def prompt(self, shots: int) -> str:
        """The text before the answer, with the first ``shots`` examples."""
        return self.head + "".join(f"{shot}\n\n" for shot in self.shots[:shots]) + self.asked


@dataclass(frozen=True)
class Benchmark:
    """How a benchmark asks and counts.

    Attributes:
        metric: its name in tables.
        chance: score of a guess.
        asked, shown: splits (our names in ``data/sources.yaml``) of questions and of examples.
        same_subject: whether examples come from the question's subject only.
        check: makes a row's text up to the answer, the answer as an example shows it, and as it
            is compared.
        head: text before the examples, for a subject.
    """

    metric: Literal["choice_accuracy", "exact_match"]
    chance: float
    asked: str
    shown: str
    check: Callable[[Row, str], tuple[str, str, str]]
    head: Callable[[str], str]


def choice(row: Row, where: str) -> tuple[str, str, str]:
    """A row of MMLU; raises a `UserError` for anything but four choices and an answer 0 to 3."""
    question, choices, answer = row["question"], row["choices"], row["answer"]
    if not isinstance(question, str) or not question.strip():
        raise UserError(f"{where}: 'question' is no text: {question!r}")
    texts = list(choices) if isinstance(choices, Sequence) and not isinstance(choices, str) else []
    if len(texts) != len(LETTERS) or not all(isinstance(text, str) for text in texts):
        raise UserError(f"{where}: 'choices' must be {len(LETTERS)} texts, not {choices!r}")
    if isinstance(answer, bool) or answer not in range(len(LETTERS)):
        raise UserError(f"{where}: 'answer' must be 0 to {len(LETTERS) - 1}, not {answer!r}")
    if not isinstance(row["subject"], str) or not row["subject"]:
        raise UserError(f"{where}: 'subject' is no text: {row['subject']!r}")
    lines = [f"{letter}. {text}" for letter, text in zip(LETTERS, texts, strict=True)]
    letter = LETTERS[answer]
    return "\n".join([question.strip(), *lines, "Answer:"]), letter, letter


def word_problem(row: Row, where: str) -> tuple[str, str, str]:
    """A row of GSM8K; raises a `UserError` where the answer does not end in ``#### number``."""
    for field in ("question", "answer"):
        if not isinstance(row[field], str) or not row[field].strip():
            raise UserError(f"{where}: {field!r} is no text: {row[field]!r}")
    number = final_number(row["answer"])
    if number is None:
        raise UserError(f"{where}: 'answer' has no line '#### number': {row['answer'][-60:]!r}")
    return f"Question: {row['question']}\nAnswer:", row["answer"], number


def final_number(text: str) -> str | None:
    """The number after the first ``####``, without commas and a full stop at its end."""
    found = NUMBER.search(text)
    return found[1].replace(",", "").removesuffix(".") if found else None


BENCHMARKS = {
    "mmlu": Benchmark(
        metric="choice_accuracy",
        chance=1 / len(LETTERS),
        asked="test",
        shown="dev",
        check=choice,
        head=lambda subject: (
            "The following are multiple choice questions (with answers) about "
            f"{subject.replace('_', ' ')}.\n\n"
        ),
    ),
    "gsm8k": Benchmark(
        metric="exact_match",
        chance=0.0,
        asked="validation",  # the hub's `test`
        shown="train",
        check=word_problem,
        head=lambda subject: "",
    ),
}


def load(wanted: BenchmarkSpec) -> list[Question]:
    """The questions that are wanted, in the order of the files.

    Each with its examples: the first ones of the split (and subject) that shows them.

    Raises:
        UserError: a file or split is missing, a row is wrong, a subject has too few examples.
    """
    name, path, shots = wanted.benchmark, wanted.path, wanted.shots
    spec = DataSpec(source=name, path=path)
    source = source_of(spec)
    benchmark = BENCHMARKS[name]
    corpus = open_source(source, spec)
    for split in (benchmark.asked, benchmark.shown):
        if split not in corpus.splits:
            raise UserError(
                f"benchmark {name}: no file of the split {source.splits[split]!r} in "
                f"{path or f'data/local/{name}'}"
            )
    examples: dict[str, list[str]] = {}
    for where, row in _located(corpus.splits[benchmark.shown], name):
        text, answer, _ = benchmark.check(row, where)
        examples.setdefault(row.get("subject", name), []).append(f"{text} {answer}")
    questions = []
    for where, row in _located(corpus.splits[benchmark.asked], name):
        text, _, answer = benchmark.check(row, where)
        subject = row.get("subject", name)
        shown = tuple(examples.get(subject, ())[:shots])
        if len(shown) < shots:
            raise UserError(
                f"{where}: {shots} examples are asked for, and the split "
                f"{source.splits[benchmark.shown]!r} has {len(shown)} of the subject {subject!r}"
            )
        questions.append(Question(subject, benchmark.head(subject), shown, text, answer))
    if not questions:
        raise UserError(f"benchmark {name}: the split {source.splits[benchmark.asked]!r} is empty")
    drawn = in_seeded_order(map(str, range(len(questions))), 0)[: wanted.limit]
    return [questions[number] for number in sorted(map(int, drawn))]


def _located(rows: Iterable[Row], name: str) -> Iterator[tuple[str, Row]]:
    """Rows, each with its file and number for messages."""
    if isinstance(rows, FileRows):
        for file in rows.files:
            for number, row in enumerate(FileRows([file], rows.columns), 1):
                yield f"{file}, row {number}", row
    else:
        for number, row in enumerate(rows, 1):
            yield f"{name} on the hub, row {number}", row
