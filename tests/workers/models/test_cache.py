from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lacuna.contract.errors import OutOfMemory, TooLong
from lacuna.contract.profile_requests import ProfileRequest
from workers.models import cache as caching
from workers.models.cache import ModelCache
from workers.models.loaded import LoadOptions


def request(name: str = "a", **fields: Any) -> ProfileRequest:
    return ProfileRequest(model=f"local:{name}", **({"sequence_length": 16} | fields))


@pytest.fixture
def three(save: Callable[..., Path]) -> None:
    for name in "abc":
        save(name)


@pytest.mark.usefixtures("three")
def test_asked_for_again_it_is_the_same_model(options: LoadOptions) -> None:
    cache = ModelCache(options)
    first = cache.get(request())
    assert cache.get(request(sequence_length=32)) is first
    assert cache.get(request(dtype="bfloat16")) is not first
    random = cache.get(request(weights="random", seed=1))
    assert cache.get(request(weights="random", seed=1)) is random
    assert cache.get(request(weights="random", seed=2)) is not random
    with pytest.raises(TooLong):
        cache.get(request(sequence_length=500))
    assert cache.get(request()) is first


@pytest.mark.usefixtures("three")
def test_a_folder_whose_contents_change_is_loaded_anew(
    options: LoadOptions, save: Callable[..., Path]
) -> None:
    cache = ModelCache(options)
    first = cache.get(request())
    save("a", tie_word_embeddings=True)
    second = cache.get(request())
    assert second is not first
    assert second.revision != first.revision


@pytest.mark.usefixtures("three")
def test_the_least_recently_used_leaves_and_gives_its_memory_back(options: LoadOptions) -> None:
    size = ModelCache(options).get(request()).nbytes
    cache = ModelCache(dataclasses.replace(options, cache_bytes=2 * size))
    gone = weakref.ref(cache.get(request("b")).model)
    cache.get(request("a"))
    assert cache.warm() == ["local:b", "local:a"]
    cache.get(request("c"))
    assert cache.warm() == ["local:a", "local:c"]
    gc.collect()
    assert gone() is None
    cache.get(request("a"))
    cache.get(request("b"))
    assert cache.warm() == ["local:a", "local:b"]


@pytest.mark.usefixtures("three")
def test_the_last_one_stays_however_large(options: LoadOptions) -> None:
    cache = ModelCache(dataclasses.replace(options, cache_bytes=0))
    for name in "ab":
        cache.get(request(name))
        assert cache.warm() == [f"local:{name}"]
    cache.clear()
    assert cache.warm() == []


@pytest.mark.usefixtures("three")
def test_warm_models_make_room_when_memory_is_short(
    options: LoadOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ModelCache(options)
    cache.get(request("a"))
    real = caching.loading.build

    def crowded(*args: Any) -> Any:
        if cache.warm():
            raise OutOfMemory("no room")
        return real(*args)

    monkeypatch.setattr(caching.loading, "build", crowded)
    cache.get(request("b"))
    assert cache.warm() == ["local:b"]

    def full(*_args: Any) -> Any:
        raise OutOfMemory("no room")

    monkeypatch.setattr(caching.loading, "build", full)
    with pytest.raises(OutOfMemory):
        cache.get(request("c"))


@pytest.mark.usefixtures("three")
def test_a_load_that_is_given_up_leaves_the_warm_models(options: LoadOptions) -> None:
    cache = ModelCache(options)
    first = cache.get(request("a"))

    class Stop(Exception):
        pass

    def stop() -> None:
        raise Stop

    for name in "ab":
        with pytest.raises(Stop):
            cache.get(request(name), stop)
    assert cache.warm() == ["local:a"]
    assert cache.get(request("a")) is first
