"""Instructions made of documented functions: say in a sentence what a function does.

The question names a public function or method with its parameters; the answer is the first
sentence of its documentation string. Files are parsed with :mod:`ast` and never imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.data.docstrings import NOT_PROSE, blocks, each_file, tree_of
from experiments.data.prose import plain_text, same_words

MIN_WORDS = 4
MAX_PARAMETERS = 8  # beyond, the question would be mostly names
# Up to a full stop that ends a sentence: at the end of the text, or before a capital.
_SENTENCE = re.compile(r"[A-Z].*?\.(?=\s+[A-Z]|$)", re.DOTALL)


class Described(NamedTuple):
    """A function, ``name(parameters)``, and the first sentence of its documentation."""

    function: str
    sentence: str


class Instruction(NamedTuple):
    """A question and its answer, with the module that they are from."""

    instruction: str
    output: str
    module: str


def described(path: Path) -> list[Described]:
    """The documented public functions and methods of one Python file, in its order."""
    return list(_described(tree_of(path), ""))


def _described(node: ast.AST, prefix: str) -> Iterator[Described]:
    for child in getattr(node, "body", ()):
        name = getattr(child, "name", "_")
        if name.startswith("_"):
            continue
        if isinstance(child, ast.ClassDef):
            yield from _described(child, f"{prefix}{name}.")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            sentence = first_sentence(ast.get_docstring(child) or "")
            names = parameters(child.args)
            if sentence and len(names) <= MAX_PARAMETERS:
                yield Described(f"{prefix}{name}({', '.join(names)})", sentence)


def parameters(given: ast.arguments) -> list[str]:
    """Names of a function's parameters, without ``self`` and ``cls``; ``*`` and ``**`` kept."""
    names = [a.arg for a in (*given.posonlyargs, *given.args) if a.arg not in ("self", "cls")]
    names += [f"*{given.vararg.arg}"] if given.vararg else []
    names += [a.arg for a in given.kwonlyargs]
    return names + ([f"**{given.kwarg.arg}"] if given.kwarg else [])


def first_sentence(docstring: str) -> str | None:
    """The first sentence of a docstring, mark-up taken out; None where it has none to read."""
    first = next(filter(None, blocks(docstring)), "")
    if NOT_PROSE.search(first):
        return None
    found = _SENTENCE.match(plain_text(first))
    return found[0] if found and len(found[0].split()) >= MIN_WORDS else None


def read(
    distributions: Sequence[str],
    workers: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Instruction]:
    """The instructions of some installed distributions, in order of distribution and path.

    Where several functions are documented in the same words (``prose.same_words``) or have one
    name and parameters, the first one stays: many classes inherit a sentence ("Fit the model
    ..."). Arguments as of :func:`~experiments.data.docstrings.each_file`.
    """
    seen: set[str] = set()
    made = []
    for distribution, module, found in each_file(distributions, described, workers, progress):
        for function, sentence in found:
            question = f"Describe the function {function} of {distribution}."
            keys = {question, same_words(sentence)}
            if not keys & seen:
                made.append(Instruction(question, sentence, module))
                seen |= keys
    return made
