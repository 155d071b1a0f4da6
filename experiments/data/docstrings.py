"""English prose from the documentation strings of installed packages.

The Python files that an installed distribution lists are parsed with :mod:`ast` and never
imported. A document is one module; its text is the prose paragraphs of its docstrings in file
order. :func:`paragraphs` decides what is prose, :func:`read` that nothing is said twice.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import NamedTuple, TypeVar

from experiments.data.prose import is_prose, plain_text, same_words
from experiments.errors import UserError

# Tests are not written for readers. Version files, vendored and generated code differ between
# builds of one version (CPU and CUDA wheels of torch), which would change the corpus.
SKIPPED_FOLDERS = frozenset({"tests", "test", "testing", "_vendor", "_generated", "generated"})
SKIPPED_FILES = frozenset({"version.py", "_version.py", "setup.py", "conftest.py", "__config__.py"})

_BULLET = re.compile(r"(?:[-*+•]|\(?(?:\d{1,2}|[a-z])[.)]|\.\. \w+::)\s+")
# "x (int, *optional*): text" and ":param x: text": the head of a description, which follows it.
_HEAD = re.compile(r"[\w`*.]+\s*(?:\((?:[^()]|\([^()]*\))*\))?:(?:\s+|$)|:[a-z]+(?:\s[^:]*)?:\s+")
# "x, y : int, optional": a line of its own; the description below stands deeper.
_NUMPY_HEAD = re.compile(r"[\w*.]+(?:, [\w*.]+)* :(?:\s|$)")
NOT_PROSE = re.compile(r"^>>>|^```|\s\|\s|^[|+]|={3}|-{3}|\\[a-z]{2}|[{}]")

Found = TypeVar("Found")


class Document(NamedTuple):
    """One module: the distribution it belongs to, its path there, and its prose."""

    distribution: str
    module: str
    paragraphs: list[str]


def blocks(docstring: str) -> Iterator[str]:
    """Cuts a docstring into running text; each block is the text of one paragraph.

    A block ends at a blank line, where the indentation changes, and before a list item or the
    head of a parameter's description (``x (int): the ...``). List marks and heads are dropped;
    deeper lines that follow them continue their text. Code, tables and titles come out as blocks
    of their own, which :func:`paragraphs` refuses.
    """
    lines: list[str] = []
    indent = 0
    hanging = False  # the block's first line had a list mark or a head: deeper lines continue it
    for raw in docstring.expandtabs(4).splitlines():
        text = raw.strip()
        depth = len(raw) - len(raw.lstrip())
        deeper = hanging and depth > indent
        # Inside a sentence "word: more" is no head.
        start = None if deeper and any(lines) else _BULLET.match(text) or _HEAD.match(text)
        if text and lines and not start and (deeper or depth == indent):
            lines.append(text)
            if deeper:  # the rest of this block stands as deep as its second line
                indent, hanging = depth, False
            continue
        yield "\n".join(lines)
        lines, indent, hanging = [], depth, bool(start)
        if text and not _NUMPY_HEAD.match(text):
            lines = [text[start.end() :] if start else text]
    yield "\n".join(lines)


def paragraphs(docstring: str) -> list[str]:
    """The prose paragraphs of one docstring, as plain text on one line each."""
    found = (plain_text(block) for block in blocks(docstring) if not NOT_PROSE.search(block))
    return [text for text in found if is_prose(text)]


def strings(node: ast.AST) -> Iterator[str]:
    """Docstrings of a module, its classes and functions, in file order.

    Also the multi-line strings in expressions and assignments at module level, where the
    documentation of compiled functions stands (``add_docstr(torch.abs, "...")``).
    """
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        docstring = ast.get_docstring(node)
        if docstring:
            yield docstring
    top = isinstance(node, ast.Module)
    for field in ("body", "handlers", "orelse", "finalbody"):
        for position, child in enumerate(getattr(node, field, ())):
            if top and isinstance(child, ast.Assign | ast.Expr):
                is_docstring = position == 0 and isinstance(child.value, ast.Constant)
                for leaf in () if is_docstring else ast.walk(child):
                    text = leaf.value if isinstance(leaf, ast.Constant) else None
                    if isinstance(text, str) and "\n" in text:
                        yield inspect.cleandoc(text)
            elif not isinstance(child, ast.Expr):
                yield from strings(child)


def python_files(distribution: str) -> list[tuple[str, Path]]:
    """Python files of an installed distribution: path inside it, and where it lies; sorted.

    Raises:
        UserError: the distribution is not installed, or does not list its files.
    """
    try:
        files = metadata.files(distribution)
    except metadata.PackageNotFoundError:
        raise UserError(
            f"the corpus needs the distribution {distribution!r}, which is not installed: "
            f"pip install the project's 'experiments' extra"
        ) from None
    if files is None:
        raise UserError(f"the installed distribution {distribution!r} does not list its files")
    return sorted(
        (file.as_posix(), Path(str(file.locate())))
        for file in files
        if file.suffix == ".py"
        and file.name not in SKIPPED_FILES
        and not SKIPPED_FOLDERS.intersection(file.parts)
        and file.parts[0] not in ("..", "bin")
    )


def tree_of(path: Path) -> ast.Module:
    """One Python file, parsed; an empty module where that cannot be.

    Some packages carry templates and files for other Python versions that are no valid Python.
    """
    try:
        source = path.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # "invalid escape sequence"
            return ast.parse(source)
    except (SyntaxError, UnicodeDecodeError, FileNotFoundError):
        return ast.Module([], [])


def prose_of(path: Path) -> list[str]:
    """The prose of one Python file; nothing where it cannot be parsed."""
    return [text for string in strings(tree_of(path)) for text in paragraphs(string)]


def each_file(
    distributions: Sequence[str],
    extract: Callable[[Path], list[Found]],
    workers: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[tuple[str, str, list[Found]]]:
    """What ``extract`` finds in every file: distribution, module and the finds, in order.

    Args:
        distributions: names as on PyPI; all must be installed.
        extract: a function of a module, since processes call it.
        workers: processes that parse.
        progress: called with the numbers of files done and of all files.
    """
    files = [(name, *file) for name in distributions for file in python_files(name)]
    paths = [path for _, _, path in files]
    with ProcessPoolExecutor(workers) if workers > 1 else contextlib.nullcontext() as pool:
        found = pool.map(extract, paths, chunksize=16) if pool else map(extract, paths)
        for done, ((name, module, _), finds) in enumerate(zip(files, found, strict=True), 1):
            yield name, module, finds
            progress(done, len(files))


def read(
    distributions: Sequence[str],
    workers: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Document]:
    """The documents of some installed distributions, in order of distribution and path.

    A paragraph is left out when one with the same words (``prose.same_words``) stands before it,
    in any module; a module without paragraphs is no document. The same files give the same
    documents everywhere. Arguments as of :func:`each_file`.
    """
    seen: set[str] = set()
    documents = []
    for distribution, module, found in each_file(distributions, prose_of, workers, progress):
        new = []
        for text in found:
            key = same_words(text)
            if key not in seen:
                seen.add(key)
                new.append(text)
        if new:
            documents.append(Document(distribution, module, new))
    return documents
