"""The images, built and run by a running Docker engine, else by buildah for root.

LACUNA_TEST_BASE_IMAGE is what they are built on (default: that of the Dockerfile), and
LACUNA_TEST_BUILD_OPTIONS are more options of the build, such as `--build-arg TORCH_INDEX=...`.
Containers run as Compose runs them: root read-only, no capability, /tmp and /data in memory.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest

ROOT = Path(__file__).parents[2]
DEFAULT = re.findall(r"^ARG PYTHON=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)[0]
BASE = os.environ.get("LACUNA_TEST_BASE_IMAGE", DEFAULT)
OPTIONS = shlex.split(os.environ.get("LACUNA_TEST_BUILD_OPTIONS", ""))
TARGETS = ("gateway", "worker")
TMP = "nosuid,nodev,noexec,mode=1777"
DATA = "nosuid,nodev,noexec,uid=10001,gid=10001,mode=0700"
# What an engine makes of `--read-only` and `--tmpfs`, in mounts that no other process sees.
MOUNTS = f"""
root=$1; shift
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount -t tmpfs -o {TMP} tmp "$root/tmp"
mount -t tmpfs -o {DATA} data "$root/data"
mount --bind /proc "$root/proc"
mount --bind /dev "$root/dev"
exec chroot "$root" "$@"
"""

Environment = dict[str, str]


def output(*command: str) -> str:
    """What a command prints; fails with what it says, if it does."""
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, (answer.stdout + answer.stderr)[-4000:]
    return answer.stdout


def succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def pairs(environment: Environment) -> list[str]:
    return [f"{name}={value}" for name, value in environment.items()]


def build(*builder: str, target: str, name: str) -> None:
    wanted = ["--target", target, "--tag", name, "--build-arg", f"PYTHON={BASE}"]
    output(*builder, *wanted, *OPTIONS, str(ROOT))


class Engine(Protocol):
    """Builds images, and says how a command runs in one."""

    def has(self, image: str) -> bool: ...
    def build(self, target: str) -> dict[str, Any]: ...
    def argv(self, target: str, environment: Environment, command: list[str]) -> list[str]: ...
    def close(self) -> None: ...


class Docker:
    """A running Docker engine."""

    def has(self, image: str) -> bool:
        return succeeds("docker", "image", "inspect", image) or succeeds("docker", "pull", image)

    def build(self, target: str) -> dict[str, Any]:
        name = f"lacuna-test-{target}"
        build("docker", "build", target=target, name=name)
        config: dict[str, Any] = json.loads(output("docker", "image", "inspect", name))[0]["Config"]
        return config

    def argv(self, target: str, environment: Environment, command: list[str]) -> list[str]:
        limits = ["--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges:true"]
        limits += ["--tmpfs", f"/tmp:{TMP}", "--tmpfs", f"/data:{DATA}"]
        limits += [f"--env={pair}" for pair in pairs(environment)]
        # The host's name, by which a worker's health finds the worker.
        start = ["docker", "run", "--rm", "--network", "host", "--uts", "host", *limits]
        return [*start, f"lacuna-test-{target}", *command]

    def close(self) -> None:
        """Nothing is left: a container goes when its command ends."""


@dataclass
class Buildah:
    """buildah for root. It has no read-only run: containers are put together here."""

    names: list[str] = field(default_factory=list)
    roots: dict[str, str] = field(default_factory=dict)
    configs: dict[str, dict[str, Any]] = field(default_factory=dict)

    def has(self, image: str) -> bool:
        here = succeeds("buildah", "inspect", "--type", "image", image)
        return here or succeeds("buildah", "pull", image)

    def build(self, target: str) -> dict[str, Any]:
        name = f"localhost/lacuna-test-{target}"
        # Docker's format has SHELL and HEALTHCHECK.
        how = ["--isolation", "chroot", "--format", "docker", "--layers"]
        build("buildah", "build", *how, target=target, name=name)
        self.names.append(output("buildah", "from", "--pull-never", name).strip())
        self.roots[target] = output("buildah", "mount", self.names[-1]).strip()
        found = json.loads(output("buildah", "inspect", "--type", "image", name))
        self.configs[target] = found["Docker"]["config"]
        return self.configs[target]

    def argv(self, target: str, environment: Environment, command: list[str]) -> list[str]:
        config, root = self.configs[target], self.roots[target]
        user, _, group = config["User"].partition(":")
        rights = ["--reuid", user, "--regid", group, "--clear-groups", "--no-new-privs"]
        rights += ["--bounding-set=-all", "--inh-caps=-all"]
        outside = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", MOUNTS, "sh"]
        inside = ["env", "-i", "-C", config["WorkingDir"], *config["Env"], *pairs(environment)]
        return [*outside, root, *inside, "setpriv", *rights, *command]

    def close(self) -> None:
        for name in self.names:
            output("buildah", "rm", name)


def engine() -> Engine:
    if shutil.which("docker") and succeeds("docker", "info"):
        return Docker()
    if shutil.which("buildah") and os.geteuid() == 0:
        return Buildah()
    pytest.skip("no running Docker engine, nor buildah with root's rights")


@dataclass(frozen=True)
class Images:
    """The built images: their configurations by target, and how to run them."""

    engine: Engine
    configs: dict[str, dict[str, Any]]

    def run(self, target: str, *command: str) -> str:
        """What a command prints in a container of its own."""
        return output(*self.engine.argv(target, {}, list(command)))

    @contextmanager
    def running(
        self, target: str, environment: Environment, log: Path
    ) -> Iterator[Callable[[], bool]]:
        """The image's own command, which must end well when told to; yields its health."""
        config = self.configs[target]
        kind, *probe = config["Healthcheck"]["Test"]
        assert kind == "CMD"
        probe = [part.replace("8080", environment.get("LACUNA_PORT", "")) for part in probe]
        with log.open("wb") as file:
            argv = self.engine.argv(target, environment, config["Cmd"])
            process = subprocess.Popen(argv, stdout=file, stderr=file)
        try:
            yield lambda: succeeds(*self.engine.argv(target, environment, probe))
            assert process.poll() is None, log.read_text()
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, log.read_text()


@pytest.fixture(scope="module")
def images() -> Iterator[Images]:
    """Both images, built from this checkout."""
    found = engine()
    if not found.has(BASE):
        pytest.skip(f"the base image {BASE} is not here and cannot be had")
    try:
        yield Images(found, {target: found.build(target) for target in TARGETS})
    finally:
        found.close()
