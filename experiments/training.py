"""The loop that both tasks share: transformers' Trainer, our recording, exact resumption."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import (
    PreTrainedModel,
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

import memopt
from experiments import checkpoints, processes, schedules, scores, sharded, trackers
from experiments.clock import Clock
from experiments.errors import UserError
from experiments.evaluate import Collate
from experiments.order import Order
from experiments.progress import Progress
from experiments.rundir import MetricsFile
from experiments.spec import RunSpec
from experiments.trainer import RunTrainer
from memopt import accounting
from memopt.catalog import Method
from memopt.catalog import get as catalog_entry
from memopt.distributed import reduce_gradients

# A loss so far above that of a uniform guess has blown up and does not come back.
DIVERGED_FACTOR = 4.0
FINISHED = "finished"
SEED_ARGUMENTS = {"projection_seed", "adapter_seed"}
SCHEDULES = {"cosine": "cosine_with_min_lr", "linear": "linear", "constant": "constant_with_warmup"}


Evaluate = Callable[[PreTrainedModel], scores.Metrics]


@dataclass
class Task:
    """What there is to learn, made by the module of the run's task.

    Attributes:
        model: to be trained.
        rows: training rows.
        collate: makes a batch of rows.
        evaluate: held-out metrics of a model; ``loss`` among them.
        further: the same on further parts, by their names.
        uniform_loss: loss of a uniform guess, for recognising divergence.
        references: baselines that need no training, by their names in the summary.
        fingerprint: of the prepared data.
        counts: what became of the rows at the model's tokenizer, for the summary.
        by_token: whether each token that is learned counts alike in an update, however many its
            micro-batch has; else each micro-batch counts alike. The model must take
            ``num_items_in_batch``, as transformers' language models do.
        files: texts about the tuned model, by file name, to stand beside the results.
        loop: what trains it in place of :func:`train`, if Trainer cannot.
    """

    model: PreTrainedModel
    rows: Any
    collate: Collate
    evaluate: Evaluate
    uniform_loss: float
    references: dict[str, float]
    fingerprint: str
    further: dict[str, Evaluate] = field(default_factory=dict)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    by_token: bool = False
    files: Callable[[PreTrainedModel], dict[str, str]] = lambda model: {}
    loop: Callable[..., Outcome] | None = None

    def evaluate_parts(self, model: PreTrainedModel) -> dict[str, scores.Metrics]:
        """Metrics of every part."""
        parts = {scores.MAIN: self.evaluate, **self.further}
        return {name: evaluate(model) for name, evaluate in parts.items()}


@dataclass
class Outcome:
    """What the loop hands back.

    Attributes:
        steps: updates done.
        verdict: ``"finished"``, or why the run was given up.
        diverged: whether it was given up.
        final: metrics after the last update, by part; empty for a diverged run.
        seconds: in updates, over all sessions; evaluation and checkpoints not counted.
        tokens_per_second: of this session's updates; None if it did none.
        time_shares: of this session, see :meth:`Clock.shares`; None if it did no update.
    """

    steps: int
    verdict: str
    diverged: bool
    final: dict[str, scores.Metrics]
    seconds: float
    tokens_per_second: float | None
    time_shares: dict[str, float] | None


def prepare_process(threads: int) -> None:
    """Fixed number of threads and deterministic algorithms, before any tensor is made."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # only costs time here


def make_optimizer(
    run: RunSpec, model: PreTrainedModel
) -> tuple[torch.optim.Optimizer, accounting.Report]:
    """The method's optimizer, with what the training loop must tell it, and its predicted bytes.

    A method of kind adapter changes the model.

    Raises:
        UserError: an argument that the method does not take or cannot have, or global-norm
            clipping with a method that uses up gradients during backward.
    """
    method, train = run.method, run.train
    arguments = dict(method.args)
    try:
        entry = catalog_entry(method.name)
        arguments |= entry.in_loop(train.micro_batches, train.max_grad_norm)
        for key in SEED_ARGUMENTS & set(entry.arguments()):  # another seed, other projections
            arguments.setdefault(key, run.seeds.weights)
        divided = processes.count() if entry.kind == "distributed" else 1
        predicted = accounting.predict(model, method.name, processes=divided, **arguments)
        _place(run, entry, model)
        optimizer = memopt.create(method.name, model, lr=method.lr, **arguments)
        if _exchanges(run, entry):
            reduce_gradients(optimizer)
        return optimizer, predicted
    except (ValueError, TypeError) as error:
        raise UserError(f"method {method.name}: {error}") from None


def _place(run: RunSpec, entry: Method, model: PreTrainedModel) -> None:
    """One of several processes: model on its device, and divided if the run asks for that.

    Before the optimizer is made, which exchanges weights or keeps parts of them.

    Raises:
        UserError: what cannot be shared out evenly, or not by this method.
    """
    if processes.count() == 1:
        return
    parts = processes.count() * run.train.micro_batches
    if run.train.batch_size % parts:
        raise UserError(
            f"train.batch_size ({run.train.batch_size}) must be a multiple of processes times "
            f"micro_batches ({processes.count()} x {run.train.micro_batches})"
        )
    cpu = run.resources.gpus == 0
    model.to(processes.device(cpu=cpu))
    if run.resources.parallel == "fsdp2":
        if "fsdp2" in entry.limits:
            raise UserError(f"resources.parallel: fsdp2 with {entry.name}: {entry.limits['fsdp2']}")
        sharded.divide(model, cpu=cpu)


def _exchanges(run: RunSpec, entry: Method) -> bool:
    """Whether the optimizer averages gradients itself, as they come; else DDP or FSDP2 do."""
    several = processes.count() > 1 and run.resources.parallel != "fsdp2"
    return several and entry.timing != "step"


def train(
    run: RunSpec,
    task: Task,
    optimizer: torch.optim.Optimizer,
    work: Path,
    checkpoint: tuple[Path, int] | None,
    track: str = trackers.NONE,
) -> Outcome:
    """Trains to the end, or to where the run has to be given up.

    Args:
        run: the specification.
        task: model, rows and evaluation.
        optimizer: of the model.
        work: folder of the unfinished run.
        checkpoint: where to go on, with its step; None for the beginning.
        track: name of a tracker, see `experiments.trackers`.
    """
    done = checkpoint[1] if checkpoint else 0
    recorder = Recorder(run, task, work, done)
    staging = work / "staging"
    if processes.first():
        shutil.rmtree(staging, ignore_errors=True)
    processes.wait()
    trainer = RunTrainer(
        model=task.model,
        args=_arguments(run, staging),
        data_collator=task.collate,
        train_dataset=Order(task.rows, run.train.steps * run.train.batch_size, run.seeds.data),
        eval_dataset=task.rows,  # Trainer asks for one; `evaluate` brings its own
        callbacks=[recorder, *trackers.callbacks(track, run.run_id, work, done)],
        optimizers=(
            optimizer,
            schedules.scheduler(run.train, len(task.rows), task.references, optimizer),
        ),
    )
    trainer.held_out = task.evaluate_parts
    trainer.clock = recorder.clock
    trainer.timing = getattr(optimizer, "timing", None)
    if sharded.is_divided(task.model) or _exchanges(run, catalog_entry(run.method.name)):
        trainer.leave_model_alone()
    # Some models take the number of predictions that Trainer would pass and average all the same
    # (BERT's classifiers), which multiplies the gradient by the micro-batches. Those of pretraining
    # and classification are all of one size, so the mean of their means is the mean (in the layout
    # `papers`, with its unequal padding, it is what the papers' scripts use).
    trainer.model_accepts_loss_kwargs = task.by_token
    trainer.remove_callback(PrinterCallback)
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint[0]) if checkpoint else None)
    except memopt.NonFiniteGradientError as error:
        recorder.verdict = f"diverged at step {trainer.state.global_step + 1}: {error}"
    except OSError as error:
        raise UserError(f"writing the run failed in {work}: {error}") from None
    finally:
        recorder.progress.close()
    diverged = recorder.verdict != FINISHED
    steps = trainer.state.global_step
    seconds = recorder.seconds - recorder.seconds_before
    return Outcome(
        steps=steps,
        verdict=recorder.verdict,
        diverged=diverged,
        final={} if diverged else recorder.last_evaluation or task.evaluate_parts(task.model),
        seconds=recorder.seconds,
        tokens_per_second=(steps - done) * tokens_per_step(run) / seconds if seconds else None,
        time_shares=recorder.clock.shares(),
    )


def tokens_per_step(run: RunSpec) -> int:
    """Tokens of one update; rows of any length are counted at the longest allowed."""
    return run.train.batch_size * run.train.sequence_length


class Recorder(TrainerCallback):
    """Writes ``metrics.jsonl``, shows progress, publishes checkpoints, recognises divergence."""

    def __init__(self, run: RunSpec, task: Task, work: Path, done: int) -> None:
        self.checkpoints = work / "checkpoints"
        self.metrics = MetricsFile(work / "metrics.jsonl")
        self.tokens_per_step = tokens_per_step(run)
        self.limit = DIVERGED_FACTOR * task.uniform_loss
        self.verdict = FINISHED
        self.last_evaluation: dict[str, scores.Metrics] = {}
        rows = self.metrics.truncate(done) if processes.first() else []
        self.seconds_before = self.seconds = rows[-1]["seconds"] if rows else 0.0
        self.progress = Progress(
            run.run_id, run.train.steps, done, self.tokens_per_step, shown=processes.first()
        )
        self.clock = Clock()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """An update begins."""
        self.clock.stop("outside")
        self.clock.start("update")

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Gradients are there."""
        self.clock.start("optimizer")

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Weights are new."""
        self.clock.stop("optimizer")

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """An update is done; the last one is always recorded."""
        self.seconds += self.clock.stop("update")
        self.clock.start("outside")
        self.progress.step()
        if state.global_step >= state.max_steps:
            control.should_log = True

    def on_log(
        self, args: Any, state: TrainerState, control: TrainerControl, logs: Any, **_: Any
    ) -> None:
        """One training row: averages since the last one; gives up on a diverged loss."""
        if "loss" not in logs:  # Trainer's closing statistics
            return
        loss, lr = logs["loss"], logs["learning_rate"]
        self._write(state, "train", loss, lr=lr, grad_norm=logs.get("grad_norm"))
        self.progress.train(state.global_step, loss, lr)
        self._give_up_if_diverged(state, control, "training", loss)

    def on_evaluate(
        self, args: Any, state: TrainerState, control: Any, metrics: Any, **_: Any
    ) -> None:
        """One row a held-out part."""
        self.last_evaluation = metrics
        for part, found in metrics.items():
            quality = {key: found[key] for key in scores.QUALITY if key in found}
            self._write(state, part, found["loss"], **quality)
            self.progress.evaluation(state.global_step, part, {"loss": found["loss"], **quality})
        self._give_up_if_diverged(state, control, "held-out", metrics[scores.MAIN]["loss"])

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Seals the checkpoint that Trainer has just staged."""
        processes.wait()  # each has put the state of its random numbers there
        if not processes.first():
            return
        self.metrics.sync()
        staged = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        checkpoints.publish(staged, self.checkpoints, state.global_step)

    def _give_up_if_diverged(
        self, state: TrainerState, control: TrainerControl, what: str, loss: float
    ) -> None:
        if math.isfinite(loss) and loss <= self.limit:
            return
        how = f"above {self.limit:.3g}" if math.isfinite(loss) else "not finite"
        self.verdict = f"diverged at step {state.global_step}: {what} loss {loss:.4g}, {how}"
        self.progress.say(self.verdict)
        control.should_training_stop = True
        control.should_evaluate = control.should_save = False

    def _write(self, state: TrainerState, split: str, loss: float, **values: Any) -> None:
        if not processes.first():
            return
        row = {
            "step": state.global_step,
            "tokens": state.global_step * self.tokens_per_step,
            "split": split,
            "loss": loss,
            "lr": None,
            "grad_norm": None,
            "seconds": self.seconds,
        }
        self.metrics.append(row | values)


def _arguments(run: RunSpec, staging: Path) -> TrainingArguments:
    """Our specification in Trainer's words."""
    spec = run.train
    cpu = run.resources.gpus == 0
    schedule = spec.schedule
    return TrainingArguments(
        output_dir=str(staging),
        max_steps=spec.steps,
        per_device_train_batch_size=spec.batch_size // (spec.micro_batches * processes.count()),
        gradient_accumulation_steps=spec.micro_batches,
        learning_rate=run.method.lr,
        lr_scheduler_type=SCHEDULES.get(schedule.name, "constant"),  # the others are made here
        lr_scheduler_kwargs=(
            {"min_lr_rate": schedule.min_lr_ratio} if schedule.name == "cosine" else {}
        ),
        warmup_steps=round(schedule.warmup_fraction * spec.steps),
        max_grad_norm=spec.max_grad_norm,
        bf16=spec.dtype == "bfloat16_autocast",
        seed=run.seeds.weights,  # dropout; the order of rows has its own seed
        use_cpu=cpu,
        ddp_find_unused_parameters=False,
        train_sampling_strategy="sequential",
        dataloader_num_workers=0,
        dataloader_pin_memory=not cpu,
        remove_unused_columns=False,
        logging_strategy="steps",
        logging_steps=spec.log_every,
        logging_nan_inf_filter=False,
        eval_strategy="steps",
        eval_steps=spec.eval_every,
        save_strategy="steps",
        save_steps=spec.checkpoint_every,
        report_to="none",
        disable_tqdm=True,
    )
