"""docs/conformance.md is the catalog as the suite holds it; the catalog's words are known ones."""

from pathlib import Path

from memopt.capabilities import CAPABILITIES
from memopt.catalog import METHODS
from tools import conformance


def test_document_is_fresh(repo: Path) -> None:
    """The suite holds outcomes to the catalog, so the catalog says what a new run would find."""
    wanted = conformance.document(conformance.declared())
    assert conformance.DOCUMENT.read_text() == wanted, "run python tools/conformance.py"


def test_limits_are_known_and_have_reasons() -> None:
    for method in METHODS.values():
        assert set(method.limits) <= set(CAPABILITIES), method.name
        for reason in method.limits.values():
            assert len(reason) > 20 and not reason.endswith("."), (method.name, reason)
