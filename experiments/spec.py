"""The typed specification of a run: every key that a YAML file may hold, and what it means.

One model class is the schema everywhere: suites expand to it, ``RUN.yaml`` holds it, the training
commands read it. Unknown keys are errors. The content hash of a specification names the run.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveInt, StringConstraints, model_validator

from experiments.exam import BenchmarkSpec
from experiments.files import content_hash
from experiments.schema import Strict as Strict
from experiments.schema import load as load
from experiments.schema import parse as parse
from experiments.schema import to_plain as to_plain
from experiments.schema import to_yaml as to_yaml

# Names become parts of file names and of run identifiers.
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.-]*$")]
Fraction = Annotated[float, Field(ge=0, le=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
TaskName = Literal["pretrain", "finetune", "instruct", "vision"]


class TokenizerSpec(Strict):
    """Which tokenizer turns text into ids.

    Attributes:
        kind: ``bpe`` (byte-level BPE trained on the training documents), ``unigram`` (T5's kind of
            model, trained on them, bytes for rare characters), ``hub`` (by ``id``),
            ``local`` (folder or ``tokenizer.json`` at ``path``), ``package`` (files inside the
            installed distribution ``id``).
        vocab_size: number of entries, for those that are trained.
        id: name on the hub, or distribution name.
        revision: hub revision (commit, tag or branch).
        path: local folder or file.
    """

    kind: Literal["bpe", "unigram", "hub", "local", "package"]
    vocab_size: PositiveInt | None = None
    id: str | None = None
    revision: str | None = None
    path: str | None = None

    @model_validator(mode="after")
    def _one_way_to_find_it(self) -> Self:
        others = {"hub": "id", "local": "path", "package": "id"}
        needed = others.get(self.kind, "vocab_size")
        given = {k for k in ("vocab_size", "id", "path") if getattr(self, k) is not None}
        if given != {needed}:
            raise ValueError(f"a tokenizer of kind {self.kind!r} takes {needed!r} and no other key")
        return self

    @property
    def trained(self) -> bool:
        """Whether it is trained on the training documents, and not had from elsewhere."""
        return self.kind in ("bpe", "unigram")

    @property
    def label(self) -> str:
        """Short name for file names: ``bpe2048``, ``t5-base``."""
        if self.trained:
            return f"{self.kind}{self.vocab_size}"
        stem = (self.id or self.path or "").rstrip("/").split("/")[-1]
        return "".join(c if c.isalnum() or c in "_.-" else "-" for c in stem.lower())


class DataSpec(Strict):
    """Which documents, cut how. Token data for language models, rows for what is tuned.

    Attributes:
        source: key of ``data/sources.yaml``.
        path: folder or file that holds the source locally, where the source allows it.
        tokenizer: for token data; other rows are tokenized by their model at training.
        sequence_length: tokens per row of token data.
        layout: ``packed`` (default): documents one after another, no padding; ``papers``: one
            document a row, cut or padded, padding out of the loss, as GaLore's script and its
            copies do.
        validation_fraction: share of the documents held out, or
        validation_documents: their number.
        max_documents: of the training part at most: the first of an official one, else drawn by
            ``seed``.
        slice: ``tuning``: only the documents (training and held-out) set aside for choosing
            hyperparameters, a fifth of them; ``final``: only the others. Default: all.
        predict: sources with hidden labels, of the same classes, that a fine-tuned model answers
            to: its answers are saved beside the run's results.
        seed: of the split and of the choice of documents.
    """

    source: Name
    path: str | None = None
    tokenizer: TokenizerSpec | None = None
    sequence_length: PositiveInt | None = None
    layout: Literal["packed", "papers"] | None = None
    validation_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    validation_documents: PositiveInt | None = None
    max_documents: PositiveInt | None = None
    slice: Literal["tuning", "final"] | None = None
    predict: list[Name] | None = None
    seed: Seed = 0

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.tokenizer and not self.sequence_length:
            raise ValueError("token data needs 'sequence_length' beside 'tokenizer'")
        if not self.tokenizer and (self.sequence_length or self.layout):
            raise ValueError("'sequence_length' and 'layout' belong to token data: add 'tokenizer'")
        if self.tokenizer and self.predict:
            raise ValueError("'predict' belongs to labelled rows: drop it, or 'tokenizer'")
        if self.validation_fraction and self.validation_documents:
            raise ValueError("give 'validation_fraction' or 'validation_documents', not both")
        return self

    @property
    def data_id(self) -> str:
        """Identifier made of the source, the tokenizer and a hash of everything."""
        label = self.tokenizer.label if self.tokenizer else "rows"
        return f"{self.source}-{label}-{content_hash(to_plain(self))[:8]}"


class ModelSpec(Strict):
    """The model: a shape built from random weights, or pretrained weights.

    Attributes:
        name: of a file in ``experiments/models``.
        shape: fields of a Hugging Face ``config.json``, or of a network of
            `experiments.networks`; the weights are drawn from ``seeds.weights``.
        package: installed distribution that carries weights, config and tokenizer.
        path: local folder with the same.
        hub: identifier on the hub, with its ``revision``.
        run: identifier of the run of the same suite that pretrained it (`experiments.starts`).
    """

    name: Name
    shape: dict[str, str | bool | int | float | None] | None = None
    package: str | None = None
    path: str | None = None
    hub: str | None = None
    revision: str | None = None
    run: str | None = None

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        origins = ("shape", "package", "path", "hub", "run")
        if sum(getattr(self, key) is not None for key in origins) != 1:
            raise ValueError(f"give exactly one of {', '.join(map(repr, origins))}")
        if self.revision and not self.hub:
            raise ValueError("'revision' belongs to 'hub'")
        return self


class MethodSpec(Strict):
    """An optimizer of the catalog with its hyperparameters.

    Attributes:
        name: catalog name.
        lr: peak learning rate.
        args: further constructor arguments of the optimizer.
    """

    name: Name
    lr: Annotated[float, Field(gt=0)]
    args: dict[str, Any] = {}


class ScheduleSpec(Strict):
    """Learning rate over the updates: linear warm-up from 0, then decay.

    Attributes:
        name: ``cosine`` to ``min_lr_ratio`` of the peak, ``linear`` to 0, ``constant``; or, without
            warm-up, one of `experiments.schedules`: with ``exact`` the method's ``lr`` is a factor
            on a rate that is measured.
        warmup_fraction: share of all updates spent in warm-up.
        min_lr_ratio: end of the cosine as a share of the peak.
    """

    name: Literal[
        "cosine", "linear", "constant",
        "step", "exponential", "inverse_time", "inverse_sqrt", "exact",
    ] = "cosine"  # fmt: skip
    warmup_fraction: Fraction = 0.1
    min_lr_ratio: Fraction = 0.0

    @model_validator(mode="after")
    def _floor_of_cosine_only(self) -> Self:
        if self.min_lr_ratio and self.name != "cosine":
            raise ValueError("'min_lr_ratio' belongs to the schedule 'cosine'")
        if self.warmup_fraction and self.name not in ("cosine", "linear", "constant"):
            raise ValueError(f"the schedule {self.name!r} has no warm-up: 'warmup_fraction: 0'")
        return self


class LossesSpec(Strict):
    """How the losses of several tasks become one gradient, see `experiments.multitask`.

    Attributes:
        how: ``sum``: their weighted sum; ``gcond``: `memopt.gradients.GCond`. Each task has its
            share of the micro-batches in turn; with ``_every``, each of them is for every task.
        weights: task to the factor on its loss.
    """

    how: Literal["sum", "gcond", "sum_every", "gcond_every"]
    weights: dict[Name, Annotated[float, Field(gt=0)]]


class TrainSpec(Strict):
    """How long and in what portions. All counts are logical updates.

    Attributes:
        steps: optimizer updates.
        batch_size: sequences (rows) per update, over all processes.
        micro_batches: parts in which the batch goes through the model; gradients accumulate.
        sequence_length: tokens per row; of classification and instruction rows, to which they are
            cut; 1 for images, so that ``tokens`` counts them.
        dtype: of the weights; ``bfloat16_autocast`` keeps float32 weights.
        schedule: of the learning rate.
        losses: for a network with several tasks.
        max_grad_norm: global-norm clipping; 0 turns it off.
        eval_every: updates between evaluations (the last update is always followed by one).
        eval_batch_size: rows per evaluation batch.
        log_every: updates between rows of ``metrics.jsonl``.
        checkpoint_every: updates between checkpoints; a multiple of ``log_every``, so that the
            averages of a resumed run are those of an undisturbed one.
    """

    steps: PositiveInt
    batch_size: PositiveInt
    micro_batches: PositiveInt = 1
    sequence_length: PositiveInt
    dtype: Literal["float32", "bfloat16", "bfloat16_autocast"] = "float32"
    schedule: ScheduleSpec = ScheduleSpec()
    losses: LossesSpec | None = None
    max_grad_norm: Annotated[float, Field(ge=0)] = 0.0
    eval_every: PositiveInt
    eval_batch_size: PositiveInt = 32
    log_every: PositiveInt = 10
    checkpoint_every: PositiveInt

    @model_validator(mode="after")
    def _divisible(self) -> Self:
        if self.batch_size % self.micro_batches:
            raise ValueError(
                f"'batch_size' ({self.batch_size}) must be a multiple of 'micro_batches' "
                f"({self.micro_batches})"
            )
        if self.checkpoint_every % self.log_every:
            raise ValueError(
                f"'checkpoint_every' ({self.checkpoint_every}) must be a multiple of 'log_every' "
                f"({self.log_every})"
            )
        return self


class Seeds(Strict):
    """Weights and data order have their own seeds."""

    weights: Seed = 0
    data: Seed = 0

    @property
    def label(self) -> str:
        """``s0``, or ``s0d1`` where the two differ."""
        return f"s{self.weights}" + ("" if self.weights == self.data else f"d{self.data}")


class Resources(Strict):
    """What the scheduler sets aside for the run; not part of its identity.

    More than one of ``gpus`` means one process a GPU. ``parallel`` says how they divide the work:
    ``ddp`` (default) or ``fsdp2``, see docs/scaling.md; the results are equal to rounding.
    ``disk_mb`` holds three checkpoints (two kept, one being written) of float32 weights and two
    moments: 36 bytes a parameter.
    """

    gpus: Annotated[int, Field(ge=0)] = 0
    parallel: Literal["ddp", "fsdp2"] | None = None
    mem_mb: PositiveInt = 2000
    disk_mb: PositiveInt = 200
    runtime_min: PositiveInt = 60


class ScoreSpec(Strict):
    """The number by which tables rank a run, and which of its evaluations counts.

    Attributes:
        metric: of the part ``validation``; one of the official metrics of the data's source.
        select: ``last``: the evaluation after the last update. ``best``: the one with the best
            score, which flatters: it is chosen on the rows that it is measured on. Summaries
            hold both scores whatever is chosen.
        aggregate: over seeds, in tables and curves: ``mean`` (default) with a Student interval, or
            ``median``, as RoBERTa's GLUE tables have it, with one of order statistics.
    """

    metric: Literal["accuracy", "f1", "matthews", "pearson", "spearman", "perplexity"]
    select: Literal["last", "best"]
    aggregate: Literal["mean", "median"] | None = None  # None, so that hashes of runs stay


class InstructSpec(Strict):
    """How instructions become rows, and what the tuned model is asked.

    Attributes:
        template: ``alpaca``: Alpaca's prompts; ``chat``: the tokenizer's own chat template.
        rows: ``padded``: one instruction a row; ``packed``: as many as fit, one after another, none
            of which sees another.
        max_new_tokens: longest answer to the fixed prompts at the end of the run.
        evaluate: benchmarks that the tuned model is given at the end of the run.
    """

    template: Literal["alpaca", "chat"] = "alpaca"
    rows: Literal["padded", "packed"] = "padded"
    max_new_tokens: PositiveInt = 64
    evaluate: list[BenchmarkSpec] | None = None


class RunSpec(Strict):
    """One training run, complete: the content of ``RUN.yaml``.

    Attributes:
        task: which command trains it.
        score: by which tables rank; fine-tuning and instruction tuning must name one.
        instruct: for instruction tuning only, which must have it.
        study, suite, smoke, tuning: labels; ``smoke`` marks runs too small to conclude anything
            from, ``tuning`` those that only choose a learning rate.
        threads: of the CPU; part of the identity, because sums depend on it.
    """

    task: TaskName
    study: Name
    suite: Name
    smoke: bool = False
    tuning: bool = False
    model: ModelSpec
    method: MethodSpec
    data: DataSpec
    train: TrainSpec
    score: ScoreSpec | None = None
    instruct: InstructSpec | None = None
    seeds: Seeds = Seeds()
    threads: PositiveInt = 1
    resources: Resources = Resources()

    @model_validator(mode="after")
    def _tunes_on_data_of_its_own(self) -> Self:
        if self.tuning != (self.data.slice == "tuning"):
            raise ValueError(
                "a study with a 'grid' has 'data: {slice: tuning}', and no other study has: rates "
                "are chosen on documents that final runs never see"
            )
        return self

    @model_validator(mode="after")
    def _task_and_data_agree(self) -> Self:
        if self.task == "pretrain":
            if not self.data.tokenizer:
                raise ValueError("pretraining needs token data: give 'data.tokenizer'")
            if self.data.sequence_length != self.train.sequence_length:
                raise ValueError(
                    f"'data.sequence_length' ({self.data.sequence_length}) and "
                    f"'train.sequence_length' ({self.train.sequence_length}) must be equal"
                )
            return self
        if self.data.tokenizer:
            raise ValueError("these rows are tokenized by their model: drop 'data.tokenizer'")
        if self.task != "vision" and not self.score:
            raise ValueError("fine-tuning needs 'score: {metric: ..., select: last or best}'")
        return self

    @model_validator(mode="after")
    def _instructs_or_not(self) -> Self:
        if (self.task == "instruct") != (self.instruct is not None):
            raise ValueError("runs of the task 'instruct' have 'instruct', and no others have")
        return self

    @property
    def config_hash(self) -> str:
        """SHA-256 of everything that decides the result; labels and resources do not."""
        labels = {"study", "suite", "smoke", "tuning", "resources"}
        return content_hash({k: v for k, v in to_plain(self).items() if k not in labels})

    @property
    def run_id(self) -> str:
        """``study-model-method-seed-hash``: the run's name in files and tables."""
        parts = (self.study, self.model.name, self.method.name, self.seeds.label)
        return "-".join((*parts, self.config_hash[:8]))
