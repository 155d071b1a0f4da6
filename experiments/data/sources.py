"""The table of data sources, ``data/sources.yaml``, and its schema."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveInt, RootModel, StringConstraints, model_validator

from experiments.errors import UserError, nearest
from experiments.spec import DataSpec, Name, RunSpec, Strict, load

SOURCES_FILE = Path(__file__).resolve().parents[2] / "data" / "sources.yaml"
LOCAL = SOURCES_FILE.parent / "local"  # <source>: a folder, a file, or a link to one

Task = Literal["text", "classification", "images", "instruction", "choice"]

# Roles that the rows of a task must fill, and those that they may fill besides.
ROLES: dict[str, tuple[set[str], set[str]]] = {
    "text": ({"text"}, set()),
    "classification": ({"text", "label"}, {"text_pair"}),
    "images": ({"image", "label"}, set()),
    # `instances` (Self-Instruct): a list of {input, output}, in place of the two
    "instruction": ({"instruction"}, {"input", "output", "instances"}),
    "choice": ({"question", "choices", "answer"}, {"subject"}),
}


# What a classification can be measured by; a regression by the correlations.
CLASS_METRICS = {"accuracy", "f1", "matthews"}
REGRESSION_METRICS = {"pearson", "spearman"}


class Source(Strict):
    """What all kinds of source say.

    Attributes:
        title: one line for people.
        task: what the rows are for.
        licence: of the text.
        fields: role of a column (``ROLES``) to its official name.
        splits: ``train`` and ``validation`` to their official names; of a classification, further
            parts that are evaluated, or predicted where their labels are hidden.
        labels: names of the classes in the order of their numbers; none for a regression.
        leave_out_unanswered: of an instruction source whose publishers left some answers empty:
            such rows are left out and counted. Elsewhere an empty answer is an error.
        metrics: the official ones of a classification; first the one that tables rank by.
        train_rows: of the official training part.
        fingerprint: SHA-256 of the whole corpus, where it is known.
    """

    title: str
    task: Task
    licence: str
    fields: dict[str, str]
    splits: dict[str, str]
    labels: list[str] | None = None
    leave_out_unanswered: bool = False
    metrics: list[str] = []
    train_rows: PositiveInt | None = None
    fingerprint: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] | None = None

    @model_validator(mode="after")
    def _roles(self) -> Self:
        needed, allowed = ROLES[self.task]
        missing, unknown = needed - set(self.fields), set(self.fields) - needed - allowed
        if missing or unknown:
            raise ValueError(
                f"'fields' of task {self.task!r} are {sorted(needed)} and perhaps "
                f"{sorted(allowed)}; missing {sorted(missing)}, unknown {sorted(unknown)}"
            )
        if self.task == "instruction" and ("output" in self.fields) == ("instances" in self.fields):
            raise ValueError("'fields' of task 'instruction' hold one of 'output' and 'instances'")
        return self

    @model_validator(mode="after")
    def _metrics(self) -> Self:
        allowed = CLASS_METRICS if self.labels else REGRESSION_METRICS
        if self.task != "classification":
            allowed = set()
        if not set(self.metrics) <= allowed or bool(self.metrics) != bool(allowed):
            raise ValueError(f"'metrics': expected some of {sorted(allowed)}, got {self.metrics}")
        return self


class HubSource(Source):
    """A data set on the Hugging Face hub, or local files in the form it has there."""

    kind: Literal["hub"]
    id: str
    config: str | None = None
    revision: str


class LocalSource(Source):
    """Files of the user, at the run's ``data.path`` or in ``data/local/<source>``."""

    kind: Literal["local"]


class PackageSource(Source):
    """What installed Python distributions carry; ``reader`` says how to get it out."""

    kind: Literal["package"]
    reader: Literal[
        "docstrings",
        "docstring_origin",
        "docstring_pairs",
        "docstring_instructions",
        "digits",
        "wikipedia",
    ]
    distributions: Annotated[list[str], Field(min_length=1)]


class NpmSource(Source):
    """Text files inside an npm package, one document a file."""

    kind: Literal["npm"]
    package: str
    files: str


AnySource = HubSource | LocalSource | PackageSource | NpmSource
Sources = RootModel[dict[Name, Annotated[AnySource, Field(discriminator="kind")]]]


def local_path(spec: DataSpec) -> Path | None:
    """Where the files of a hub or local source lie: ``path``, else ``data/local/<source>``.

    Without a link's own name: files are known by their endings.
    """
    if spec.path:
        return Path(spec.path)
    found = LOCAL / spec.source
    return found.resolve() if found.exists() or found.is_symlink() else None


def check_score(run: RunSpec, where: str) -> None:
    """Refuses a score that is none of the official metrics of the run's labelled rows.

    Args:
        run: of any task; only fine-tuning is measured so.
        where: file and study, or the run, for the message.

    Raises:
        UserError: it names the metrics.
    """
    source = source_of(run.data)
    if run.score and run.task == "finetune" and run.score.metric not in source.metrics:
        raise UserError(
            f"{where}: score.metric: source {run.data.source!r} is measured by "
            f"{' or '.join(source.metrics)}, not by {run.score.metric!r}"
        )


def missing(spec: DataSpec) -> str | None:
    """What somebody must put in place before a source can be read; None if there is nothing."""
    path = local_path(spec)
    if path is None and isinstance(source_of(spec), LocalSource):
        return (
            f"source {spec.source!r}: its files are not in data/local/{spec.source}: put them, or "
            f"a link to them, there, or give 'path' beside 'source' (data/README.md)"
        )
    if path is not None and not path.exists():
        return f"source {spec.source!r}: {path} does not exist"
    return None


@cache
def load_sources(path: Path = SOURCES_FILE) -> dict[str, AnySource]:
    """All sources by name."""
    return load(Sources, path).root


def source_of(spec: DataSpec) -> AnySource:
    """The source that a data specification names.

    Raises:
        UserError: there is no such source; the message names the nearest.
    """
    sources = load_sources()
    if spec.source not in sources:
        raise UserError(f"unknown data source {spec.source!r}{nearest(spec.source, sources)}")
    return sources[spec.source]
