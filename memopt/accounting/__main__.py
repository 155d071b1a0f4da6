"""``python -m memopt.accounting llama_7b --method gwt --level 2 --dtype bfloat16``."""

from __future__ import annotations

import argparse
import ast
import json
import sys
from typing import TYPE_CHECKING, Any

from memopt import catalog
from memopt.accounting import shapes
from memopt.accounting.cuda import require_cuda, step_peak
from memopt.accounting.predict import DTYPES, predict
from memopt.accounting.real import loss_of
from memopt.accounting.report import Report
from memopt.accounting.units import CONVENTIONS, convention, convert, parse
from memopt.errors import UnsupportedCombination, unknown

if TYPE_CHECKING:
    from memopt.accounting.fit import Step

EPILOG = """\
Every other --key value pair is an argument of the method's constructor, for example
  python -m memopt.accounting llama_7b --method gwt --level 2 --storage bfloat16
  python -m memopt.accounting llama_1b --compare adamw,gwt,coap --rank 512 --convention coap
With --batch and --seq the whole step is counted, activations too, and with --memory the largest
batch that fits:
  python -m memopt.accounting llama_7b --method gwt --level 2 --dtype bfloat16 --batch 4 \\
      --seq 256 --checkpointing --memory 24GB --compare lomo,adalomo
"""
WORK = ("batch", "seq", "micro_batches", "checkpointing", "attention")


def main(argv: list[str] | None = None) -> int:
    """Runs the command; 0 on success, 2 with one line on stderr for bad input."""
    parser = _parser()
    options, rest = parser.parse_known_args(argv)
    try:
        _check(options)
        arguments = _method_arguments(rest)
        names = [name for name in (options.method, *options.compare.split(",")) if name]
        if not names:
            raise ValueError("name a method with --method, or several with --compare a,b,c")
        everything = list(catalog.METHODS) if "all" in names else []
        methods = list(dict.fromkeys(name for name in (*names, *everything) if name != "all"))
        chosen = _arguments_of(options, methods, arguments, strict="all" not in names)
        if options.batch is None:
            return _print(options, [_report(options, m, own) for m, own in chosen.items()])
        return _print_steps(options, chosen)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m memopt.accounting",
        description="Bytes of weights, gradients and optimizer state by formula; of a whole step.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "model", help=f"config.json, its directory, or one of: {', '.join(shapes.names())}"
    )
    parser.add_argument("--method", help=f"one of: {', '.join(catalog.METHODS)}")
    parser.add_argument(
        "--compare", default="", metavar="A,B,C", help="several methods, one row each; or all"
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
    parser.add_argument("--batch", type=int, help="sequences in a micro-batch: counts activations")
    parser.add_argument("--seq", type=int, help="tokens in a sequence")
    parser.add_argument("--micro-batches", type=int, default=1, help="in one step (default 1)")
    parser.add_argument(
        "--checkpointing", action="store_true", help="recompute activations in backward"
    )
    parser.add_argument("--attention", default="sdpa", help="sdpa (default) or eager")
    parser.add_argument("--memory", metavar="24GB", help="does it fit, and with which batch")
    parser.add_argument(
        "--cuda", action="store_true", help="also run the step on this machine's GPU, and measure"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, bytes as integers")
    return parser


def _check(options: argparse.Namespace) -> None:
    """Options that need each other, and those that every method shares."""
    if (options.batch is None) != (options.seq is None):
        raise ValueError("--batch and --seq belong together: activations need both")
    if options.memory is not None:
        options.memory = parse(options.memory)
        if options.batch is None:
            raise ValueError("--memory needs --batch and --seq: activations decide what fits")
    if options.cuda:
        if options.batch is None:
            raise ValueError("--cuda needs --batch and --seq: it runs a whole step")
        if options.dtype == "mixed":
            raise ValueError("--cuda runs float32 or bfloat16: mixed precision is predicted only")
        require_cuda()
    if options.convention and options.batch is not None:
        raise ValueError("--convention counts no activations: leave out --batch and --seq")
    if options.dtype is not None and options.dtype not in DTYPES:
        raise unknown("dtype", options.dtype, DTYPES)
    word = options.targets
    options.targets = word if word in ("auto", "all-linear") else word.split(",")
    shapes.module_of(options.model)  # its errors first: they are no method's fault


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


def _arguments_of(
    options: argparse.Namespace, methods: list[str], given: dict[str, Any], *, strict: bool
) -> dict[str, dict[str, Any]]:
    """Each method with those of the arguments that it knows.

    Raises:
        ValueError: an argument that no method knows; with ``strict``, one that a method lacks
            (otherwise that method is left out, with a line on stderr).
    """
    word = options.convention
    by_rule = {"storage": convention(word).storage} if word else {}
    known = {method: catalog.get(method).arguments() for method in methods}
    everything = sorted({name for names in known.values() for name in names})
    for key in given:
        if key not in everything and key != "storage":
            raise unknown(f"argument of {', '.join(methods)}", key, everything)
    chosen = {}
    for method in methods:
        own = {key: value for key, value in given.items() if key in known[method]}
        if known[method].get("storage") == "float32":  # a method's own (8-bit Adam's) stays
            own = by_rule | own
        try:
            predict(options.model, method, options.dtype, targets=options.targets, **own)
        except (ValueError, TypeError) as error:
            if strict:
                raise ValueError(f"{method}: {error}") from None
            print(f"left out: {method}: {error}", file=sys.stderr)
        else:
            chosen[method] = own
    return chosen


def _report(options: argparse.Namespace, method: str, own: dict[str, Any]) -> Report:
    dtype = options.dtype
    if options.convention:
        dtype = dtype or convention(options.convention).dtype
    return predict(options.model, method, dtype, targets=options.targets, **own)


def _print(options: argparse.Namespace, reports: list[Report]) -> int:
    """What training holds, without activations."""
    if options.json:
        content = [report.to_dict() for report in reports]
        print(json.dumps(content if len(content) > 1 else content[0], indent=2))
        return 0
    from memopt.accounting import tables

    console = tables.console()
    console.print(reports[0] if len(reports) == 1 else tables.comparison(options.model, reports))
    if options.convention:
        rule = convention(options.convention)
        console.print(f"counted as {rule.name}: {' + '.join(rule.counts)} in {rule.unit}")
        for report in reports:
            figure = convert(report.counted(rule), rule.unit)
            console.print(f"  {report.method}: {figure:.3f} {rule.unit}")
    return 0


def _print_steps(options: argparse.Namespace, chosen: dict[str, dict[str, Any]]) -> int:
    """Whole steps, and whether they fit."""
    from memopt.accounting import fit

    work = {name: getattr(options, name) for name in WORK}
    dtype = options.dtype or "float32"
    steps = [
        fit.step(options.model, method, dtype, targets=options.targets, **work, **own)
        for method, own in chosen.items()
    ]
    batches = None if options.memory is None else [s.largest_batch(options.memory) for s in steps]
    measured = None
    if options.cuda:
        measured = [_on_gpu(options, s, own) for s, own in zip(steps, chosen.values(), strict=True)]
    if options.json:
        content = [step.to_dict() for step in steps]
        for row, largest in zip(content, batches or [], strict=False):
            row |= {"memory": options.memory, "largest_batch": largest}
        for row, peak in zip(content, measured or [], strict=False):
            row["cuda"] = peak
        print(json.dumps(content if len(content) > 1 else content[0], indent=2))
        return 0
    from memopt.accounting import tables

    console = tables.console()
    console.print(tables.whole_steps(options.model, steps, options.memory, batches, measured))
    if batches is not None:
        for line in tables.verdict(steps, options.memory, batches):
            console.print(line)
    return 0


def _on_gpu(options: argparse.Namespace, whole: Step, own: dict[str, Any]) -> int | None:
    """The peak of the step on the GPU; None, with a line on stderr, where it does not fit."""
    work, method = whole.workload, whole.report.method
    try:
        return step_peak(
            work.model,
            work.inputs,
            method,
            whole.report.dtype,
            micro_batches=work.micro_batches,
            targets=options.targets,
            loss=lambda model, batch: loss_of(model(**batch)),
            **own,
        )
    except UnsupportedCombination as error:
        print(f"not measured: {error}", file=sys.stderr)
        return None


if __name__ == "__main__":
    sys.exit(main())
