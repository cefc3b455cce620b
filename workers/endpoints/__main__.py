"""`python -m workers.endpoints NAME`: the profile of a served model, without a service.

The same measurement as a job's, with its answers in a file. Exit status: 0 measured (or estimated),
1 the endpoint or the budget does not allow it, 2 the call or the settings cannot be used, 130
stopped by Ctrl-C. Errors are one line.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lacuna.contract.endpoints import PREFIX, EndpointCost
from lacuna.contract.errors import LacunaError
from lacuna.contract.profile_requests import ProfileRequest
from lacuna.contract.profiles import Profile
from lacuna.contract.recall import RecallCurve
from lacuna.contract.validation import number_of, whole_of
from service.endpoints.costs import estimate
from service.endpoints.table import Endpoint, Endpoints, SettingsInvalid
from workers.endpoints.ledger import FileLedger
from workers.endpoints.measurement import open_reader, plan, run
from workers.endpoints.profile import profile_body, profile_envelope, profile_of
from workers.recall.probes import PROBES


def main(arguments: Sequence[str] | None = None) -> int:
    """Run with these arguments, else with the command line's; return the exit status."""
    asked = _parser().parse_args(arguments)
    try:
        endpoint = Endpoints.from_toml(asked.settings.read_text(encoding="utf-8")).find(asked.name)
        request = _request(endpoint, asked)
        if asked.dry_run:
            _print_costs(endpoint, request, as_json=asked.json)
            return 0
        found = _measured(endpoint, request, asked.ledger)
        print(found.model_dump_json(indent=2) if asked.json else "\n".join(_text(found)))
        return 0
    except SettingsInvalid as error:
        return _fail(f"{asked.settings}: {error}", 2)
    except (OSError, UnicodeDecodeError) as error:
        return _fail(f"{error}", 2)
    except LacunaError as error:
        return _fail(f"{error.code}: {error.detail}", 1)
    except KeyboardInterrupt:
        return _fail("stopped; the same command goes on from here", 130)


def _request(endpoint: Endpoint, asked: argparse.Namespace) -> ProfileRequest:
    limits = {"max_calls": asked.max_calls, "max_tokens": asked.max_tokens}
    given: dict[str, Any] = {
        "model": f"{PREFIX}{endpoint.name}",
        "sequence_length": asked.length,
        "seed": asked.seed,
        "recall": {"probes": [asked.probe], "depths": asked.depths, "groups": asked.groups},
        "budget": {**limits, "max_cost": asked.max_cost},
    }
    return ProfileRequest.model_validate(given)


def _measured(endpoint: Endpoint, request: ProfileRequest, file: Path | None) -> Profile:
    kept = file or Path(f"{endpoint.name}.answers.jsonl")
    try:
        ledger = FileLedger(kept)
    except BlockingIOError:
        raise BlockingIOError(f"another process measures with {kept}") from None
    started = time.monotonic()
    try:
        with open_reader(endpoint, endpoint.key(os.environ.get), request, ledger) as reader:
            planned = plan(reader, request)
            found_out = time.monotonic() - started
            found = run(planned, on_share=_progress, check=_go_on)
            envelope = profile_envelope(planned, found, found_out)
            return profile_of(profile_body(planned, found), envelope)
    finally:
        ledger.close()


def _text(found: Profile) -> Iterator[str]:
    """The result for people to read."""
    served, spent = found.endpoint, found.spending
    assert served is not None
    assert spent is not None
    yield f"{found.model.id}: {served.model}, {found.request.sequence_length} tokens"
    yield f"tokens counted by {served.counts_by}"
    for way, why in served.why_not_higher.items():
        yield f"  not {way}: {why}"
    for probe, curve in (found.recall or {}).items():
        yield from ("", f"{probe}, read by {served.ways[probe]} (rung {curve.rung})", *_rows(curve))
        yield f"answers beyond the server's list of tokens: {served.censored[probe]:.1%}"
    yield (
        f"calls {spent.calls:,}, from earlier starts {spent.replayed:,}; tokens "
        f"{spent.prompt_tokens:,} in, {spent.generated_tokens:,} out; cost {spent.cost:.4g}"
    )


def _rows(curve: RecallCurve) -> Iterator[str]:
    tested = f"{curve.verdict} (p = {curve.p:.3g})" if curve.p is not None else curve.verdict
    repeat = "not read" if curve.controls.repeat is None else f"{curve.controls.repeat:.4f}"
    low, high = curve.simultaneous_low, curve.simultaneous_high
    yield f"{'depth':>6} {'token':>8} {'recall':>7}  95% band of the shape"
    for i, depth in enumerate(curve.depth):
        band = "none below 16 groups" if not low or not high else f"{low[i]:.3f} to {high[i]:.3f}"
        yield f"{depth:6.2f} {curve.position[i]:8.0f} {curve.probability[i]:7.3f}  {band}"
    yield f"verdict: {tested}; largest less smallest {curve.spread:.3f}; {curve.groups} groups"
    yield (
        f"controls: closed book {curve.controls.closed_book:.3f}, fact alone "
        f"{curve.controls.oracle:.3f}, same prompt again differs by {repeat}"
    )


def _print_costs(endpoint: Endpoint, request: ProfileRequest, *, as_json: bool) -> None:
    found = estimate(request, endpoint)
    if as_json:
        print(found.model_dump_json(indent=2))
        return
    print(f"{'':9} {'calls':>8} {'tokens in':>12} {'tokens out':>11} {'cost':>9} {'minutes':>8}")
    for name, one in (("at least", found.least), ("at most", found.most)):
        print(_row(name, one))
    print("most: no route of the server counts tokens, and only texts can be read")
    if found.refused is not None:
        print(f"the limits do not allow it: {found.refused}")


def _row(name: str, one: EndpointCost) -> str:
    return (
        f"{name:9} {one.calls:8,} {one.prompt_tokens:12,} {one.generated_tokens:11,} "
        f"{one.cost:9.4g} {one.minutes:8.1f}"
    )


def _progress(share: float, message: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{share:4.0%} {message}", end="" if share < 1 else "\n", file=sys.stderr)


def _go_on() -> None:
    """Nothing but Ctrl-C stops this command."""


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
    parser.add_argument("--length", type=_between(64, 131_072), default=1024, help="tokens")
    parser.add_argument("--depths", type=_between(3, 10), default=5)
    parser.add_argument("--groups", type=_groups, default="auto", help="16 to 512, or auto")
    parser.add_argument("--seed", type=_between(0, 2**31 - 1), default=0)
    parser.add_argument("--max-calls", type=_between(1, 10**9), help="of all starts together")
    parser.add_argument("--max-tokens", type=_between(1, 10**15), help="in and out together")
    parser.add_argument("--max-cost", type=_price, help="in the currency of the settings' prices")
    parser.add_argument("--ledger", type=Path, help="keeps answers; default NAME.answers.jsonl")
    parser.add_argument("--dry-run", action="store_true", help="print the cost, call nothing")
    parser.add_argument("--json", action="store_true", help="print the profile as JSON")
    return parser


def _between(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = least - 1
        with contextlib.suppress(ValueError):
            value = whole_of(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be a whole number from {least} to {most}")
        return value

    return number


def _groups(text: str) -> int | str:
    return text if text == "auto" else _between(16, 512)(text)


def _price(text: str) -> float:
    try:
        value = number_of(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1e9:
        raise argparse.ArgumentTypeError("must be a number above 0")
    return value


if __name__ == "__main__":
    sys.exit(main())
