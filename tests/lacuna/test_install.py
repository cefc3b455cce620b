"""The library alone, installed into an empty environment: what it brings, and what works there."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lacuna import OfflinePlacer, Profile

ROOT = Path(__file__).parents[2]
IMPORT_SECONDS = 0.3
"""Of processor time, for `import lacuna`."""
CHUNKS = [{"id": str(i), "tokens": 10 + i, "relevance": i * 7 % 5 / 5} for i in range(9)]
ADAPTERS = {"langchain": "langchain_core", "llama_index": "llama_index", "haystack": "haystack"}


def run(python: Path | str, code: str, *arguments: str, folder: Path) -> Any:
    """What a script prints as JSON; it sees neither this checkout nor the user's packages."""
    answer = subprocess.run(
        [str(python), "-I", "-c", code, *arguments],
        capture_output=True, text=True, check=False, timeout=120, cwd=folder,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


IMPORT = """
import json, sys, time
begun = time.process_time()
import lacuna
seconds = time.process_time() - begun
print(json.dumps([seconds, sorted({name.partition(".")[0] for name in sys.modules})]))
"""


def test_importing_the_library_is_quick_and_brings_nothing_else(tmp_path: Path) -> None:
    least = 1.0
    for _ in range(3):
        seconds, modules = run(sys.executable, IMPORT, folder=tmp_path)
        assert {"service", "workers", "scipy", "numpy", "httpx", "torch"}.isdisjoint(modules)
        least = min(least, seconds)
    assert least < IMPORT_SECONDS


def test_every_name_that_the_library_offers_is_there() -> None:
    import lacuna

    assert set(lacuna.__all__) == set(lacuna._MODULES)
    for name in lacuna.__all__:
        assert getattr(lacuna, name).__name__ == name
        assert name in dir(lacuna)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = lacuna.Nothing


def test_every_folder_of_the_library_is_packaged() -> None:
    import tomllib

    settings = tomllib.loads((ROOT / "lacuna" / "pyproject.toml").read_text())
    modules = [p for p in (ROOT / "lacuna").rglob("*.py") if "build" not in p.parts]
    found = {".".join(path.parent.relative_to(ROOT).parts) for path in modules}
    assert found == set(settings["tool"]["setuptools"]["packages"])


PLACE = """
import importlib, json, sys
from lacuna import OfflinePlacer
path, chunks, adapters = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
placed = OfflinePlacer(path).place(chunks)
missing = {}
for adapter in adapters:
    try:
        importlib.import_module(f"lacuna.{adapter}")
    except ModuleNotFoundError as error:
        missing[adapter] = error.name
loaded = {name.partition(".")[0] for name in sys.modules}
print(json.dumps({
    "placed": placed.model_dump(mode="json"), "missing": missing,
    "others": sorted(loaded & {"service", "workers", "fastapi", "redis", "torch"}),
}))
"""


@pytest.mark.slow
def test_the_library_alone_places_and_reads_profiles(
    tmp_path: Path, make_profile: Callable[..., Profile]
) -> None:
    # A copy: building leaves files next to the sources.
    source = shutil.copytree(
        ROOT / "lacuna", tmp_path / "lacuna", ignore=shutil.ignore_patterns("build", "*.egg-info")
    )
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "empty"], check=True)
    python = tmp_path / "empty" / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", source]
    answer = subprocess.run(install, capture_output=True, text=True, check=False)
    if answer.returncode != 0 and "No matching distribution" in answer.stderr:
        pytest.skip("the package index cannot be reached")
    assert answer.returncode == 0, answer.stderr

    listed = subprocess.run(
        [python, "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    names = {one["name"].lower() for one in json.loads(listed.stdout)}
    assert {"lacuna-client", "numpy", "scipy", "pydantic", "httpx"} <= names
    assert names.isdisjoint({"lacuna-service", "fastapi", "redis", "torch", "rich", "typer"})

    profile = make_profile(tokens=128)
    path = tmp_path / "profile.json"
    path.write_text(profile.model_dump_json())
    found = run(
        python, PLACE, str(path), json.dumps(CHUNKS), json.dumps(list(ADAPTERS)), folder=tmp_path
    )
    assert found["placed"] == OfflinePlacer(profile).place(CHUNKS).model_dump(mode="json")
    assert found["others"] == []
    # The adapters are there; each needs the library that it adapts to, and nothing else.
    assert found["missing"] == ADAPTERS
    seconds, modules = run(python, IMPORT, folder=tmp_path)
    assert seconds < IMPORT_SECONDS
    assert {"service", "workers", "scipy"}.isdisjoint(modules)
