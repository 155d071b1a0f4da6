"""Which benchmark a model is given, and how: a part of a run's specification."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from experiments.schema import Strict


class BenchmarkSpec(Strict):
    """A benchmark of language models (`experiments.benchmarks`).

    Attributes:
        benchmark: ``mmlu`` (multiple choice) or ``gsm8k`` (exact match).
        path: folder of its files; default ``data/local/<benchmark>``, else the hub.
        limit: questions, drawn once and for all from the whole set; default all.
        shots: examples before each question.
        batch_size: prompts a forward pass; other sizes round otherwise.
        max_new_tokens: of an answer to ``gsm8k``.
    """

    benchmark: Literal["mmlu", "gsm8k"]
    path: str | None = None
    limit: PositiveInt | None = None
    shots: Annotated[int, Field(ge=0)] = 5
    batch_size: PositiveInt = 8
    max_new_tokens: PositiveInt = 256
