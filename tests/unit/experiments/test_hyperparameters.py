"""The methods' files: the most exact entry counts, and no key is misspelt."""

import pytest

from experiments import spec, suites
from experiments.errors import UserError
from experiments.hyperparameters import MethodFile

ENTRIES = {"bert": 1.0, "bert/finetune": 2.0, "bert/mrpc": 3.0, "llama": 4.0}


def file(**rates: float) -> MethodFile:
    entries = {key: {"lr": lr, "source": "s"} for key, lr in rates.items()}
    return spec.parse(MethodFile, {"source": "s", "models": entries}, "file")


@pytest.mark.parametrize(
    ("model", "task", "kind", "lr"),
    [
        ("bert", "mrpc", "finetune", 3.0),
        ("bert", "cola", "finetune", 2.0),
        ("bert", "c4", "pretrain", 1.0),
        ("llama", "mrpc", "finetune", 4.0),
        ("gpt", "mrpc", "finetune", None),
    ],
)
def test_the_most_exact_entry_counts(model: str, task: str, kind: str, lr: float | None) -> None:
    entry = file(**ENTRIES).entry(model, task, kind)
    assert (entry.lr if entry else None) == lr


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("bert/mprc", "'bert/mprc': no such task; did you mean 'mrpc'"),
        ("bret/mrpc", "'bret/mrpc': no such model; did you mean 'bert'"),
    ],
)
def test_a_misspelt_key_is_refused(key: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        file(**{key: 1.0}).check_keys(["bert"], ["mrpc"], "methods/x.yaml")


def test_every_method_says_what_the_small_encoder_gets() -> None:
    """Not zero1_adamw, which needs several processes."""
    files = {name: suites._method_file(name) for name in suites.names("methods")}
    without = {name for name, f in files.items() if not f.entry("minilm_l6", "x", "finetune")}
    assert without == {"zero1_adamw"}
