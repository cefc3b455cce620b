"""`python -m workers.endpoints NAME`: the recall curve of a served model, on standard output.

Exit status: 0 measured (or estimated), 1 the endpoint or the budget does not allow it, 2 the call
or the settings cannot be used, 130 stopped by Ctrl-C. Errors are one line.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from lacuna.contract.errors import LacunaError
from workers.endpoints.budget import Limits
from workers.endpoints.ledger import FileLedger
from workers.endpoints.measurement import Plan, Served, run
from workers.endpoints.settings import Endpoint, Endpoints, SettingsInvalid
from workers.recall.probes import PROBES


def main(arguments: Sequence[str] | None = None) -> int:
    """Run with these arguments, else with the command line's; return the exit status."""
    asked = _parser().parse_args(arguments)
    try:
        endpoint = Endpoints.from_toml(asked.settings.read_text(encoding="utf-8")).find(asked.name)
        plan = Plan(asked.probe, asked.length, asked.depths, asked.groups, asked.seed)
        if asked.dry_run:
            _print_costs(endpoint, plan, as_json=asked.json)
            return 0
        print(_measured(endpoint, plan, asked))
        return 0
    except SettingsInvalid as error:
        return _fail(f"{asked.settings}: {error}", 2)
    except (OSError, UnicodeDecodeError) as error:
        return _fail(f"{error}", 2)
    except LacunaError as error:
        return _fail(f"{error.code}: {error.detail}", 1)
    except KeyboardInterrupt:
        return _fail("stopped; the same command goes on from here", 130)


def _measured(endpoint: Endpoint, plan: Plan, asked: argparse.Namespace) -> str:
    kept = asked.ledger or Path(f"{endpoint.name}.answers.jsonl")
    try:
        ledger = FileLedger(kept)
    except BlockingIOError:
        raise BlockingIOError(f"another process measures with {kept}") from None
    try:
        found = run(
            endpoint,
            endpoint.key(os.environ.get),
            plan,
            Limits(asked.max_calls, asked.max_tokens, asked.max_cost),
            ledger,
            _progress if sys.stderr.isatty() else None,
        )
    finally:
        ledger.close()
    return found.model_dump_json(indent=2) if asked.json else _text(found)


def _text(found: Served) -> str:
    """The result for people to read."""
    curve = found.curve
    tested = f"{curve.verdict} (p = {curve.p:.3g})" if curve.p is not None else curve.verdict
    repeat = "not read" if curve.controls.repeat is None else f"{curve.controls.repeat:.4f}"
    lines = [
        f"{found.endpoint}: {found.model}, {found.probe}, {found.length} tokens, "
        f"{curve.groups} groups ({found.groups_lost} lost)",
        f"read by {found.way} (rung {curve.rung}); tokens counted by {found.counts_by}",
        *(f"  not {way}: {why}" for way, why in found.why_not_higher.items()),
        "",
        f"{'depth':>6} {'token':>8} {'recall':>7}  95% band of the shape",
    ]
    low, high = curve.simultaneous_low, curve.simultaneous_high
    for i, depth in enumerate(curve.depth):
        band = "none below 16 groups" if not low or not high else f"{low[i]:.3f} to {high[i]:.3f}"
        lines.append(f"{depth:6.2f} {curve.position[i]:8.0f} {curve.probability[i]:7.3f}  {band}")
    lines += [
        "",
        f"verdict: {tested}; largest less smallest {curve.spread:.3f}",
        f"controls: closed book {curve.controls.closed_book:.3f}, fact alone "
        f"{curve.controls.oracle:.3f}, same prompt again differs by {repeat}",
        f"answers beyond the server's list of tokens: {found.censored:.1%}",
        f"calls {found.calls:,}, from earlier starts {found.replayed:,}; tokens "
        f"{found.prompt_tokens:,} in, {found.generated_tokens:,} out; cost {found.cost:.4g}",
        "density: none, since no difference between depths is certain"
        if found.density is None
        else f"density: {found.density}",
    ]
    return "\n".join(lines)


def _print_costs(endpoint: Endpoint, plan: Plan, *, as_json: bool) -> None:
    least = plan.cost(endpoint, counts_by_usage=False, text=False)
    most = plan.cost(endpoint, counts_by_usage=True, text=True)
    if as_json:
        print(json.dumps({"least": asdict(least), "most": asdict(most)}, indent=2))
        return
    print(f"{'':9} {'calls':>8} {'tokens in':>12} {'tokens out':>11} {'cost':>9} {'minutes':>8}")
    for name, one in (("at least", least), ("at most", most)):
        print(
            f"{name:9} {one.calls:8,} {one.prompt_tokens:12,} {one.generated_tokens:11,} "
            f"{one.cost:9.4g} {one.minutes:8.1f}"
        )
    print("most: no route of the server counts tokens, and only texts can be read")


def _progress(done: int, of: int) -> None:
    print(f"\r{done:,} of {of:,} questions", end="" if done < of else "\n", file=sys.stderr)


def _fail(reason: str, status: int) -> int:
    print(" ".join(reason.split()), file=sys.stderr)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m workers.endpoints",
        description="Measure how well a served model recalls a fact, by its depth in the prompt.",
    )
    parser.add_argument("name", help="of the endpoint in the settings, with or without `endpoint:`")
    parser.add_argument("--settings", type=Path, default=Path("endpoints.toml"))
    parser.add_argument("--probe", choices=sorted(PROBES), default="facts")
    parser.add_argument("--length", type=_between(64, 2**20), default=1024, help="tokens")
    parser.add_argument("--depths", type=_between(3, 10), default=5)
    parser.add_argument("--groups", type=_between(1, 512), default=24, help="16 at least for bands")
    parser.add_argument("--seed", type=_between(0, 2**31), default=0)
    parser.add_argument("--max-calls", type=_between(1, 10**9), help="of all starts together")
    parser.add_argument("--max-tokens", type=_between(1, 10**15), help="in and out together")
    parser.add_argument("--max-cost", type=_price, help="in the currency of the settings' prices")
    parser.add_argument("--ledger", type=Path, help="keeps answers; default NAME.answers.jsonl")
    parser.add_argument("--dry-run", action="store_true", help="print the cost, call nothing")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _between(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"must be a whole number from {least} to {most}")
        return int(text)

    return number


def _price(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1e9:
        raise argparse.ArgumentTypeError("must be a number above 0")
    return value


if __name__ == "__main__":
    sys.exit(main())
