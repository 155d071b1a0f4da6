"""Benchmarks: prompts as printed, right counting, chance for those who know nothing."""

import json
import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from experiments import benchmarks, likelihood, questions
from experiments.data.tokenizer import train_bpe
from experiments.errors import UserError
from experiments.exam import BenchmarkSpec
from experiments.spec import parse

SUBJECTS = ("abstract_algebra", "us_history")


def choice_rows(count: int, seed: int) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    return [
        {
            "question": f" What is {draw.randrange(100)} and {number}? ",
            "subject": SUBJECTS[number % 2],
            "choices": [str(draw.randrange(1000)) for _ in range(4)],
            "answer": draw.randrange(4),
        }
        for number in range(count)
    ]


def write(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def mmlu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mmlu")
    write(folder, "test", choice_rows(200, 1))
    write(folder, "dev", choice_rows(6, 2))
    return folder


@pytest.fixture(scope="module")
def gsm8k(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gsm8k")
    for name, count in (("train", 3), ("test", 5)):
        made = [
            {"question": f"Ann has {n} apples, twice?", "answer": f"{n}*2={2 * n}\n#### {n},{n:03}"}
            for n in range(1, count + 1)
        ]
        write(folder, name, made)
    return folder


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    texts = ["Answer: A Answer: B Answer: C What is 12 and 34?\nQuestion: #### 1,001"] * 3
    return train_bpe(texts, 300)  # never saw " D", which is two tokens


def llama(vocab_size: int, length: int = 512) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab_size, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=length, initializer_range=0.3,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def asked(benchmark: str, path: Path, **more: Any) -> BenchmarkSpec:
    return parse(BenchmarkSpec, {"benchmark": benchmark, "path": str(path), **more}, "test")


def ask(model: Any, tokenizer: Any, wanted: BenchmarkSpec) -> dict[str, Any]:
    return benchmarks.run(model, tokenizer, wanted, questions.load(wanted))


def test_prompt_of_mmlu_is_the_authors(tmp_path: Path) -> None:
    row = {
        "question": "Find the order of 2 in Z_4.",
        "subject": "abstract_algebra",
        "choices": ["0", "4", "2", "6"],
        "answer": 2,
    }
    write(tmp_path, "dev", [row])
    write(tmp_path, "test", [row | {"question": "Is Z a field?", "answer": 1}])
    (question,) = questions.load(asked("mmlu", tmp_path, shots=1))
    head = "The following are multiple choice questions (with answers) about abstract algebra.\n\n"
    example = "Find the order of 2 in Z_4.\nA. 0\nB. 4\nC. 2\nD. 6\nAnswer: C\n\n"
    last = "Is Z a field?\nA. 0\nB. 4\nC. 2\nD. 6\nAnswer:"
    assert question.prompt(1) == head + example + last
    assert question.prompt(0) == head + last
    assert question.answer == "B"


def test_prompt_of_gsm8k(gsm8k: Path) -> None:
    first = questions.load(asked("gsm8k", gsm8k, shots=1))[0]
    assert first.prompt(1) == (
        "Question: Ann has 1 apples, twice?\nAnswer: 1*2=2\n#### 1,001\n\n"
        "Question: Ann has 1 apples, twice?\nAnswer:"
    )
    assert first.answer == "1001"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so 3 * 4 = 12.\n#### 12", "12"),
        ("#### 1,234,567", "1234567"),
        ("#### -3.50.", "-3.50"),
        ("#### 5 dollars #### 6", "5"),  # the first counts
        ("the answer is 12", None),
        ("#### $12", None),  # as the authors' pattern has it
    ],
)
def test_final_number(text: str, number: str | None) -> None:
    assert questions.final_number(text) == number


def test_a_limit_draws_the_same_questions_from_the_whole_set(mmlu: Path) -> None:
    every = questions.load(asked("mmlu", mmlu, shots=2))
    some = questions.load(asked("mmlu", mmlu, shots=2, limit=50))
    assert some == questions.load(asked("mmlu", mmlu, shots=2, limit=50))
    places = [every.index(question) for question in some]
    assert places == sorted(set(places)) and max(places) > 150  # not the first fifty
    assert all(len(question.shots) == 2 for question in some)


def test_likelihoods_are_those_of_each_text_alone(tokenizer: PreTrainedTokenizerFast) -> None:
    model = llama(len(tokenizer))
    pairs = [
        ("Answer:", " A"),
        ("What is 12?\nAnswer:", " B"),
        ("Answer:", " D"),
        ("12", " and 34"),
    ]
    requests = [likelihood.encode_pair(tokenizer, *pair) for pair in pairs]
    assert {len(ending) for _, ending in requests} == {1, 2}
    expected = []
    for context, ending in requests:
        with torch.no_grad():
            logs = model(torch.tensor([context + ending])).logits[0].log_softmax(-1)
        at = range(len(context) - 1, len(context) + len(ending) - 1)
        expected.append(sum(logs[i, token].item() for i, token in zip(at, ending, strict=True)))
    for size in (1, 3):
        found = likelihood.log_likelihoods(model, requests, size)
        assert found == pytest.approx(expected, rel=1e-5)  # float32, padded otherwise


def test_a_tokenizer_that_closes_texts_does_not_close_a_context(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    from tokenizers.processors import TemplateProcessing

    closing = PreTrainedTokenizerFast(
        tokenizer_object=type(tokenizer._tokenizer).from_str(tokenizer._tokenizer.to_str()),
        bos_token="<s>",
        eos_token="</s>",
    )
    ids = [("<s>", 0), ("</s>", 1)]
    closing._tokenizer.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=ids)
    assert closing("Answer:").input_ids[-1] == 1
    plain = likelihood.encode_pair(tokenizer, "Answer:", " A")
    assert likelihood.encode_pair(closing, "Answer:", " A") == ([0, *plain[0]], plain[1])


def test_greedy_answers_are_those_of_each_prompt_alone(tokenizer: PreTrainedTokenizerFast) -> None:
    model = llama(len(tokenizer))
    contexts = [tokenizer(text).input_ids for text in ("Answer:", "What is 12 and 34?", "A")]
    said = []
    for context in contexts:
        ids = list(context)
        for _ in range(12):
            with torch.no_grad():
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] == tokenizer.eos_token_id:
                break
        said.append(tokenizer.decode(ids[len(context) :], skip_special_tokens=True))
    assert likelihood.greedy(model, tokenizer, contexts, 12, (), 2) == said
    stop = said[1][3:6]
    stopped = likelihood.greedy(model, tokenizer, contexts, 12, (stop,), 2)
    assert stopped == [text.partition(stop)[0] for text in said]


def test_who_knows_nothing_is_at_chance(mmlu: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    result = ask(llama(len(tokenizer)), tokenizer, asked("mmlu", mmlu, shots=1))
    found = result["metrics"]
    assert found["questions"] == 200 and found["chance"] == 0.25
    assert found["choice_accuracy_low"] < 0.25 < found["choice_accuracy_high"]
    assert result["fewer_shots"] == result["cut"] == 0
    assert {name: part["questions"] for name, part in result["subjects"].items()} == dict.fromkeys(
        SUBJECTS, 100
    )
    per_subject = [part["choice_accuracy"] for part in result["subjects"].values()]
    assert sum(per_subject) / 2 == pytest.approx(found["choice_accuracy"])


class Oracle(nn.Module):
    """Expects one of the given texts to go on."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> None:
        super().__init__()
        self.known = [likelihood.encode(tokenizer, text) for text in texts]
        self.size = len(tokenizer)
        self.config = SimpleNamespace(max_position_embeddings=10_000)
        self.generation_config = None
        self.device = torch.device("cpu")

    def next_id(self, begun: list[int]) -> int:
        return next(ids[len(begun)] for ids in self.known if ids[: len(begun)] == begun)

    def forward(
        self, input_ids: Any, attention_mask: Any, logits_to_keep: int, **_: Any
    ) -> SimpleNamespace:
        logits = torch.zeros(*input_ids.shape, self.size)
        for row, (ids, mask) in enumerate(zip(input_ids, attention_mask, strict=True)):
            begun = ids[mask.bool()].tolist()
            logits[row, -1, self.next_id(begun)] = 10.0
        return SimpleNamespace(logits=logits[:, -logits_to_keep:])

    def generate(self, input_ids: Any, attention_mask: Any, **_: Any) -> Any:
        made = []
        for ids, mask in zip(input_ids, attention_mask, strict=True):
            begun = ids[mask.bool()].tolist()
            whole = next(known for known in self.known if known[: len(begun)] == begun)
            made.append(ids.tolist() + whole[len(begun) :])
        longest = max(map(len, made))
        return torch.tensor([row + [1] * (longest - len(row)) for row in made])  # </s>


def test_who_knows_everything_gets_all_of_mmlu(mmlu: Path) -> None:
    one_each = train_bpe(["Answer: A Answer: B Answer: C Answer: D"] * 3, 300)
    texts = [f"{q.prompt(1)} {q.answer}" for q in questions.load(asked("mmlu", mmlu, shots=1))]
    found = ask(Oracle(one_each, texts), one_each, asked("mmlu", mmlu, shots=1))
    assert found["metrics"]["choice_accuracy"] == 1.0
    assert all(part["choice_accuracy"] == 1.0 for part in found["subjects"].values())


def test_gsm8k_counts_the_number_after_the_mark(
    gsm8k: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    loaded = questions.load(asked("gsm8k", gsm8k, shots=2))
    answers = [
        "#### 1,001",
        "#### 2002.",
        "well, 3003",
        "#### 4",
        "x\n#### 5005\n\nQuestion: #### 1",
    ]
    texts = [f"{q.prompt(2)} {a}" for q, a in zip(loaded, answers, strict=True)]
    found = ask(Oracle(tokenizer, texts), tokenizer, asked("gsm8k", gsm8k, shots=2))
    assert [row["right"] for row in found["questions"]] == [True, True, False, False, True]
    assert found["questions"][4]["text"] == " x\n#### 5005\n\n"
    assert found["metrics"]["exact_match"] == 0.6 and found["metrics"]["chance"] == 0.0


def test_interval_is_wilsons() -> None:
    found = benchmarks.metrics("choice_accuracy", [True] * 7 + [False] * 13, 0.25)
    share, n, z = 0.35, 20, 1.959963984540054
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    assert found["choice_accuracy_low"] == pytest.approx(middle - half)
    assert found["choice_accuracy_high"] == pytest.approx(middle + half)


def test_prompts_that_are_too_long_lose_examples_and_that_is_counted(
    mmlu: Path, gsm8k: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    sizes = [
        len(tokenizer(q.prompt(0)).input_ids)
        for q in questions.load(asked("mmlu", mmlu, shots=3, limit=9))
    ]
    fits = llama(len(tokenizer), max(sizes) + 2)
    found = ask(fits, tokenizer, asked("mmlu", mmlu, shots=3, limit=9))
    assert found["fewer_shots"] == 9 and found["cut"] == 0
    assert {row["shots"] for row in found["questions"]} == {0}
    short = llama(len(tokenizer), min(sizes) - 20)
    found = ask(short, tokenizer, asked("mmlu", mmlu, shots=3, limit=9))
    assert found["cut"] == 9 and "9 lost" in benchmarks.sentence(found)
    brief = llama(len(tokenizer), 40)
    found = ask(brief, tokenizer, asked("gsm8k", gsm8k, shots=1, max_new_tokens=4))
    assert found["fewer_shots"] == 5 and not any(row["shots"] for row in found["questions"])
    with pytest.raises(UserError, match="'max_new_tokens' .* leaves no room for the question"):
        ask(short, tokenizer, asked("gsm8k", gsm8k, shots=1))


GOOD = {"question": "Q?", "subject": "s", "choices": ["1", "2", "3", "4"], "answer": 0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer": 4}, r"test.jsonl, row 2: 'answer' must be 0 to 3, not 4"),
        ({"answer": "A"}, "row 2: 'answer' must be 0 to 3, not 'A'"),
        ({"choices": ["1", "2", "3"]}, "row 2: 'choices' must be 4 texts"),
        ({"question": " "}, "row 2: 'question' is no text"),
        ({"subject": "other"}, "row 2: 1 examples are asked for, and the split 'dev' has 0 of"),
    ],
)
def test_wrong_choices_are_named_with_file_and_row(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    write(tmp_path, "dev", [GOOD])
    write(tmp_path, "test", [GOOD, GOOD | change])
    with pytest.raises(UserError, match=message):
        questions.load(asked("mmlu", tmp_path, shots=1))


def test_missing_parts_are_named(tmp_path: Path) -> None:
    write(tmp_path, "test", [GOOD])
    with pytest.raises(UserError, match="benchmark mmlu: no file of the split 'dev'"):
        questions.load(asked("mmlu", tmp_path, shots=1))
    write(tmp_path, "train", [{"question": "Q?", "answer": "12"}])
    write(tmp_path, "test", [{"question": "Q?", "answer": "#### 12"}])
    with pytest.raises(UserError, match="train.jsonl, row 1: 'answer' has no line '#### number'"):
        questions.load(asked("gsm8k", tmp_path, shots=1))
    (tmp_path / "test.jsonl").unlink()
    with pytest.raises(UserError, match="no file of the split 'test'"):
        questions.load(asked("gsm8k", tmp_path, shots=1))
