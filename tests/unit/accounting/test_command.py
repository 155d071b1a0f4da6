"""`python -m memopt.accounting`: tables, JSON, and one line for bad input."""

import json

import pytest

from memopt.accounting import predict, shapes
from memopt.accounting.__main__ import main


def run(capsys: pytest.CaptureFixture, *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_json_is_the_report(capsys) -> None:
    words = ("llama_7b", "--method", "gwt", "--level", "2", "--dtype", "bfloat16")
    code, out, err = run(capsys, *words, "--storage", "bfloat16", "--json")
    expected = predict("llama_7b", "gwt", "bfloat16", level=2, storage="bfloat16")
    assert (code, err) == (0, "")
    assert json.loads(out) == json.loads(json.dumps(expected.to_dict()))
    assert json.loads(out)["total"] == expected.total


def test_table_has_groups_and_total(capsys) -> None:
    code, out, _ = run(capsys, "llama_7b", "--method=gwt", "--level=2", "--dtype", "bfloat16")
    assert code == 0
    for text in ("treated", "other", "6,738.42", "12.551", "projections"):
        assert text in out


def test_comparison_passes_each_method_its_arguments(capsys) -> None:
    words = ("llama_1b", "--compare", "adamw,gwt,coap", "--rank", "512", "--level", "1")
    code, out, _ = run(capsys, *words, "--convention", "coap")
    assert code == 0
    for text in ("adamw: 4.988 GiB", "coap: 1.942 GiB", "100.0%"):
        assert text in out
    _, out, _ = run(capsys, *words, "--json")
    assert [report["arguments"] for report in json.loads(out)] == [{}, {"level": 1}, {"rank": 512}]


def test_targets(capsys) -> None:
    states = {}
    for words in ([], ["--targets", "all-linear"], ["--targets", "mlp"]):
        code, out, _ = run(capsys, "llama_micro", "--method", "gwt", "--json", *words)
        assert code == 0
        states[tuple(words)] = [group["elements"] for group in json.loads(out)["groups"]]
    mlp = 2 * 3 * 32 * 88  # layers, matrices, shape
    assert states[()] == states[("--targets", "all-linear")]
    assert states[("--targets", "mlp")] == [mlp, 58_016 - mlp]


def test_a_configuration_file_is_a_model(capsys, tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(shapes.named("llama_nano")))
    code, out, _ = run(capsys, str(tmp_path), "--method", "adamw", "--json")
    assert code == 0
    assert json.loads(out)["elements"] == 463_424


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["llama_7c", "--method", "gwt"], "Did you mean 'llama_7b'"),
        (["llama_7b", "--method", "gvt"], "Did you mean 'gwt'"),
        (["llama_7b", "--method", "gwt", "--levle", "2"], "Did you mean 'level'"),
        (["llama_7b", "--method", "gwt", "--level", "-1"], "gwt: level must be"),
        (["llama_7b", "--method", "gwt", "--level", "two"], "level must be"),
        (["llama_7b", "--method", "gwt", "--level"], "--key value"),
        (["llama_7b", "--method", "coap"], "rank"),
        (["llama_7b", "--method", "gwt", "--dtype", "bfloat"], "Did you mean 'bfloat16'"),
        (["llama_7b", "--method", "gwt", "--storage", "9bit"], "Did you mean '8bit'"),
        (["llama_7b", "--compare", "gwt", "--convention", "coop"], "Did you mean 'coap'"),
        (["llama_7b"], "--method"),
        (["llama_7b", "--method", "gwt", "--targets", "mpl"], "Did you mean 'mlp'"),
    ],
)
def test_bad_input_is_one_line(capsys, words: list[str], message: str) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


def test_missing_field_of_a_file(capsys, tmp_path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", "hidden_size": 64}))
    code, _, err = run(capsys, str(path), "--method", "gwt")
    assert code == 2
    assert "'intermediate_size'" in err
