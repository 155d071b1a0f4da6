"""From an instruction and its answer to token ids of which only the answer is learned.

The prompt is written in a template and tokenized by itself, then the answer, so that a model is
asked with exactly the ids that it was trained on. The end-of-sequence token closes each answer
and is learned with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase

from experiments.errors import UserError

IGNORED = -100  # what torch's cross entropy leaves out
TemplateName = Literal["alpaca", "chat"]

# Stanford Alpaca's two prompts (train.py of tatsu-lab/stanford_alpaca).
ALPACA = (
    "Below is an instruction that describes a task. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Response:"
)
ALPACA_WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further "
    "context. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:"
)


class Template:
    """How a model is asked, and what it is to answer.

    Args:
        name: ``alpaca``: Alpaca's prompts, whatever the model; ``chat``: the tokenizer's own chat
            template, the instruction (and below it the input) as the user's turn.
        tokenizer: of the model. A beginning-of-sequence token stands before the prompt where the
            tokenizer puts one by itself. It needs no padding token (padding is masked).
        model: its name, for the messages.

    Raises:
        UserError: the tokenizer has no end-of-sequence token, or no chat template.
    """

    def __init__(self, name: TemplateName, tokenizer: PreTrainedTokenizerBase, model: str) -> None:
        if tokenizer.eos_token_id is None:
            raise UserError(
                f"model {model}: its tokenizer has no end-of-sequence token, so that it could not "
                f"learn where an answer ends; set eos_token in its tokenizer_config.json"
            )
        if name == "chat" and not tokenizer.chat_template:
            raise UserError(
                f"model {model}: its tokenizer has no chat template: use 'template: alpaca'"
            )
        self.name, self.tokenizer, self.model = name, tokenizer, model
        self.end = int(tokenizer.eos_token_id)

    @property
    def padding(self) -> int:
        """The id that fills rows; the end-of-sequence token where there is no padding token."""
        pad = self.tokenizer.pad_token_id
        return self.end if pad is None else int(pad)

    def prompt(self, instruction: str, given: str = "") -> list[int]:
        """Ids up to where the answer begins; ``given`` is the instruction's input."""
        if self.name == "chat":
            return self._chat([_user(instruction, given)], add_generation_prompt=True)
        text = (ALPACA_WITH_INPUT if given else ALPACA).format(instruction=instruction, input=given)
        ids = list(self.tokenizer(text)["input_ids"])
        return ids[:-1] if ids[-1] == self.end else ids

    def example(self, instruction: str, given: str, answer: str) -> tuple[list[int], list[int]]:
        """Ids of prompt and answer; the answer's last one is the end-of-sequence token."""
        prompt = self.prompt(instruction, given)
        if self.name == "alpaca":
            ids = list(self.tokenizer(answer, add_special_tokens=False)["input_ids"])
            return prompt, [*ids, self.end]
        turns = [_user(instruction, given), {"role": "assistant", "content": answer}]
        whole = self._chat(turns)
        if whole[: len(prompt)] != prompt:
            raise UserError(
                f"model {self.model}: its chat template writes a question with its answer "
                f"otherwise than alone, so that the prompt cannot be told apart: use "
                f"'template: alpaca'"
            )
        return prompt, _closed(whole[len(prompt) :], self.end)

    def _chat(self, turns: list[dict[str, str]], **options: Any) -> list[int]:
        return list(self.tokenizer.apply_chat_template(turns, return_dict=False, **options))


def _user(instruction: str, given: str) -> dict[str, str]:
    return {"role": "user", "content": f"{instruction}\n\n{given}" if given else instruction}


def _closed(answer: list[int], end: int) -> list[int]:
    """The answer up to its last ``end`` (templates may go on with a line feed), or with one."""
    if end not in answer:
        return [*answer, end]
    return answer[: len(answer) - answer[::-1].index(end)]


@dataclass(frozen=True)
class Encoded:
    """Token rows and what became of the answers.

    Attributes:
        rows: ``input_ids`` and ``labels``, lists of one length; labels are -100 over the prompt.
        counts: ``rows``; ``dropped``: rows left out because no token of the answer would have
            stayed; ``cut``: kept rows whose answer lost its end; ``tokens`` and
            ``answer_tokens`` of the kept rows.
    """

    rows: list[dict[str, list[int]]]
    counts: dict[str, int]


def encode(rows: Iterable[dict[str, str]], template: Template, length: int, part: str) -> Encoded:
    """Tokenizes rows with ``instruction``, ``input`` and ``output``, cut to ``length`` tokens.

    Raises:
        UserError: no row of the part keeps a token of its answer.
    """
    made, dropped, cut = [], 0, 0
    for row in rows:
        prompt, answer = template.example(row["instruction"], row["input"], row["output"])
        room = length - len(prompt)
        if room < 1:
            dropped += 1
            continue
        cut += len(answer) > room
        answer = answer[:room]
        made.append({"input_ids": prompt + answer, "labels": [IGNORED] * len(prompt) + answer})
    if not made:
        raise UserError(
            f"the {part} part: none of {dropped} rows keeps a token of its answer within "
            f"'train.sequence_length' ({length}): raise it"
        )
    return Encoded(
        made,
        {
            "rows": len(made),
            "dropped": dropped,
            "cut": cut,
            "tokens": sum(len(row["input_ids"]) for row in made),
            "answer_tokens": sum(label != IGNORED for row in made for label in row["labels"]),
        },
    )
