"""What counts as English prose, and when two paragraphs say the same."""

from __future__ import annotations

import re

MIN_CHARACTERS = 60
MIN_PLAIN_SHARE = 0.93  # letters, blanks and plain punctuation among all characters
MIN_FUNCTION_WORDS = 0.2  # of all words

FUNCTION_WORDS = frozenset(
    """
    a about after all also an and any are as at be because been before both but by can could do
    does each either for from given had has have how if in into is it its may more most must no
    not of on one only or other otherwise over same should so some such than that the their them
    then there these they this those to two under until used using was we were what when where
    whether which while will with within without would you your
    """.split()  # noqa: SIM905
)
PLAIN_MARKS = frozenset(" ,.;:'\"()-!?")
END_MARKS = ".!?"

# Mark-up of which one group is kept: roles, named links, cross references, emphasis.
_KEPT = (
    re.compile(r":(?:[a-z]+:)?[a-z]+:`[~!]?(?:([^`<]+?)\s*<[^`>]+>|([^`]+))`"),
    re.compile(r"`([^`<]+?)\s*<[^`>]*>`__?|\[([^\]]+)\]\([^)]*\)"),
    re.compile(r"\[`[~!]?([^`\]]+)`\]()"),
    re.compile(r"(?<![\w*])(?:\*\*([^*\s][^*]*)\*\*|\*([^*\s][^*]*)\*)(?![\w*])"),
)
_DROPPED = re.compile(
    r"\s*\[(?:[A-Za-z]*\d+|\^\w+)\]_?"  # citations and footnotes
    r"|https?://\S+"
    r"|`+_{0,2}"
)
_BLANK_BEFORE_MARK = re.compile(r"\s+(?=[.,;:!?)])")
_ORDINARY_WORD = re.compile(r"[A-Za-z]?[a-z'’-]*")


def plain_text(text: str) -> str:
    """Takes the mark-up of reStructuredText and Markdown out of a text and keeps its words."""
    for pattern in _KEPT:
        text = pattern.sub(lambda match: match[1] or match[2], text)
    return _BLANK_BEFORE_MARK.sub("", " ".join(_DROPPED.sub("", text).split()))


def is_prose(text: str) -> bool:
    """Whether a paragraph is English prose: long, ended, mostly letters, with function words."""
    if len(text) < MIN_CHARACTERS or text[-1] not in END_MARKS or not text[0].isupper():
        return False
    if sum(c.isalpha() or c in PLAIN_MARKS for c in text) < MIN_PLAIN_SHARE * len(text):
        return False
    words = [word.lower() for word in _bare_words(text)]
    return sum(word in FUNCTION_WORDS for word in words) >= MIN_FUNCTION_WORDS * len(words)


def same_words(text: str) -> str:
    """What two paragraphs share that differ only in identifiers, numbers, case or punctuation.

    Packages describe many classes with one template ("The hidden size of the LlamaModel.").
    Without this, such twins would stand on both sides of the split.
    """
    return " ".join(w.lower() if _ORDINARY_WORD.fullmatch(w) else "#" for w in _bare_words(text))


def _bare_words(text: str) -> list[str]:
    return [word.strip(",.;:()\"'!?") for word in text.split()]
