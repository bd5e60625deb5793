"""StepRAG as a library: the names that `import steprag` offers."""

from __future__ import annotations

import subprocess
import sys

import steprag


def test_the_librarys_names_are_there_and_nothing_is_imported_before_they_are_used() -> None:
    assert [name for name in steprag.__all__ if not hasattr(steprag, name)] == []
    assert set(steprag.__all__) == set(steprag._MODULES), "a name of __all__ has no home"
    assert {name for name in steprag.__all__ if name not in dir(steprag)} == set()
    code = (
        "import sys, steprag\n"
        "assert {n for n in sys.modules if n.startswith('steprag')} == {'steprag'}, sys.modules.keys()\n"
        "steprag.Question('q', 'Who?', ('x',), {})\n"
        "from steprag import *\n"
        "assert not {'torch', 'faiss', 'transformers'} & set(sys.modules)\n"
        "try: steprag.Qestion\n"
        "except AttributeError as error: print(error)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.stdout == "module 'steprag' has no attribute 'Qestion'\n", ended.stderr
