"""vLLM on the demo model's weights in float32: what its curve says is what the weights say.

docs/contributing.md says how to install it; LACUNA_VLLM_PYTHON names another Python.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import httpx
import numpy as np
import pytest
import torch

from lacuna.contract.errors import ModelNotFound
from lacuna.contract.profile_requests import ProfileRequest, RecallRequest
from lacuna.contract.recall import RecallCurve
from service.settings import Settings
from tests.workers.endpoints.harness import reader_at
from workers.endpoints.dialects import way_named
from workers.models import demo
from workers.models.loaded import LoadedModel
from workers.models.loading import LoadOptions, load
from workers.recall.reader import Question, Reader, Reading
from workers.recall.sampled import Sampled, sampled, source_of
from workers.recall.weights_reader import WeightsReader
from workers.recall.wire import recall_to_wire

pytestmark = [pytest.mark.slow]

ROOT = Path(__file__).parents[3]
PYTHON = Path(os.environ.get("LACUNA_VLLM_PYTHON", ROOT / ".venv/vllm/bin/python"))
MODEL = "smollm2-135m-instruct"
STARTS = 300
"""Seconds that a start may take on a busy machine; 30 on an idle one."""
ASKED = RecallRequest(depths=3, groups=16)
WAYS = {
    "plain": ["echo", "prompt_logprobs", "logit_bias", "top", "text"],
    "chat": ["prompt_logprobs", "logit_bias", "top", "text"],
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not PYTHON.exists():
        pytest.skip(f"no Python with vllm at {PYTHON}: see docs/contributing.md")
    folder = tmp_path_factory.mktemp("vllm")
    try:
        weights = demo.folder(MODEL, Settings().data_dir)
    except ModelNotFound as error:
        pytest.skip(str(error))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {
        "model": weights, "served-model-name": "smollm2", "dtype": "float32",
        "max-model-len": 2048, "max-num-seqs": 4, "host": "127.0.0.1", "port": port,
    }  # fmt: skip
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CONFIG_ROOT": str(folder), "VLLM_CACHE_ROOT": str(folder),
    }  # fmt: skip
    named = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager", *named]
    log = folder / "log"
    with (
        log.open("wb") as out,
        subprocess.Popen(
            command, env={**os.environ, **settings}, stdout=out, stderr=out, start_new_session=True
        ) as process,
    ):
        try:
            _wait(f"http://127.0.0.1:{port}", process, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # its engine is a process of its own


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + STARTS
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    raise AssertionError(f"vLLM did not start: {log.read_text()[-3000:]}")


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    torch.set_num_threads(1)
    options = LoadOptions(data_dir=Settings().data_dir, device="cpu")
    return load(ProfileRequest(model=f"demo:{MODEL}", dtype="float32"), options)


class Heard:
    """A reader, and all that it was asked and answered."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.asked: list[Question] = []
        self.answers: list[Reading] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.reader, name)

    def read(self, questions: Sequence[Question], **more: Any) -> list[Reading | None]:
        found = self.reader.read(questions, **more)
        self.asked += questions
        self.answers += [one for one in found if one is not None]
        return found


def of_weights(loaded: LoadedModel, rung: Literal["answer", "text"], served: Reader) -> Heard:
    """The weights in this process, which lay prompts out as the endpoint's reader does: it does
    not know how many tokens a chat template takes."""
    reader = WeightsReader(loaded, rung=rung, chat=served.form != "plain")
    reader.preamble = served.preamble
    return Heard(reader)


def curve_of(reader: Any, length: int = 192) -> RecallCurve:
    plan = Sampled(source_of("facts", ASKED, 0), ASKED, length, 0)
    found = sampled(reader, plan, lambda *_: None, lambda: None)
    return recall_to_wire(found.recall, None, found.ending, reader="endpoint")


def within(curve: RecallCurve, banded: RecallCurve) -> bool:
    """Whether a curve lies in another's band."""
    assert banded.low is not None
    assert banded.high is not None
    low, high = np.array(banded.low), np.array(banded.high)
    return bool(np.all(low <= curve.probability) and np.all(curve.probability <= high))


def logs(readings: Sequence[Reading | None]) -> np.ndarray:
    return np.array([one.log_probability for one in readings if one is not None], dtype=float)


@pytest.mark.timeout(3600)  # two minutes on an idle machine
@pytest.mark.parametrize(("form", "found"), [("plain", "plain"), ("chat", "continued")])
def test_the_curve_over_http_is_that_of_the_weights(
    address: str, loaded: LoadedModel, form: str, found: str
) -> None:
    names = {"plain": "completions", "continued": "chat"}[found]
    with reader_at(address, form, longest=240) as reader:
        weights = of_weights(loaded, "answer", reader)
        assert reader.form == weights.form == found
        ladder = [way for way in reader.ladder.ways if way != "messages.text"]
        assert ladder == [f"{names}.{way}" for way in WAYS[form]]
        assert reader.ladder.counts_by == "tokenizer"
        served = Heard(reader)
        reader.way = way_named(ladder[0])
        over_http, in_process = curve_of(served), curve_of(weights)
        assert served.asked == weights.asked, "the same prompts"
        np.testing.assert_allclose(logs(served.answers), logs(weights.answers), atol=0.01)
        np.testing.assert_allclose(over_http.by_group, in_process.by_group, atol=0.01)
        reader.way = way_named(f"{names}.top")
        first = curve_of(reader)
        assert within(in_process, first)
        np.testing.assert_allclose(first.probability, in_process.probability, atol=0.01)
        # A share of right texts is another quantity than a mean probability: it is compared with
        # the texts that the weights write.
        reader.way = way_named(f"{names}.text")
        said, written = Heard(reader), of_weights(loaded, "text", reader)
        texts, own = curve_of(said), curve_of(written)
        assert said.asked == written.asked
        pairs = zip(said.answers, written.answers, strict=True)
        assert np.mean([a.probability == b.probability for a, b in pairs]) >= 0.98
        assert within(own, texts)
        if form == "plain":
            assert np.argmax(texts.probability) == np.argmax(in_process.probability)
        assert reader.verify().agrees(reader.canary)
