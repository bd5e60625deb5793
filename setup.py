"""What `pip install` of a wheel differs in: it claims one name, `steprag`, with the stages and `configs` below it.

Imports and names of modules are rewritten to fit. In a checkout, also an editable one, path is import name.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

STAGES = ("indexes", "data_generation", "preference", "training", "inference", "apps")
"""The stages, and the apps above them."""
NAMES = "|".join(STAGES)
IMPORTED = re.compile(rf"^(\s*(?:from|import) )(?=(?:{NAMES})\b)", re.MULTILINE)
QUOTED = re.compile(rf"""(["'])(?=(?:{NAMES})(?:\.\w+)+(?::\w+)?\1)""")
"""Where a string begins that is a module's name, or names something in it."""
CONFIGS = 'parents[{}] / "configs"'


class BuildBelow(build_py):
    """Builds as ever, then moves what stands beside `steprag` below it."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        home = Path(self.build_lib) / "steprag"
        for stage in STAGES:
            shutil.rmtree(home / stage, ignore_errors=True)  # of an earlier build
            (home.parent / stage).rename(home / stage)
        shutil.copytree("configs", home / "configs", dirs_exist_ok=True)
        for path in (*home.rglob("*.py"), *home.rglob("*.pyi")):
            text = IMPORTED.sub(r"\1steprag.", path.read_text(encoding="utf-8"))
            text = QUOTED.sub(r"\1steprag.", text)
            if path.relative_to(home).parts[0] not in STAGES:
                text = text.replace(CONFIGS.format(2), CONFIGS.format(1))
            path.write_text(text, encoding="utf-8")


class WheelBelow(bdist_wheel):
    """Names the entry points of a wheel as its modules are called."""

    def write_wheelfile(self, wheelfile_base: str, *arguments: str) -> None:
        if "bdist_wheel" in self.distribution.commands:  # an editable one is made by another command
            points = Path(wheelfile_base) / "entry_points.txt"
            points.write_text(re.sub(rf"= (?=(?:{NAMES})\.)", "= steprag.", points.read_text(encoding="utf-8")))
        super().write_wheelfile(wheelfile_base, *arguments)


setup(cmdclass={"build_py": BuildBelow, "bdist_wheel": WheelBelow})
