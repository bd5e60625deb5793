"""The house as DESIGN has it, read from the imports: no circle between files, few flat files in the core."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("steprag", "indexes", "data_generation", "preference", "training", "inference")


def modules() -> dict[str, Path]:
    """All modules of the product by their dotted names."""
    found = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in found}


def imported(path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of the product that a file imports, inside functions and for types too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names} & known.keys()
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                names |= {submodule if submodule in known else node.module} & known.keys()
    return names


def test_no_file_imports_itself_by_way_of_others() -> None:
    known = modules()
    arrows = {name: imported(path, known) - {name} for name, path in known.items()}
    assert sum(map(len, arrows.values())) > 1000
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


def test_the_core_keeps_its_files_in_rooms() -> None:
    flat = {path.stem for path in (ROOT / "steprag").glob("*.py")}
    assert flat == {"__init__", "cli", "doctor", "errors", "extras", "tree", "types"}
