"""The import table: which floor of the house may stand on which."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Floor -> what of ours it may import. The first matching prefix counts.
TABLE: dict[str, set[str]] = {
    "lacuna.theory": {"lacuna.theory"},
    "lacuna.contract": {"lacuna.contract"},
    "service.store": {"service.store", "lacuna.contract"},
    "lacuna.pictures": {"lacuna.pictures", "lacuna.contract"},
    "service.answers": {
        "service.answers",
        "lacuna.contract",
        "lacuna.theory",
        "service.store",
    },
    "service.gateway": {
        "service.gateway",
        "service.answers",
        "lacuna.contract",
        "service.store",
        "lacuna.pictures",
        "service.settings",
        "service.logs",
    },
    "service.settings": set(),
    "service.logs": {"service.settings"},
    "service.local.store": {"service.local.store", "lacuna.contract"},
    "service.client": {"lacuna.contract"},
    "service.report": {"service.report", "lacuna.contract", "lacuna.pictures"},
    "workers": {
        "workers",
        "lacuna.theory",
        "lacuna.contract",
        "service.store",
        "service.settings",
        "service.logs",
    },
}
# The roots put the floors together; whoever imports them would climb down from the attic.
ROOTS = {"service.terminal", "service.local.stack", "workers.__main__"}
THIRD_PARTY_OF_THEORY = {"numpy", "scipy"}
HEAVY = {"torch", "transformers"}
LIGHT_WORKERS = {"workers.loop", "workers.lease", "workers.faults"}


def modules() -> dict[str, Path]:
    found = {}
    for package in ("service", "workers"):
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path, *, top_level_only: bool = False) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level_only else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def ours(name: str) -> bool:
    return name.split(".", maxsplit=1)[0] in {"service", "workers"}


def below(name: str, floors: set[str]) -> bool:
    return any(name == floor or name.startswith(f"{floor}.") for floor in floors)


MODULES = modules()


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_imports_only_floors_below_it(module: str) -> None:
    if below(module, ROOTS) or module in {"service", "workers"}:
        return
    floor = next((prefix for prefix in TABLE if below(module, {prefix})), None)
    assert floor is not None, f"{module} stands on no floor of the table"
    known = set(MODULES)
    for name in imports(MODULES[module]):
        if not ours(name) or name in {"service", "workers"}:
            continue
        # `from lacuna.theory import shape` names a module, `from x import f` a member of x.
        target = name if name in known else name.rpartition(".")[0]
        assert target in {"service", "workers"} or below(target, TABLE[floor]), (
            f"{module} imports {name}"
        )


@pytest.mark.parametrize("module", [m for m in sorted(MODULES) if below(m, {"lacuna.theory"})])
def test_theory_needs_numpy_and_scipy_alone(module: str) -> None:
    outside = {
        name.split(".")[0]
        for name in imports(MODULES[module])
        if not ours(name) and name.split(".")[0] not in sys.stdlib_module_names
    }
    assert outside <= THIRD_PARTY_OF_THEORY


@pytest.mark.parametrize("module", sorted(LIGHT_WORKERS))
def test_the_worker_loop_loads_without_torch(module: str) -> None:
    assert loaded_by(module).isdisjoint(HEAVY)


def test_the_gateway_loads_neither_torch_nor_transformers() -> None:
    assert loaded_by("service.gateway.app").isdisjoint(HEAVY)


def loaded_by(module: str) -> set[str]:
    code = f"import {module}, sys; print(' '.join(sys.modules))"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return {name.split(".")[0] for name in answer.stdout.split()}


@pytest.mark.parametrize("module", sorted(MODULES))
def test_the_environment_is_read_by_settings_and_roots_alone(module: str) -> None:
    if below(module, ROOTS) or module == "service.settings":
        return
    source = MODULES[module].read_text()
    assert "os.environ" not in source, f"{module} reads the environment"
    assert "getenv" not in source, f"{module} reads the environment"
