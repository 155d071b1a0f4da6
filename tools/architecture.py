"""Draws docs/architecture.svg from the code: which room looks into which.

    python tools/architecture.py

Imports are read with ast (nothing is imported), the workflow's calls from its shell commands. The
edge list goes to docs/architecture.json, which a test compares with the code.
"""

import ast
import json
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
PICTURE = REPO / "docs" / "architecture.svg"
EDGES = REPO / "docs" / "architecture.json"

ROOMS = ("workflow", "notebooks", "experiments", "memopt")  # from the street door inwards
# A module that the workflow's shell commands or helpers name, such as `experiments.suites`.
COMMAND = re.compile(r"\b(?:experiments|memopt|figlib)\.\w+(?!\w*/)")
TASKS = (
    "pretrain",
    "finetune",
    "instruct",
)  # what `experiments.{params.task}` stands for in the workflow


def imported(text: str, module: str, is_package: bool) -> Iterator[str]:
    """The full names of all that a module's source imports, relative ones resolved."""
    for node in ast.walk(ast.parse(text, filename=module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")
            base = base[: len(base) - node.level + is_package] if node.level else []
            target = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{target}.{alias.name}" for alias in node.names)


def notebook_code(path: Path) -> str:
    """The Python of a notebook's code cells, without magics."""
    cells = json.loads(path.read_text())["cells"]
    lines = (line for cell in cells if cell["cell_type"] == "code" for line in cell["source"])
    return "\n".join(line.rstrip("\n") for line in lines if not line.startswith(("%", "!")))


def modules() -> Iterator[tuple[str, str, bool]]:
    """Every module of the project: its dotted name, its source, whether it is a package."""
    for root, place in (("memopt", REPO), ("experiments", REPO), ("figlib", REPO / "notebooks")):
        for path in sorted((place / root).rglob("*.py")):
            parts = path.relative_to(place).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            yield ".".join(parts[:-1] if is_package else parts), path.read_text(), is_package
    for path in sorted((REPO / "notebooks").glob("*.ipynb")):
        yield f"notebooks.{path.stem}", notebook_code(path), False


def box(module: str) -> str | None:
    """The box that a module is drawn in, as `room.box`; None for other people's libraries."""
    parts = module.split(".")
    if parts[0] == "figlib":
        return "notebooks.figlib"
    if parts[0] not in ROOMS:
        return None
    return ".".join(parts[:2])


def called(known: set[str]) -> set[str]:
    """The boxes that the workflow starts by command line: modules and notebooks."""
    files = [p for p in (REPO / "workflow").rglob("*") if p.suffix in (".smk", ".py")]
    text = "".join(p.read_text() for p in [REPO / "workflow" / "Snakefile", *files])
    names = set(COMMAND.findall(text))
    if "experiments.{params.task}" in text:
        names |= {f"experiments.{task}" for task in TASKS}
    stems = {box.split(".")[1] for box in known if box.startswith("notebooks.")}
    names |= {f"notebooks.{stem}" for stem in stems if f'"{stem}"' in text}
    return {box(name) for name in names} & known


def graph() -> tuple[list[tuple[str, str]], dict[str, list[str]]]:
    """The edges between boxes, and the foreign libraries that each room imports."""
    sources = list(modules())
    known = {box(name) for name, _, _ in sources}
    edges: set[tuple[str, str]] = set()
    foreign: dict[str, set[str]] = {room: set() for room in ROOMS}
    for name, text, is_package in sources:
        here = box(name)
        for target in imported(text, name, is_package):
            there = box(target)
            if there is None:
                foreign[here.split(".")[0]].add(target.split(".")[0])
            else:
                edges.add((here, there if there in known else there.split(".")[0]))
    edges |= {("workflow", there) for there in called(known)}
    libraries = {
        room: sorted(found - set(sys.stdlib_module_names)) for room, found in foreign.items()
    }
    return sorted((a, b) for a, b in edges if a != b), libraries


def document() -> str:
    """The text of docs/architecture.json."""
    edges, libraries = graph()
    return json.dumps({"edges": edges, "libraries": libraries}, indent=1) + "\n"


def reachable(edges: set[tuple[str, str]], start: str) -> set[str]:
    """Every box that can be reached from `start` by one or more edges."""
    found: set[str] = set()
    stack = [start]
    while stack:
        here = stack.pop()
        new = {b for a, b in edges if a == here} - found
        found |= new
        stack += new
    return found


def cycles(edges: set[tuple[str, str]]) -> set[str]:
    """The boxes that, in the end, look into themselves; there should be none."""
    return {a for a, _ in edges if a in reachable(edges, a)}


def reduced(edges: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """The edges without those that follow from a longer way round."""
    return {(a, b) for a, b in edges if b not in reachable(edges - {(a, b)}, a)}


def rows(edges: set[tuple[str, str]], room: str) -> list[list[str]]:
    """The boxes of a room in rows: each below all boxes of the room that look into it."""
    boxes = sorted({name for edge in edges for name in edge if name.split(".")[0] == room})
    inner = {(a, b) for a, b in edges if a in boxes and b in boxes}

    def depth(name: str) -> int:
        return max((1 + depth(a) for a, b in inner if b == name), default=0)

    depths = {name: depth(name) for name in boxes}
    count = max(depths.values(), default=-1) + 1
    return [[name for name in boxes if depths[name] == d] for d in range(count)]


def spread(wished: list[float]) -> list[float]:
    """Places in 0..1 for boxes in this order: as near to their wishes as boxes have room."""
    gap = min(0.15, 1 / len(wished))
    places = [wished[0]]
    for x in wished[1:]:
        places.append(max(x, places[-1] + gap))
    shift = (sum(wished) - sum(places)) / len(wished)
    shift = min(max(shift, gap / 2 - places[0]), 1 - gap / 2 - places[-1])
    return [x + shift for x in places]


def place(edges: set[tuple[str, str]]) -> tuple[dict[str, tuple[float, float]], dict[str, list]]:
    """Positions of all boxes (x in 0..1, y downwards in rows) and the span of rows of each room."""
    position: dict[str, tuple[float, float]] = {}
    spans: dict[str, list] = {}
    y = 0.0
    for room in ROOMS:
        spans[room] = [y]
        for row in rows(edges, room):
            # Under the middle of those above that look into it, so that few lines cross.
            def above(name: str) -> float:
                seen = [position[a][0] for a, b in edges if b == name and a in position]
                return sum(seen) / len(seen) if seen else 0.5

            wished = sorted((above(name), name) for name in row)
            for x, (_, name) in zip(spread([x for x, _ in wished]), wished, strict=True):
                position[name] = (x, y)
            y += 1
        spans[room].append(y - 1)
        y += 0.75
    return position, spans


def draw(edges: set[tuple[str, str]], libraries: dict[str, list[str]], path: Path) -> None:
    """Draws the rooms as bands, their modules as boxes, and the edges left by `reduced`."""
    import matplotlib

    matplotlib.use("svg" if path.suffix == ".svg" else "agg")
    matplotlib.rcParams.update({"svg.hashsalt": "memopt", "font.size": 9})
    import matplotlib.pyplot as plt
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

    edges = {(a, b) for a, b in edges if not (a + b).count(".errors")}  # everyone's, hence clutter
    colours = dict(zip(ROOMS, ("#CC79A7", "#E69F00", "#0072B2", "#009E73"), strict=True))
    kept = reduced(edges)
    position, spans = place(kept)
    bottom = max(y for _, y in position.values())
    figure, axes = plt.subplots(figsize=(11, 0.72 * (bottom + 2)))
    axes.set(xlim=(-0.19, 1.01), ylim=(bottom + 0.6, -0.6))
    axes.axis("off")
    for room, (top, end) in spans.items():
        band = FancyBboxPatch(
            (-0.18, top - 0.36), 1.18, end - top + 0.72, boxstyle="round,pad=0,rounding_size=0.02",
            mutation_aspect=20, facecolor=colours[room], alpha=0.12, linewidth=0,
        )  # fmt: skip
        axes.add_patch(band)
        axes.text(-0.17, top - 0.08, f"{room}/", color=colours[room], weight="bold", size=12)
        stands_on = textwrap.fill(", ".join(libraries[room]), 30)
        axes.text(-0.17, top + 0.12, stands_on, color="#555555", size=7, va="top")
    for a, b in sorted(kept):
        (x0, y0), (x1, y1) = position[a], position[b]
        arrow = FancyArrowPatch(
            (x0, y0 + 0.2), (x1, y1 - 0.2), arrowstyle="-|>", mutation_scale=8, linewidth=0.9,
            color=colours[a.split(".")[0]], connectionstyle="arc3,rad=0.04", alpha=0.75,
        )  # fmt: skip
        axes.add_patch(arrow)
    for name, (x, y) in position.items():
        room = name.split(".")[0]
        label = name if name == room else name.split(".", 1)[1]
        axes.text(
            x, y, label, ha="center", va="center", zorder=3,
            bbox={"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": colours[room]},
        )  # fmt: skip
    figure.savefig(
        path,
        bbox_inches="tight",
        dpi=150,
        metadata={"Date": None} if path.suffix == ".svg" else None,
    )
    plt.close(figure)


def main() -> None:
    """The command line; an argument, if any, is another place for the picture (say a PNG)."""
    edges, libraries = graph()
    edge_set = set(edges)
    if looking := cycles(edge_set):
        sys.exit(f"error: rooms look at each other in a circle: {', '.join(sorted(looking))}")
    if len(sys.argv) > 1:
        draw(edge_set, libraries, Path(sys.argv[1]))
        return
    draw(edge_set, libraries, PICTURE)
    EDGES.write_text(document())


if __name__ == "__main__":
    main()
