"""The `steprag` command: finds the stage's module and runs its `main`.

Nothing heavy is imported before the command is known, so `steprag --help` stays quick.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass

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
    Command("tunnel", "steprag.experiments.tunnel.tunnel", "which step labels are worth their calls? over seeds"),
    Command("doctor", "steprag.doctor", "what this machine can do"),
    Command("index build", "indexes.commands.build", "corpus to vectors and a FAISS index"),
    Command("index adopt", "indexes.commands.adopt", "an index folder around a FAISS file that another program built"),
    Command("index check", "indexes.commands.check", "an index folder's files and vectors against its manifest"),
    Command("index search", "indexes.commands.search", "passages for a query"),
    Command("index serve", "indexes.service.serve", "an index folder over HTTP"),
    Command("index upload", "indexes.commands.upload", "an index folder into a Milvus collection"),
    Command("index evaluate", "indexes.commands.evaluate", "recall of an index against supporting passages"),
    Command("policy", "steprag.engines.policy_command", "serve a model or adapter; convert what the trainer made"),
    Command("worked", "data_generation.worked", "worked episodes to supervised steps"),
    Command("plan index", "indexes.commands.plan", "what each index type of a corpus takes on this machine"),
    Command("tools list", "indexes.commands.tools_list", "what the agent would be told of a tools file"),
    Command("plan train", "training.plan", "memory and disk of a training run, before it starts"),
    Command("plan", "data_generation.plan", "what a generation run will cost, before anything is spent"),
    Command("generate", "data_generation.generate", "Monte Carlo tree search: questions to trees"),
    Command("merge", "steprag.batch.merge", "the shards of a run of generate or infer, as one run"),
    Command("replay", "data_generation.replay", "trees again from a run's journal, with other rewards or stop rules"),
    Command("weave", "data_generation.weave", "detours of finished trees as worked episodes of the stack agent"),
    Command("belief", "data_generation.belief", "adds to finished trees what the policy believes of the golden answer"),
    Command("pairs import", "preference.exchange.proguide", "a published RAG_ProGuide.json to pairs and its prompts"),
    Command("pairs people", "preference.exchange.people", "what people changed and corrected in conversations"),
    Command("pairs export", "preference.exchange.export", "pairs for other tools: LLaMA-Factory, OpenAI, verl"),
    Command("pairs leakage", "preference.report.leakage", "looks for evaluation questions in a pairs folder"),
    Command("pairs", "preference.build", "trees to preference pairs and supervised steps"),
    Command("train", "training.train", "pairs, or the agent's own episodes, to a checkpoint"),
    Command("infer", "inference.inference", "run the agent over questions and score it"),
    Command("serve", "inference.chat.serve", "talk to the agent: a web page that shows its work, and an OpenAI API"),
    Command("ask", "inference.ask", "one question, its steps shown as they come"),
    Command("compare", "inference.scoring.compare", "runs of the agent side by side: table, paired tests, plots"),
    Command("view", "steprag.view.view", "trees, pairs, predictions and training curves of run folders, in a browser"),
    Command("evaluate", "inference.scoring.evaluate", "score predictions again"),
    Command("run check", "steprag.runs.check", "finished run folders against the hashes in their manifests"),
    Command("readings", "inference.readings", "does an agent that can go back keep what helps, and only that?"),
    Command("judge", "inference.scoring.answer_judge", "have a model say which answers are right"),
)

FIRST = ("demo", "serve", "ask", "index build", "generate", "pairs", "train", "infer", "compare", "view", "doctor")
"""What a newcomer is shown first."""


def main(argv: list[str] | None = None) -> int:
    """Runs `argv` (default: the process's arguments) and returns the exit code."""
    return guarded(run, sys.argv[1:] if argv is None else argv)


def run(argv: list[str]) -> int:
    """Runs one command in this process; errors propagate."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        sys.stdout.write(_help())
        return 0
    if argv[0] == "--version":
        from steprag.runs.run import code_version

        sys.stdout.write(code_version() + "\n")
        return 0
    for command in COMMANDS:
        words = command.words.split()
        if argv[: len(words)] == words:
            with extras_named(command.words):
                return importlib.import_module(command.module).main(argv[len(words) :])
    known = [command.words for command in COMMANDS]
    wanted = " ".join(word for word in argv[:2] if not word.startswith("-"))
    if group := [words for words in known if words.startswith(argv[0] + " ")]:
        known = group
    told = f"; known: {', '.join(known)}" if wanted == argv[0] and group else nearest(wanted, known)
    raise ConfigError(f"unknown command {quoted(wanted)}{told}")


def _help() -> str:
    width = max(len(command.words) for command in COMMANDS)
    lines = {command.words: f"  {command.words:<{width}}  {command.help}\n" for command in COMMANDS}
    return (
        "usage: steprag COMMAND [options]\n\n"
        "Step-level process supervision for agentic RAG.\n\n"
        + "".join(lines.pop(words) for words in FIRST)
        + "\nmore:\n\n"
        + "".join(lines.values())
        + "\nsteprag COMMAND --help explains a command's options.\n"
    )


if __name__ == "__main__":
    sys.exit(main())
