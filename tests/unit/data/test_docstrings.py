"""Prose out of docstrings: what is kept, what is dropped, and that nothing is said twice."""

import ast
import sys
from collections.abc import Callable

import pytest

from experiments.data import docstrings, prose
from experiments.errors import UserError

SENTENCE = "The first of these is what the method returns when it was given nothing else to do."


def test_numpy_style_gives_descriptions_without_heads() -> None:
    text = """Return the sum of the elements of an array over the axes that were given.

    Parameters
    ----------
    a : array_like, optional
        The elements to be added, which may be given as anything that can be
        converted to an array.
    axis : None or int or tuple of ints, optional
        Axis or axes along which the sum is performed, all of them by default.

    Examples
    --------
    >>> np.sum([0.5, 1.5])
    2.0
    """
    assert docstrings.paragraphs(text) == [
        "Return the sum of the elements of an array over the axes that were given.",
        "The elements to be added, which may be given as anything that can be converted to an "
        "array.",
        "Axis or axes along which the sum is performed, all of them by default.",
    ]


def test_google_and_hugging_face_styles() -> None:
    text = """Args:
        input (Tensor): The values to be scaled, in which the last axis has as many
            entries as the weight.
        hidden_size (`int`, *optional*, defaults to 4096 (or less)):
            Dimension of the hidden representations that every layer reads and writes.
        flag: Whether to keep the result, so that it can be used again in the next step.
    """
    assert docstrings.paragraphs(text) == [
        "The values to be scaled, in which the last axis has as many entries as the weight.",
        "Dimension of the hidden representations that every layer reads and writes.",
        "Whether to keep the result, so that it can be used again in the next step.",
    ]


def test_lists_and_notes() -> None:
    text = f"""
- {SENTENCE}
* The second item of this list is long enough to run
  over to a line of its own.
.. note:: This note is on the line of its directive, and it is as good as any other text.

.. warning::
    The body of a directive stands deeper, but it is read like the text around it.
"""
    assert docstrings.paragraphs(text) == [
        SENTENCE,
        "The second item of this list is long enough to run over to a line of its own.",
        "This note is on the line of its directive, and it is as good as any other text.",
        "The body of a directive stands deeper, but it is read like the text around it.",
    ]


@pytest.mark.parametrize(
    "block",
    [
        ">>> print('The one that is in the house of the other is not what it was before.')",
        "```python\nThe = of(the, and_a, to, be_or_not) in it and that is what it is to be.\n```",
        "| The name | of the | column and what it has to do with all of the others in it. |",
        "The title of the section that comes after this line is not prose.\n------------------",
        "The set {the, of} and what is in it are not what they were before we had them.",
        "def f(x): return x.the_sum_of_all_of_it(0) + [1, 2, 3] - x[3:5] * 10 == y.",
        "A short one.",
        "the sentence that begins with a small letter was cut out of a longer one before it.",
        "The sentence that has no end because it goes on in a code block of the next line",
        "Hidden dimension size value tensor shape dtype device layout memory format kernel stride.",
    ],
)
def test_other_blocks_are_dropped(block: str) -> None:
    assert docstrings.paragraphs(f"{block}\n\n{SENTENCE}") == [SENTENCE]


@pytest.mark.parametrize(
    ("marked", "plain"),
    [
        (":class:`~torch.nn.Linear` is", "torch.nn.Linear is"),
        (":ref:`the guide <user_guide>` says", "the guide says"),
        (":py:func:`len` and ``code`` and `x`_", "len and code and x"),
        ("see `the page <https://a.b/c>`__ or [another](https://d.e)", "see the page or another"),
        (
            "[`AutoModel`] of *great* and **greater** size [1]_.",
            "AutoModel of great and greater size.",
        ),
        ("at https://a.b/c .", "at."),
        ("a * b and 2**3 and snake_case", "a * b and 2**3 and snake_case"),
    ],
)
def test_mark_up_goes_words_stay(marked: str, plain: str) -> None:
    assert prose.plain_text(marked) == plain


def test_strings_are_docstrings_in_file_order_and_module_level_text() -> None:
    tree = ast.parse(
        '"""module"""\n'
        "class A:\n"
        '    """class"""\n'
        "    def f(self):\n"
        '        """method"""\n'
        '        x = """not\n documentation"""\n'
        "if True:\n"
        "    def g():\n"
        '        """conditional"""\n'
        'add_docstr(f, """added\n text""")\n'
        'ONE_LINE = "not documentation"\n'
    )
    found = ["module", "class", "method", "conditional", "added\ntext"]
    assert list(docstrings.strings(tree)) == found


def test_read_skips_tests_versions_and_repetitions(install: Callable[..., None]) -> None:
    twin = "The hidden size of the {}Model and the number of layers that are in it."
    install(
        "pkgone",
        {
            "pkgone/b.py": f'"""{SENTENCE}\n\n{twin.format("Llama")}"""\n',
            "pkgone/a.py": f'"""{SENTENCE}"""\nraise SystemExit("imported!")\n',
            "pkgone/c.py": f'"""{twin.format("Mistral2")}"""\n',
            "pkgone/tests/test_a.py": '"""The tests are not written for readers of any kind."""\n',
            "pkgone/version.py": '"""The version of the build is what differs between them."""\n',
            "pkgone/broken.py": '"""The template is no Python, so it is left out"""\n{{ }} =\n',
        },
    )
    assert docstrings.read(["pkgone"]) == [
        docstrings.Document("pkgone", "pkgone/a.py", [SENTENCE]),
        docstrings.Document("pkgone", "pkgone/b.py", [twin.format("Llama")]),
    ]
    assert "pkgone" not in sys.modules


def test_workers_change_nothing() -> None:
    assert docstrings.read(["joblib"], workers=2) == docstrings.read(["joblib"], workers=1)


def test_a_missing_distribution_is_named() -> None:
    with pytest.raises(UserError, match="'no-such-distribution', which is not installed"):
        docstrings.read(["no-such-distribution"])
