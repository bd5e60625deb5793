"""The `steprag` command: finds the stage's module and runs its `main`.

Nothing heavy is imported before the command is known, so `steprag --help` stays quick.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from steprag.config.env_file import without_env
from steprag.console.terminal import extras_named, guarded
from steprag.errors import ConfigError, nearest, quoted


@dataclass(frozen=True)
class Command:
    """A command's words, the module whose `main(argv) -> int` runs it, and one line of help."""

    words: str
    module: str
    help: str


COMMANDS = (
    Command("demo", "steprag.experiments.demo", "trees, pairs, training and a gain, in minutes; an index for the chat"),
    Command("reproduce stack", "steprag.experiments.stack_proof", "what do steps back and summaries bring? its report"),
    Command("reproduce", "steprag.experiments.reproduce", "does training on steps help? the proof, with its report"),
    Command("adapt questions", "steprag.experiments.adapt.questions", "questions with known paths, from an index"),
    Command("adapt", "steprag.experiments.adapt.adapt", "your documents to a trained agent, with its proof"),
    Command("tunnel", "steprag.experiments.tunnel.tunnel", "which step labels are worth their calls? over seeds"),
    Command("doctor", "steprag.doctor", "what this machine can do"),
    Command("index build", "indexes.commands.build", "corpus to vectors and a FAISS index"),
    Command("index adopt", "indexes.commands.adopt", "an index folder around a FAISS file that another program built"),
    Command("index search", "indexes.commands.search", "passages for a query"),
    Command("index serve", "indexes.service.serve", "an index folder over HTTP"),
    Command("index upload", "indexes.commands.upload", "an index folder into a Milvus collection"),
    Command("index export", "indexes.interop.corpus", "an index folder's passages as a corpus file for FlashRAG"),
    Command("index evaluate", "indexes.commands.evaluate", "recall of an index against supporting passages"),
    Command("policy", "steprag.engines.policy_command", "serve a model or adapter; convert what the trainer made"),
    Command("plan index", "indexes.commands.plan", "what each index type of a corpus takes on this machine"),
    Command("tools list", "indexes.commands.tools_list", "what the agent would be told of a tools file"),
    Command("plan train", "training.plan", "memory and disk of a training run, before it starts"),
    Command("plan infer", "inference.plan", "what a run of the agent will cost, before anything is spent"),
    Command("plan", "data_generation.plan", "what a generation run will cost, before anything is spent"),
    Command("generate", "data_generation.generate", "Monte Carlo tree search: questions to trees"),
    Command("trees merge", "steprag.batch.merge", "the shards of a run of generate or infer, as one run"),
    Command(
        "trees replay", "data_generation.replay", "trees again from a run's journal, with other rewards or stop rules"
    ),
    Command("trees weave", "data_generation.weave", "detours of finished trees as worked episodes of the stack agent"),
    Command("trees worked", "data_generation.worked", "worked episodes to supervised steps"),
    Command("trees recorded", "data_generation.interop.recorded", "calls of steprag record, folded into trees"),
    Command("trees belief", "data_generation.belief", "adds to finished trees what the policy believes of the answer"),
    Command("pairs import", "preference.exchange.proguide", "a published RAG_ProGuide.json to pairs and its prompts"),
    Command("pairs instruct", "preference.exchange.instruct", "instruction data to supervised steps of any grammar"),
    Command("pairs people", "preference.exchange.people", "what people changed and corrected in conversations"),
    Command("pairs export", "preference.exchange.export", "pairs for other tools: LLaMA-Factory, OpenAI, verl"),
    Command("pairs leakage", "preference.report.leakage", "looks for evaluation questions in a pairs folder"),
    Command("pairs", "preference.build", "trees to preference pairs and supervised steps"),
    Command("train", "training.train", "pairs, or the agent's own episodes, to a checkpoint"),
    Command("environment", "training.interop.openenv_service", "the agent's world for other trainers, by OpenEnv"),
    Command("infer", "inference.inference", "run the agent over questions and score it"),
    Command("record", "steprag.interop.record_command", "keeps the calls of any agent that speaks to an OpenAI API"),
    Command("serve --mcp", "inference.interop.mcp_command", "the agent as tools of any MCP client, by stdio or HTTP"),
    Command("serve", "inference.chat.serve", "talk to the agent: a web page that shows its work, and an OpenAI API"),
    Command("chat", "inference.chat.client", "talk to a service of `serve` in the terminal"),
    Command("ask", "inference.ask", "one question, its steps shown as they come"),
    Command("compare", "inference.scoring.compare", "runs of the agent side by side: table, paired tests, plots"),
    Command("view", "steprag.view.view", "trees, pairs, predictions and training curves of run folders, in a browser"),
    Command("score evaluate", "inference.scoring.evaluate", "score predictions again"),
    Command("score judge", "inference.scoring.answer_judge", "have a model say which answers are right"),
    Command("score export", "inference.interop.flashrag", "predictions of a run as FlashRAG's result file"),
    Command("score readings", "inference.readings", "does an agent that can go back keep what helps, and only that?"),
    Command("score lengths", "training.lengths", "how long questions, pairs and training rows are; a picture"),
    Command("check", "indexes.commands.check", "every byte of run and index folders against their manifests"),
)

FIRST = (
    *("demo", "serve", "ask", "index build", "generate", "pairs", "train", "infer", "compare", "view", "plan"),
    "doctor",
)
"""What a newcomer is shown first."""
NOUNS = ("index", "trees", "pairs", "score", "plan", "tools")
"""Words that stand before commands; alone they show these."""
UNTOUCHED = ("aiolimiter", "asyncio", "filelock", "importlib.metadata", "numpy", "yaml", "steprag.agent.grammars")
"""What commands' modules import whole and use in functions alone, so that no help needs it."""
MOVED = {
    **{f"{one}": f"trees {one}" for one in ("merge", "replay", "weave", "belief", "worked")},
    **{f"{one}": f"score {one}" for one in ("evaluate", "judge", "readings")},
    **{f"{one} check": "check" for one in ("run", "index")},
}
"""Commands' words of version 0.1, which still work."""


class _Untouched(ModuleType):
    """Stands for a module, which is imported when something of it is first asked for."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def main(argv: list[str] | None = None) -> int:
    """Runs `argv` (default: the process's arguments) and returns the exit code."""
    if argv is None and {"-h", "--help", "--help-all"} & {*sys.argv}:
        sys.modules.update({name: _Untouched(name) for name in UNTOUCHED if name not in sys.modules})
    return guarded(run, sys.argv[1:] if argv is None else argv)


def run(argv: list[str]) -> int:
    """Runs one command in this process; errors propagate."""
    argv = without_env(argv)
    if not argv or argv[0] in ("-h", "--help", "help"):
        sys.stdout.write(_help())
        return 0
    if argv[0] == "--version":
        from steprag.runs.run import code_version

        sys.stdout.write(code_version() + "\n")
        return 0
    if (noun := argv[0]) in NOUNS and (len(argv) == 1 or ({*argv[1:]} <= {"-h", "--help"} and noun not in FIRST)):
        sys.stdout.write(_help_of(noun))
        return 0
    if old := next((old for old in MOVED if argv[: len(old.split())] == old.split()), None):
        argv = [*MOVED[old].split(), *argv[len(old.split()) :]]
    for command in COMMANDS:
        words = command.words.split()
        flag = [one for one in argv if words[-1].startswith("--") and one.partition("=")[0] == words[-1]][:1]
        if flag and words[0] == argv[0]:  # a flag may stand anywhere; what it is set to stays
            place = argv.index(flag[0])
            argv = [*words, *argv[1:place], *filter(None, [flag[0].partition("=")[2]]), *argv[place + 1 :]]
        if argv[: len(words)] == words:
            with extras_named(command.words):
                return importlib.import_module(command.module).main(argv[len(words) :])
    wanted = " ".join(word for word in argv[:2] if not word.startswith("-"))
    group = [command.words for command in _of(argv[0])]
    told = nearest(wanted, group or [*(command.words for command in COMMANDS), *NOUNS])
    raise ConfigError(f"unknown command {quoted(wanted)}{told}")


def _of(noun: str) -> list[Command]:
    """The commands that stand under a word, the word's own first."""
    return sorted((one for one in COMMANDS if one.words.split()[0] == noun), key=lambda one: one.words != noun)


def _lines(commands: Sequence[Command]) -> str:
    width = max(len(command.words) for command in commands)
    return "".join(f"  {command.words:<{width}}  {command.help}\n" for command in commands)


def _help_of(noun: str) -> str:
    return f"usage: steprag {noun} …\n\n{_lines(_of(noun))}\nsteprag COMMAND --help explains a command's options.\n"


def _help() -> str:
    first = [command for words in FIRST for command in COMMANDS if command.words == words]
    alone = [one for one in COMMANDS if one.words.split()[0] not in NOUNS and one not in first]
    nouns = [
        Command(noun, "", ", ".join(one.words.removeprefix(f"{noun} ") for one in _of(noun) if one not in first))
        for noun in NOUNS
    ]
    return (
        "usage: steprag COMMAND [options]\n\n"
        "Step-level process supervision for agentic RAG.\n\n"
        f"{_lines(first)}\nmore, by what it works on (steprag trees shows what the words after trees do):\n\n"
        f"{_lines([*nouns, *alone])}\nsteprag COMMAND --help explains a command's options.\n"
        "steprag COMMAND --env FILE also sets variables: KEY=VALUE lines, for what the environment lacks.\n"
    )


if __name__ == "__main__":
    sys.exit(main())
