"""The CPU allocator's own record of a step: a measurement that knows nothing of ours."""

import json
from collections.abc import Callable
from pathlib import Path

from torch.profiler import ProfilerActivity, profile


def peak_of(step: Callable[[], None], folder: Path) -> int:
    """The most bytes that the allocator holds during a step beyond what it held before.

    Workspaces inside operations are in it. Read from the profiler's trace, event by event.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        step()
    record.export_chrome_trace(str(folder / "record.json"))
    events = json.loads((folder / "record.json").read_text())["traceEvents"]
    changes = [event for event in events if event.get("name") == "[memory]"]
    changes.sort(key=lambda event: event["ts"])
    level = peak = 0
    for change in changes:
        level += change["args"]["Bytes"]
        peak = max(peak, level)
    return peak
