"""Each dialect with each fault: the right number, or one clear refusal; never a wrong number."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from _pytest.mark import ParameterSet

from lacuna.contract.endpoints import Rung
from lacuna.contract.errors import (
    EndpointChanged,
    EndpointError,
    EndpointIncapable,
    EndpointRefused,
    EndpointTruncates,
    EndpointUnreachable,
    LacunaError,
    TooLong,
)
from tests.workers.endpoints.fake_dialects import DIALECTS
from tests.workers.endpoints.fake_model import FakeModel, recency
from tests.workers.endpoints.fake_server import KEY, SECRET_PATH, FakeServer, Faults
from tests.workers.endpoints.harness import Patience, question, reader_of, tokens_of, truth
from workers.endpoints.dialects import way_named
from workers.endpoints.reader import EndpointReader

FORMS = [
    (dialect, form)
    for dialect in DIALECTS
    for form in ("plain", "chat")
    if form == "chat" or dialect not in ("openai", "anthropic")
]
DEPTHS = (0.0, 0.3, 0.7, 1.0)
RUNGS: tuple[Rung, ...] = get_args(Rung)
FAULTS = {
    "none": Faults(),
    "echo ignored": Faults(echo_ignored=True),
    "null log-probability": Faults(null_in_answer=True),
    "-9999": Faults(minus_9999=True),
    "after sampling": Faults(processed=True),
    "off by one": Faults(off_by_one=True),
    "busy": Faults(busy=3),
    "half answers": Faults(half=3),
    "page of a proxy": Faults(html=3),
    "busy without end": Faults(busy=10**6),
    "half without end": Faults(half=10**6),
    "page without end": Faults(html=10**6),
    "context cut": Faults(keeps=70),
    "usage missing": Faults(usage="missing"),
    "usage constant": Faults(usage="constant"),
    "redirect": Faults(redirect="http://127.0.0.1:9/v1/completions"),
    "huge": Faults(huge=True),
}
ENDS: dict[str, tuple[type[LacunaError], str]] = {
    "busy without end": (EndpointUnreachable, "HTTP status 429"),
    "half without end": (EndpointUnreachable, "the answer broke off"),
    "page without end": (EndpointUnreachable, "not JSON"),
    "context cut": (EndpointTruncates, "cuts prompts"),
    "usage missing": (EndpointTruncates, "how many tokens it read"),
    "usage constant": (EndpointTruncates, "grows by 0 tokens"),
    "redirect": (EndpointRefused, "redirects"),
    "huge": (EndpointIncapable, "more than 4 MB"),
}


def clean(error: LacunaError) -> None:
    """Nothing of the server's own words, no key, no path, no address."""
    said = f"{error} {error.detail} {error!r}"
    for secret in (
        KEY,
        "sk-",
        SECRET_PATH,
        "/home/",
        "http://",
        "slow down",
        "log in",
        "Incorrect",
    ):
        assert secret not in said


SEVERAL = [
    pytest.param(name, marks=() if name in ("vllm", "anthropic") else pytest.mark.slow)
    for name in DIALECTS
]
QUICK = {
    ("vllm", "plain"): {"echo ignored", "null log-probability", "-9999", "off by one"},
    ("vllm", "chat"): {"after sampling"},
    ("openai", "chat"): {"busy", "busy without end", "page without end", "redirect", "huge"},
    ("anthropic", "chat"): {"half answers", "usage missing"},
    ("llama.cpp", "chat"): {"none", "page of a proxy"},
    ("ollama", "chat"): {"context cut", "usage constant", "half without end"},
}
"""Each fault once, where it matters; `make test-all` runs the whole matrix."""


def _matrix() -> list[ParameterSet]:
    assert set().union(*QUICK.values()) == set(FAULTS)
    cases = [
        (d, f, fault) for d, f in FORMS for fault in FAULTS if f == "chat" or fault not in ENDS
    ]
    return [
        pytest.param(d, f, fault, marks=() if fault in QUICK.get((d, f), ()) else pytest.mark.slow)
        for d, f, fault in cases
    ]


@pytest.mark.parametrize(("dialect", "form", "fault"), _matrix())
def test_right_or_refused_never_wrong(dialect: str, form: str, fault: str) -> None:
    with DIALECTS[dialect](FakeModel(recency), replace(FAULTS[fault])) as server:
        if fault in ENDS:
            kind, words = ENDS[fault]
            with (
                pytest.raises(EndpointError, match=words) as refusal,
                reader_of(server, form=form, longest=300),
            ):
                pass
            assert type(refusal.value) is kind
            clean(refusal.value)
            return
        with reader_of(server, form=form, longest=300) as reader:
            assert check_rungs(server, reader) >= 1, "at least the text is read"


def check_rungs(server: FakeServer, reader: EndpointReader) -> int:
    """Compare what each rung reads with the truth: how many rungs the reader has."""
    rungs = 0
    asked = [question(reader.form, depth, fact=3) for depth in DEPTHS]
    for rung in RUNGS:
        if rung not in {way_named(name).rung for name in reader.ladder.ways}:
            with pytest.raises(EndpointIncapable, match=f"rung '{rung}'") as refusal:
                reader.ladder.choose(rung=rung)
            clean(refusal.value)
            continue
        reader.way = reader.ladder.choose(rung=rung)
        rungs += 1
        for one, reading in zip(asked, reader.read(asked), strict=True):
            assert reading is not None
            tokens, true = tokens_of(server, reader.form, one), truth(server, reader.form, one)
            assert reading.prompt_tokens == len(tokens)
            if rung == "text":
                assert reading.probability == float(server.model.best(tokens)[0][0] == one.answer)
            elif reading.censored:
                assert true <= (reading.log_probability or 0.0) + 1e-9
            else:
                assert reading.log_probability == pytest.approx(true, abs=1e-9)
    return rungs


@pytest.mark.parametrize("form", ["plain", "chat"])
def test_a_prompt_cut_after_the_ladder_is_refused(form: str) -> None:
    with (
        DIALECTS["ollama"](FakeModel()) as server,
        reader_of(server, form=form, rung="text", longest=300) as reader,
    ):
        asked = [question(reader.form, 0.5, words=200)]
        assert reader.read(asked)[0] is not None
        server.faults.keeps = 150
        with pytest.raises(EndpointTruncates, match="it cuts prompts"):
            reader.read([question(reader.form, 0.4, words=200)])


@pytest.mark.parametrize("dialect", SEVERAL)
def test_a_longer_prompt_than_the_server_takes(dialect: str) -> None:
    with (
        DIALECTS[dialect](FakeModel(), context=250) as server,
        pytest.raises(TooLong) as refusal,
        reader_of(server, longest=300),
    ):
        pass
    clean(refusal.value)


@pytest.mark.parametrize("dialect", SEVERAL)
def test_a_wrong_key_is_refused_at_once(dialect: str) -> None:
    with (
        DIALECTS[dialect](FakeModel()) as server,
        pytest.raises(EndpointRefused, match="refuses the key") as refusal,
        reader_of(server, key="sk-wrong-key"),
    ):
        pass
    clean(refusal.value)
    assert server.requests <= 2


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("dialect", SEVERAL)
def test_a_model_that_changes_is_noticed(dialect: str, named: bool) -> None:
    """By its name at the next answer, else by the canary at the end."""
    with (
        DIALECTS[dialect](FakeModel(), Faults(changes_name=named)) as server,
        reader_of(server, rung="text") as reader,
    ):
        server.faults.changes_after = 1
        asked = [question(reader.form, depth) for depth in DEPTHS]
        if named:
            with pytest.raises(EndpointChanged):
                reader.read(asked)
        else:
            reader.read(asked)
        with pytest.raises(EndpointChanged):
            reader.verify()


def test_a_slow_server_is_reported_as_such() -> None:
    with (
        DIALECTS["openai"](FakeModel(), Faults(slow=0.4)) as server,
        pytest.raises(EndpointUnreachable, match=r"no whole answer within 0\.1 s"),
        reader_of(server, timeout=0.1),
    ):
        pass


def test_the_server_is_given_the_time_it_asks_for() -> None:
    patience = Patience()
    with (
        DIALECTS["openai"](FakeModel(), Faults(busy=2)) as server,
        reader_of(server, patience=patience) as reader,
    ):
        assert reader.budget.spent.retries == 2
        assert patience.slept >= 14.0
