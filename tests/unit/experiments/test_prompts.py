"""Which tokens are learned: all of the answer, its end, and nothing of the prompt."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional

from experiments.data import load_instructions
from experiments.data.prepare import prepare
from experiments.errors import UserError
from experiments.evaluate import language_loss
from experiments.packing import padded
from experiments.prompts import Template, encode
from experiments.spec import DataSpec

from . import instructed

ROW = {"instruction": "Add.", "input": "1, 2", "output": "3"}


def template(name: str = "alpaca") -> Template:
    return Template(name, instructed.tokenizer(), "tiny")


def test_the_prompt_is_stanford_alpacas() -> None:
    asked = template()
    # written out from tatsu-lab/stanford_alpaca, train.py
    assert asked.tokenizer.decode(asked.prompt("Add.", "1, 2")) == (
        "Below is an instruction that describes a task, paired with an input that provides further "
        "context. Write a response that appropriately completes the request.\n\n### Instruction:\n"
        "Add.\n\n### Input:\n1, 2\n\n### Response:"
    )
    assert asked.tokenizer.decode(asked.prompt("Sing {la}.")) == (
        "Below is an instruction that describes a task. Write a response that appropriately "
        "completes the request.\n\n### Instruction:\nSing {la}.\n\n### Response:"
    )


def test_the_chat_template_is_the_tokenizers_own() -> None:
    asked = template("chat")
    prompt, answer = asked.example("Add.", "1, 2", "3")
    assert asked.tokenizer.decode(prompt) == "<|user|>\nAdd.\n\n1, 2\n<|assistant|>\n"
    assert asked.tokenizer.decode(answer) == "3</s>"  # without the line feed that follows
    assert prompt == asked.prompt("Add.", "1, 2")


@pytest.mark.parametrize("name", ["alpaca", "chat"])
def test_labels_are_the_answer_and_its_end_alone(name: str) -> None:
    asked = template(name)
    for row in encode([ROW, {**ROW, "input": ""}], asked, 200, "train").rows:
        learned = [label for label in row["labels"] if label != -100]
        assert asked.tokenizer.decode(learned) == "3</s>"
        assert learned == row["input_ids"][-len(learned) :]
        masked = row["input_ids"][: -len(learned)]
        assert asked.tokenizer.decode(masked).endswith(("### Response:", "<|assistant|>\n"))


def test_the_end_is_learned_where_padding_is_the_same_token() -> None:
    tokenizer = instructed.tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    for asked in (Template("alpaca", tokenizer, "tiny"), template()):
        rows = encode([ROW, {**ROW, "output": "3 and more"}], asked, 200, "train").rows
        batch = padded(rows, asked.padding)
        assert (batch["labels"] == asked.end).sum(1).tolist() == [1, 1]
        assert (batch["labels"][batch["attention_mask"] == 0] == -100).all()


def test_a_tokenizer_without_padding_token_pads_with_its_end() -> None:
    tokenizer = instructed.tokenizer()
    tokenizer.pad_token = None
    assert Template("alpaca", tokenizer, "tiny").padding == tokenizer.eos_token_id


def test_a_beginning_stays_and_an_end_that_the_tokenizer_adds_to_prompts_goes() -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer = instructed.tokenizer()
    bos, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", bos), ("</s>", end)]
    )
    prompt, answer = Template("alpaca", tokenizer, "tiny").example("Add.", "", "3")
    assert prompt[0] == bos and end not in prompt
    assert bos not in answer and answer.count(end) == 1


def test_no_prompt_token_contributes_to_the_loss() -> None:
    """The gradient at what predicts a prompt or padding token is zero; the others are not."""
    asked, model = template(), instructed.model()
    rows = encode(instructed.instructions(6), asked, 96, "train").rows
    batch = padded(rows, asked.padding)
    logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    logits.retain_grad()
    loss = model.loss_function(logits, batch["labels"], vocab_size=model.config.vocab_size)
    loss.backward()
    predicts_answer = functional.pad(batch["labels"][:, 1:] != -100, (0, 1))
    touched = logits.grad.abs().amax(-1) > 0
    assert torch.equal(touched, predicts_answer)

    # and the loss is the mean of -log p over the answers' tokens, added up by hand
    total, count = 0.0, 0
    for row in rows:
        alone = torch.log_softmax(model(torch.tensor([row["input_ids"]])).logits[0], -1)
        start = row["labels"].count(-100)
        for place in range(start, len(row["input_ids"])):
            total -= alone[place - 1, row["input_ids"][place]].item()
            count += 1
    assert loss.item() == pytest.approx(total / count, rel=1e-5)  # float32, padded or alone
    # batches of two differ in their numbers of answer tokens: each token counts alike
    batches = [padded(rows[i : i + 2], asked.padding) for i in (0, 2, 4)]
    assert language_loss(model, batches)["loss"] == pytest.approx(total / count, rel=1e-5)


def test_what_is_cut_and_dropped_is_counted() -> None:
    asked = template()
    prompt, answer = asked.example(ROW["instruction"], ROW["input"], ROW["output"])
    longer = {**ROW, "output": "3 and then nothing but more of it"}
    wordy = {**ROW, "instruction": "Add what follows, and do it as slowly as anybody ever did."}
    length = len(prompt) + len(answer)
    found = encode([ROW, longer, wordy], asked, length, "train")
    assert found.counts == {
        "rows": 2,
        "dropped": 1,
        "cut": 1,
        "tokens": 2 * length,
        "answer_tokens": 2 * len(answer),
    }
    kept, cut = found.rows
    assert kept["input_ids"] == prompt + answer
    assert len(cut["input_ids"]) == length and cut["input_ids"][-1] != asked.end
    # one token of the answer is enough to stay, none is not
    assert encode([longer], asked, len(prompt) + 1, "train").counts["answer_tokens"] == 1
    with pytest.raises(UserError, match="validation part: none of 1 rows keeps a token of its ans"):
        encode([longer], asked, len(prompt), "validation")


@pytest.mark.parametrize(
    ("attribute", "name", "message"),
    [
        ("eos_token", "alpaca", "model m: its tokenizer has no end-of-sequence token"),
        ("chat_template", "chat", "model m: its tokenizer has no chat template: use 'template: al"),
    ],
)
def test_what_a_tokenizer_lacks_is_named(attribute: str, name: str, message: str) -> None:
    tokenizer = instructed.tokenizer()
    setattr(tokenizer, attribute, None)
    with pytest.raises(UserError, match=message):
        Template(name, tokenizer, "m")


def test_a_chat_template_that_changes_the_question_is_refused() -> None:
    tokenizer = instructed.tokenizer()
    tokenizer.chat_template = (
        "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    with pytest.raises(UserError, match="writes a question with its answer otherwise than alone"):
        Template("chat", tokenizer, "m").example("Add.", "", "3")


# --- real rows, where they are


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("alpaca_gpt4", "alpaca_gpt4_en_demo.parquet"),
        ("self_instruct", "self_instruct_seed.parquet"),
        ("gsm8k", "gsm8k"),
    ],
)
@pytest.mark.parametrize("name", ["alpaca", "chat"])
def test_real_rows(shared: Path, tmp_path: Path, source: str, path: str, name: str) -> None:
    spec = DataSpec(source=source, path=str(shared / "data" / "instruct" / path), max_documents=150)
    prepare(spec, tmp_path / "out")
    rows = list(load_instructions(tmp_path / "out")[0]["train"])
    asked = template(name)
    found = encode(rows, asked, 10**6, "train")
    assert (found.counts["dropped"], found.counts["cut"]) == (0, 0)
    for row, made in zip(rows, found.rows, strict=True):
        start = made["labels"].count(-100)
        assert made["labels"][start:] == made["input_ids"][start:]
        assert asked.tokenizer.decode(made["labels"][start:]) == row["output"] + "</s>"
        shown = asked.tokenizer.decode(made["input_ids"][:start])
        assert row["instruction"] in shown and row["input"] in shown
