"""``python -m memopt.accounting llama_7b --method gwt --level 2 --dtype bfloat16``."""

from __future__ import annotations

import argparse
import ast
import json
import sys
from typing import TYPE_CHECKING, Any

from memopt import catalog
from memopt.accounting import shapes
from memopt.accounting.predict import DTYPES, predict
from memopt.accounting.report import Report
from memopt.accounting.units import CONVENTIONS, PARTS, convention, convert, table_unit
from memopt.errors import unknown

if TYPE_CHECKING:
    from rich.table import Table

EPILOG = """\
Every other --key value pair is an argument of the method's constructor, for example
  python -m memopt.accounting llama_7b --method gwt --level 2 --storage bfloat16
  python -m memopt.accounting llama_1b --compare adamw,gwt,coap --rank 512 --convention coap
"""


def main(argv: list[str] | None = None) -> int:
    """Runs the command; 0 on success, 2 with one line on stderr for bad input."""
    parser = _parser()
    options, rest = parser.parse_known_args(argv)
    try:
        arguments = _method_arguments(rest)
        methods = [name for name in (options.method, *options.compare.split(",")) if name]
        if not methods:
            raise ValueError("name a method with --method, or several with --compare a,b,c")
        reports = _reports(options, list(dict.fromkeys(methods)), arguments)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.json:
        content = [report.to_dict() for report in reports]
        print(json.dumps(content if len(content) > 1 else content[0], indent=2))
        return 0
    return _show(options, reports)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m memopt.accounting",
        description="Bytes of weights, gradients and optimizer state, by formula.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "model", help=f"config.json, its directory, or one of: {', '.join(shapes.names())}"
    )
    parser.add_argument("--method", help=f"one of: {', '.join(catalog.METHODS)}")
    parser.add_argument(
        "--compare", default="", metavar="A,B,C", help="several methods, one row each"
    )
    parser.add_argument(
        "--dtype", help=f"of weights and gradients: {', '.join(DTYPES)} (default float32)"
    )
    parser.add_argument(
        "--targets",
        default="auto",
        help="what the method treats: auto, all-linear, or parts of module names: attn,mlp",
    )
    parser.add_argument(
        "--convention",
        help=f"count as a paper does, in its precision and unit: {', '.join(CONVENTIONS)}",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, bytes as integers")
    return parser


def _method_arguments(words: list[str]) -> dict[str, Any]:
    """``--key value`` and ``--key=value`` pairs; numbers, True and None are read as Python's."""
    arguments: dict[str, Any] = {}
    queue = [
        part for word in words for part in (word.split("=", 1) if word[:2] == "--" else [word])
    ]
    while queue:
        key = queue.pop(0)
        if not key.startswith("--") or not queue or queue[0].startswith("--"):
            raise ValueError(f"expected --key value pairs for the method, could not read {key!r}")
        try:
            value = ast.literal_eval(queue[0])
        except (ValueError, SyntaxError):
            value = queue[0]
        arguments[key[2:].replace("-", "_")] = value
        queue.pop(0)
    return arguments


def _reports(
    options: argparse.Namespace, methods: list[str], arguments: dict[str, Any]
) -> list[Report]:
    """One report a method; in a comparison a method gets those arguments that it knows."""
    dtype = options.dtype
    if options.convention:
        rule = convention(options.convention)
        dtype = dtype or rule.dtype
        arguments = {"storage": rule.storage} | arguments
    known = {method: catalog.get(method).arguments() for method in methods}
    everything = sorted({name for names in known.values() for name in names})
    for key in arguments:
        if key not in everything and key != "storage":
            raise unknown(f"argument of {', '.join(methods)}", key, everything)
    word = options.targets
    targets = word if word in ("auto", "all-linear") else word.split(",")
    shapes.module_of(options.model)  # its errors first: they are no method's fault
    reports = []
    for method in methods:
        own = {key: value for key, value in arguments.items() if key in known[method]}
        try:
            reports.append(predict(options.model, method, dtype, targets=targets, **own))
        except ValueError as error:
            raise ValueError(f"{method}: {error}") from None
    return reports


def _show(options: argparse.Namespace, reports: list[Report]) -> int:
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        print(
            "error: the table needs the package rich (pip install rich); or use --json",
            file=sys.stderr,
        )
        return 2
    console = Console()
    console.print(reports[0] if len(reports) == 1 else _comparison(options.model, reports))
    if options.convention:
        rule = convention(options.convention)
        console.print(f"counted as {rule.name}: {' + '.join(rule.counts)} in {rule.unit}")
        for report in reports:
            figure = convert(report.counted(rule), rule.unit)
            console.print(f"  {report.method}: {figure:.3f} {rule.unit}")
    return 0


def _comparison(model: str, reports: list[Report]) -> Table:
    """One row a method, with the total as a share of the first one's."""
    from rich.table import Table

    first = reports[0]
    unit = table_unit(max(report.total for report in reports))
    table = Table(title=f"{model} · {first.elements / 1e6:,.2f} M weights · {first.dtype}, {unit}")
    table.add_column("method")
    for heading in (*PARTS, "total", f"of {first.method}"):
        table.add_column(heading, justify="right")
    for report in reports:
        figures = [getattr(report, part) for part in (*PARTS, "total")]
        cells = [f"{convert(value, unit):,.3f}" for value in figures]
        table.add_row(report.method, *cells, f"{report.total / first.total:.1%}")
    return table


if __name__ == "__main__":
    sys.exit(main())
