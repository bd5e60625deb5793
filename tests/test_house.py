"""The house as DESIGN has it, read from the code: floors, rooms of the core, no circle, names that stand once."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parent.parent
STAGES = ("indexes", "data_generation", "preference", "training", "inference")
PACKAGES = ("steprag", *STAGES, "apps")
ROOMS = ("engines", "web", "policy", "agent", "batch")
"""Rooms of the core; each imports only those before it."""


@cache
def modules() -> dict[str, ast.Module]:
    """All modules of the product by their dotted names, parsed."""
    paths = (path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    named = ((".".join(path.with_suffix("").parts).removesuffix(".__init__"), path) for path in paths)
    return {name: ast.parse((ROOT / path).read_text()) for name, path in named}


def below(package: str) -> Iterator[tuple[str, ast.Module]]:
    return ((name, tree) for name, tree in modules().items() if name.split(".")[0] == package)


def imported(tree: ast.Module) -> Iterator[str]:
    """The dotted modules and names that a file imports, inside functions and for types too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def named(tree: ast.Module, packages: tuple[str, ...]) -> list[str]:
    """What the strings of a file, its docstrings too, name of these packages: `training.train`, `apps/chat`."""
    pattern = re.compile(rf"(?<![\w./-])(?:{'|'.join(packages)})(?:\.(?!py\b)|/)[a-z_]\w*")
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return [found for text in texts for found in pattern.findall(text)]


def test_no_file_imports_itself_by_way_of_others() -> None:
    known = modules().keys()
    arrows = {
        name: {one if one in known else one.rpartition(".")[0] for one in imported(tree)} & known - {name}
        for name, tree in modules().items()
    }
    assert sum(map(len, arrows.values())) > 1000
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


def test_the_core_knows_neither_stages_nor_apps() -> None:
    above = (*STAGES, "apps")
    seen = 0
    for name, tree in below("steprag"):
        seen += 1
        assert not {one.split(".")[0] for one in imported(tree)} & {*above}, name
        assert named(tree, above) == [], name
    assert seen > 100
    stubs = {path.name for path in (ROOT / "steprag").rglob("*.pyi") if "apps" in path.read_text()}
    assert stubs == {"__init__.pyi", "flashrag.pyi"}, "stubs alone name apps: what `import steprag` offers lazily"


def test_no_stage_knows_another_but_for_the_one_door_nor_an_app() -> None:
    for stage in STAGES:
        others = {*STAGES, "apps"} - {stage}
        for name, tree in below(stage):
            crossings = {one for one in imported(tree) if one.split(".")[0] in others}
            assert crossings <= {"indexes.open_retriever"}, name
            assert named(tree, ("apps",)) == [], name


def test_the_core_keeps_its_files_in_rooms() -> None:
    flat = {path.stem for path in (ROOT / "steprag").glob("*.py")}
    assert flat == {"__init__", "cli", "doctor", "errors", "extras", "tree", "types"}


def room_of(module: str) -> str | None:
    """The room of the core that a dotted module lies in; None where it lies beside them."""
    parts = module.split(".")
    return parts[1] if parts[0] == "steprag" and len(parts) > 1 and parts[1] in ROOMS else None


def test_the_rooms_of_the_core_import_only_rooms_below_them() -> None:
    upward, seen = [], 0
    for name, tree in below("steprag"):
        if name == "steprag.doctor":  # looks into all rooms
            continue
        height = ROOMS.index(room) if (room := room_of(name)) else -1
        for one in imported(tree):
            if other := room_of(one):
                seen += 1
                upward += [f"{name} imports {one}"] if ROOMS.index(other) > height else []
    assert upward == []
    assert seen > 50


def test_arrays_are_loaded_without_pickles() -> None:
    for name, tree in modules().items():
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            if ast.unparse(call.func) in ("np.load", "numpy.load"):
                assert "allow_pickle=False" in ast.unparse(call), f"{name}:{call.lineno}"


def test_texts_are_normalised_in_linear_time() -> None:
    files = {name for name, tree in modules().items() for node in ast.walk(tree)
             if isinstance(node, ast.Attribute) and ast.unparse(node) == "unicodedata.normalize"}  # fmt: skip
    assert files == {"steprag.records.normal_form"}


def test_no_module_is_named_in_pieces() -> None:
    """A wheel has the stages below `steprag` (`setup.py`), which rewrites whole names alone."""
    pieces = {
        name: ast.unparse(part)
        for name, tree in modules().items()
        for part in ast.walk(tree)
        if isinstance(part, ast.JoinedStr)
        and ast.unparse(part).lstrip("f\"'").startswith(tuple(f"{one}." for one in PACKAGES))
    }
    assert pieces == {}


def test_a_class_name_stands_once() -> None:
    classes = (node.name for tree in modules().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert [name for name, count in Counter(classes).items() if count > 1] == []


def test_every_package_is_listed_by_hand() -> None:
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    folders = (path.parent.relative_to(ROOT) for name in PACKAGES for path in (ROOT / name).rglob("__init__.py"))
    assert listed == {str(folder).replace("/", ".") for folder in folders}
