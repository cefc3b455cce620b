"""What all tests share: a real store, empty before each test that uses it, and a profile."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import redis
import redis.asyncio

from lacuna.contract.endpoints import ServedModel, Spending
from lacuna.contract.models import ModelDescription
from lacuna.contract.profile_requests import ProfileRequest
from lacuna.contract.profiles import (
    Environment,
    Mixing,
    Profile,
    RequestEcho,
    Timings,
)
from lacuna.contract.recall import (
    Agreement,
    RecallControls,
    RecallCurve,
    RecallEcho,
    RecallSampling,
)
from service.local import store
from service.store.connection import connect, connect_async
from workers.influence.curves import (
    Curves,
    measured_to_wire,
    prediction_to_wire,
    sampling_to_wire,
    shape_to_wire,
    zone_to_wire,
)

with contextlib.suppress(ImportError):  # the adapters' environment has no hypothesis
    from hypothesis import settings

    # A busy machine is not a fault of the code: examples have no deadline.
    settings.register_profile("lacuna", deadline=None)
    settings.load_profile("lacuna")


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A folder whose path is short enough for a unix socket (pytest's own may be too long)."""
    path = Path(tempfile.mkdtemp(prefix="lacuna-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def store_server() -> Iterator[store.EmbeddedServer]:
    """One embedded store for the whole session (and for each xdist worker its own)."""
    path = Path(tempfile.mkdtemp(prefix="lacuna-"))
    with store.ensure(path) as server:
        yield server
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def redis_url(store_server: store.EmbeddedServer) -> Iterator[str]:
    """Address of an empty store."""
    client = redis.Redis.from_url(store_server.url)
    client.flushall()
    client.config_set("maxmemory", 0)
    yield store_server.url
    client.close()


@pytest.fixture
def redis_sync(redis_url: str) -> Iterator[redis.Redis]:
    """A worker's client on an empty store."""
    client = connect(redis_url)
    yield client
    client.close()


@pytest.fixture
async def redis_async(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    """A gateway's client on an empty store."""
    client = connect_async(redis_url)
    yield client
    await client.aclose()
    await client.connection_pool.disconnect()


class Workers:
    """Starts fake workers (tests/workers/fake_worker.py) as processes, and ends them all."""

    script = Path(__file__).parent / "workers" / "fake_worker.py"

    def __init__(self, url: str, data_dir: Path) -> None:
        self.url, self.data_dir = url, data_dir
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(
        self, *, lease: float = 2.0, grace: float = 5.0, **more: str
    ) -> subprocess.Popen[bytes]:
        """One more worker; `more` are environment variables."""
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "LACUNA_REDIS_URL": self.url,
            "LACUNA_DATA_DIR": str(self.data_dir),
            "LACUNA_LEASE_SECONDS": str(lease),
            "LACUNA_GRACE_SECONDS": str(grace),
            **more,
        }
        log = open(self.data_dir / f"worker-{len(self.processes)}.log", "wb")  # noqa: SIM115
        with log:
            process = subprocess.Popen(
                [sys.executable, str(self.script)], env=environment, stderr=log
            )
        self.processes.append(process)
        return process

    def notes(self, kind: str) -> list[tuple[str, int]]:
        """(job, process) of every start ("starts") or complete run ("ends"), in order."""
        path = self.data_dir / kind
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [(line.split()[0], int(line.split()[1])) for line in lines]

    def log(self, index: int = 0) -> str:
        """What a worker wrote."""
        return (self.data_dir / f"worker-{index}.log").read_text()

    def close(self) -> None:
        """Kill what is left."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()


@pytest.fixture
def workers(redis_url: str, tmp_path: Path) -> Iterator[Workers]:
    """Fake worker processes on the session's store."""
    started = Workers(redis_url, tmp_path)
    yield started
    started.close()


@pytest.fixture
def make_request() -> Callable[..., ProfileRequest]:
    """Builds a request whose job does what `text` says in a fake worker."""

    def make(text: str = "sleep 0", **fields: object) -> ProfileRequest:
        documents = {"source": "inline", "count": 1, "texts": [text]}
        return ProfileRequest.model_validate(
            {"model": "local:tiny", "documents": documents, **fields}
        )

    return make


MakeProfile = Callable[..., Profile]


@functools.cache
def make(
    *,
    identifier: str = "a" * 32,
    tokens: int = 64,
    seed: int = 0,
    model: str = "preset:gpt2",
    documents: int = 32,
) -> Profile:
    """A U-shaped profile with noise, its band and one prediction."""
    generator = np.random.default_rng(seed)
    position = (np.arange(tokens) + 0.5) / tokens
    ideal = 0.3 + 2 * np.exp(-8 * position) + 3 * np.exp(-25 * (1 - position))
    norms = ideal * generator.lognormal(0, 0.3, (documents, tokens))
    curves = Curves(norms, tuple(f"{row:032x}" for row in range(len(norms))), "rms")
    zone, verdict = zone_to_wire(curves)
    return Profile(
        id=identifier,
        model=ModelDescription(
            id=model, revision=None, architecture="gpt2", layers=2, attention_layers=2, heads=2,
            width=8, vocabulary=100, parameters=1_000, positional_encoding="learned", window=None,
            max_length=1_024, attention_implementation="sdpa", block="sequential",
            support="full", support_notes=[], tokenizer_digest=None,
        ),
        request=RequestEcho(
            model=model, revision=None, weights="random", seed=0, sequence_length=tokens,
            objective="jacobian", probes=4, positional_encoding="on", content_scale="model",
            dtype="float32", documents_source="random_tokens", documents_name=None,
            documents_asked=documents, documents_most=None, documents_digest="0" * 64,
            target_digest=None, leading_bos=False, recall=None,
        ),
        measured=measured_to_wire(curves, sampling_to_wire("fixed", norms)),
        mixing=Mixing.model_validate(
            {"lambda": [0.3, 0.2], "std": [0.01, 0.01], "sum": 0.5,
             "by_token": [[0.3, 0.3], [0.2, 0.2]], "bins": 2}
        ),
        predictions={
            "residual": prediction_to_wire(ideal / ideal.sum(), curves),
        },
        forces=[],
        collapse=None,
        dead_zone=zone,
        dead_zone_verdict=verdict,
        shape=shape_to_wire(curves),
        warnings=[],
        method_version="1",
        timings=Timings(
            load_seconds=0.1, measure_seconds=1.0, predict_seconds=0.1, tokens_per_second=512.0
        ),
        environment=Environment(
            lacuna="0.1.0", torch="2.13.0", transformers="5.24.0", python="3.11", device="cpu",
            dtype="float32", threads=1,
        ),
        created_at="2026-01-01T00:00:00.000Z",
    )  # fmt: skip


@pytest.fixture(scope="session")
def make_profile() -> MakeProfile:
    """Makes profiles; see `make`."""
    return make


def of_norms(norms: np.ndarray, identifier: str = "a" * 32, first: int = 0) -> Profile:
    """A profile of a trained model whose documents have these gradient norms, F64[D, n].

    Documents are named by their number from `first` on, so profiles can share some or all.
    """
    keys = tuple(f"{first + row:032x}" for row in range(len(norms)))
    curves = Curves(norms, keys, "mean")
    zone, verdict = zone_to_wire(curves)
    plain = make(tokens=norms.shape[1], identifier=identifier, documents=len(norms))
    echo = {"weights": "pretrained", "documents_source": "builtin", "documents_digest": keys[0]}
    return plain.model_copy(
        update={
            "request": plain.request.model_copy(update=echo),
            "measured": measured_to_wire(curves, sampling_to_wire("fixed", norms)),
            "predictions": {},
            "dead_zone": zone,
            "dead_zone_verdict": verdict,
            "shape": shape_to_wire(curves),
        }
    )


@pytest.fixture(scope="session")
def profile_of_norms() -> Callable[..., Profile]:
    """Makes profiles from gradient norms; see `of_norms`."""
    return of_norms


@pytest.fixture
def profile(make_profile: MakeProfile) -> Profile:
    """One profile of 64 tokens."""
    return make_profile()


MakeServed = Callable[..., Profile]


@pytest.fixture
def make_served(make_profile: MakeProfile, recall_curve: RecallCurve) -> MakeServed:
    """Makes profiles of a model behind an endpoint: recall alone, at five depths."""

    def made(
        identifier: str = "e" * 32, *, by_group: list[list[float]] | None = None, seed: int = 0
    ) -> Profile:
        plain = make_profile(identifier=identifier, model="endpoint:prod")
        groups = by_group or recall_curve.by_group
        curve = recall_curve.model_copy(
            update={
                "by_group": groups, "groups": len(groups), "reader": "endpoint",
                "probability": np.mean(groups, axis=0).tolist(),
                "spearman_with_influence": None, "influence_density": None,
            }
        )  # fmt: skip
        echo = RecallEcho(
            probes=["facts"], groups_asked="auto", depths=5, form="auto", question="last",
            passages_digest=None,
        )  # fmt: skip
        served = ServedModel(
            name="prod", model="m", served_model="m-1", fingerprint="fp", canary="c" * 32,
            ways={"facts": "chat.top"}, why_not_higher={"chat.grammar": "it is ignored"},
            counts_by="tokenizer", censored={"facts": 0.01}, groups_lost={"facts": 0},
        )  # fmt: skip
        unknown = dict.fromkeys(
            ("layers", "attention_layers", "heads", "width", "vocabulary", "parameters",
             "positional_encoding")
        )  # fmt: skip
        spent = Spending(
            calls=700, replayed=5, retries=1, prompt_tokens=900_000, cached_tokens=0,
            generated_tokens=700, cost=1.25,
        )  # fmt: skip
        asked = {"weights": "pretrained", "objective": "recall", "documents_source": "builtin",
                 "documents_asked": 0, "recall": echo, "seed": seed}  # fmt: skip
        return plain.model_copy(
            update={
                "model": plain.model.model_copy(update={**unknown, "support": "recall_only"}),
                "request": plain.request.model_copy(update=asked),
                "measured": None, "mixing": None, "predictions": {}, "dead_zone": None,
                "dead_zone_verdict": None, "shape": None, "recall": {"facts": curve},
                "endpoint": served, "spending": spent,
            }
        )  # fmt: skip

    return made


@pytest.fixture
def served(make_served: MakeServed) -> Profile:
    """One profile of a model behind an endpoint."""
    return make_served()


@pytest.fixture
def recall_curve() -> RecallCurve:
    """Recall of competing facts at five depths, best at the ends."""
    middle = [0.5, 0.2, 0.1, 0.3, 0.6]
    return RecallCurve(
        depth=[0.05, 0.25, 0.45, 0.65, 0.85], position=[3.0, 16.0, 29.0, 42.0, 54.0],
        prompt_tokens=64.0, probability=middle,
        low=[0.4, 0.1, 0.05, 0.2, 0.5], high=[0.6, 0.3, 0.2, 0.4, 0.7],
        simultaneous_low=[0.45, 0.15, 0.06, 0.25, 0.55],
        simultaneous_high=[0.55, 0.25, 0.14, 0.35, 0.65],
        log_probability=[-1.0, -2.0, -3.0, -1.5, -0.75], by_group=[middle] * 40, groups=40, facts=5,
        sampling=RecallSampling(
            reason="narrow", half_width=0.05, target=0.05, at_double=0.035, needed=40
        ),
        controls=RecallControls(closed_book=0.02, oracle=0.9, repeat=0.0),
        verdict="varies", p=0.001, alpha=0.025, spread=0.5, rung="answer", reader="weights",
        form="plain", question="last",
        spearman_with_influence=Agreement(value=0.9, low=0.5, high=1.0),
        influence_density=[1.5, 0.6, 0.5, 0.8, 1.9],
    )  # fmt: skip
