"""Where a training session's time goes."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator


class Clock:
    """Seconds by name; each name is started and stopped on its own.

    Attributes:
        spent: seconds of what was started and stopped.
    """

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()
        self._began: dict[str, float] = {}

    def start(self, name: str) -> None:
        """From now on time counts for ``name``."""
        self._began[name] = time.perf_counter()

    def stop(self, name: str) -> float:
        """Seconds since ``name`` was started, which are now counted; 0 if it was not."""
        began = self._began.pop(name, None)
        passed = 0.0 if began is None else time.perf_counter() - began
        self.spent[name] += passed
        return passed

    @contextlib.contextmanager
    def paused(self, name: str) -> Iterator[None]:
        """What happens inside does not count for ``name``."""
        running = name in self._began
        self.stop(name)
        try:
            yield
        finally:
            if running:
                self.start(name)

    def shares(self) -> dict[str, float] | None:
        """Shares of the training time (updates and what lies between them).

        Returns:
            ``optimizer``: in ``step()`` (for methods that update in backward only what that
            leaves); ``outside``: between updates: data, logging, progress. Evaluation and
            checkpoints are in neither. None before the first update.
        """
        total = self.spent["update"] + self.spent["outside"]
        if not self.spent["update"]:
            return None
        return {name: self.spent[name] / total for name in ("optimizer", "outside")}
