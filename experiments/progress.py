"""Progress that a person can watch: a bar on a terminal, plain lines in a log file."""

from __future__ import annotations

import sys
import time
from datetime import timedelta

from tqdm import tqdm


class Progress:
    """Shows steps, loss, learning rate, tokens per second and the time left, on stderr.

    Args:
        name: of the run.
        steps: of the whole run.
        done: steps already done when this session starts.
        tokens_per_step: tokens (rows' lengths added up) of one update.
        shown: whether to show anything: of several processes, one does.
    """

    def __init__(
        self, name: str, steps: int, done: int, tokens_per_step: int, *, shown: bool = True
    ) -> None:
        self.steps = steps
        self.first = done
        self.tokens_per_step = tokens_per_step
        self.started = time.monotonic()
        self.shown = shown
        tty = shown and sys.stderr.isatty()
        self.bar = tqdm(total=steps, initial=done, unit="step", disable=not tty, leave=True)
        self.say(f"{name}: step {done} of {steps}")

    def say(self, line: str) -> None:
        """Prints a line, above the bar where there is one."""
        if not self.shown:
            return
        if self.bar.disable:
            print(line, file=sys.stderr, flush=True)
        else:
            self.bar.write(line, file=sys.stderr)

    def step(self) -> None:
        """Counts one update."""
        self.bar.update()

    def train(self, step: int, loss: float, lr: float) -> None:
        """Reports the loss and the rate; speed and time left are those of this session."""
        seconds = time.monotonic() - self.started
        done = max(step - self.first, 1)
        speed = done * self.tokens_per_step / max(seconds, 1e-9)
        self.bar.set_postfix_str(f"loss {loss:.4f}, lr {lr:.2e}, {speed:,.0f} tokens/s")
        if self.bar.disable:
            left = timedelta(seconds=round(seconds / done * (self.steps - step)))
            self.say(
                f"step {step}/{self.steps}  loss {loss:.4f}  lr {lr:.2e}  "
                f"{speed:,.0f} tokens/s  {left} left"
            )

    def evaluation(self, step: int, part: str, metrics: dict[str, float]) -> None:
        """Reports the metrics of a held-out part."""
        values = "  ".join(f"{key} {value:.4f}" for key, value in metrics.items())
        self.say(f"step {step}/{self.steps}  {part}: {values}")

    def close(self) -> None:
        """Ends the bar."""
        self.bar.close()
