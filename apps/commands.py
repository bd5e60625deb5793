"""The commands of `steprag` and their configurations: the tables that name stages and apps, and the program's entry."""

from __future__ import annotations

import atexit
import gc
import importlib
import sys
from typing import TYPE_CHECKING

from steprag import cli
from steprag.cli import Command, CommandTable
from steprag.engines.threads import rare_collections

if TYPE_CHECKING:
    from steprag.config.load import StageConfig

COMMANDS = (
    Command("demo", "apps.demo.demo", "trees, pairs, training and a gain, in minutes; an index for the chat"),
    Command("reproduce stack", "apps.reproduce.stack_proof", "measures whether backtracking and summaries help"),
    Command("reproduce", "apps.reproduce.reproduce", "measures whether training on steps helps, with a report"),
    Command("adapt questions", "apps.adapt.questions", "questions with known paths, from an index"),
    Command("adapt", "apps.adapt.adapt", "turns your documents into a trained agent, with a report"),
    Command("tunnel", "apps.tunnel.tunnel", "compares step labels per call, over seeds"),
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
    Command("tools list", "indexes.commands.tools_list", "how the prompt would describe the tools of a tools file"),
    Command("plan train", "training.plan", "memory and disk of a training run, before it starts"),
    Command("plan labels", "preference.support", "can step labels help, before anything is trained"),
    Command("plan infer", "inference.plan", "what a run of the agent will cost, before it starts"),
    Command("plan", "data_generation.plan", "what a generation run will cost, before it starts"),
    Command("generate", "data_generation.generate", "Monte Carlo tree search: questions to trees"),
    Command("trees merge", "apps.merge", "the shards of a run of generate or infer, as one run"),
    Command(
        "trees replay", "data_generation.replay", "trees again from a run's journal, with other rewards or stop rules"
    ),
    Command("trees weave", "data_generation.weave", "trees to worked episodes for an agent that can go back"),
    Command("trees worked", "data_generation.worked", "worked episodes to supervised steps for training"),
    Command("trees recorded", "data_generation.interop.recorded", "calls of steprag record, folded into trees"),
    Command("trees belief", "data_generation.belief", "how likely the policy finds the answer, added to trees"),
    Command("pairs import", "preference.exchange.proguide", "a published RAG_ProGuide.json to pairs and its prompts"),
    Command("pairs instruct", "preference.exchange.instruct", "instruction data to supervised steps of any grammar"),
    Command("pairs people", "preference.exchange.people", "what people changed and corrected in conversations"),
    Command("pairs export", "preference.exchange.export", "pairs for other tools: LLaMA-Factory, OpenAI, verl"),
    Command("pairs leakage", "preference.report.leakage", "looks for evaluation questions in a pairs folder"),
    Command("pairs", "preference.build", "trees to preference pairs and supervised steps"),
    Command("train", "training.train", "pairs, or the agent's own episodes, to a checkpoint"),
    Command("environment", "training.interop.openenv_service", "the agent's world for other trainers, by OpenEnv"),
    Command("infer", "inference.inference", "run the agent over questions and score it"),
    Command("record", "apps.record.command", "keeps the calls of any agent that speaks to an OpenAI API"),
    Command("serve --mcp", "apps.mcp.command", "the agent as tools of any MCP client, by stdio or HTTP"),
    Command("serve", "apps.chat.serve", "talk to the agent: a web page that shows its work, and an OpenAI API"),
    Command("chat", "apps.chat.client", "talk to a service of `serve` in the terminal"),
    Command("ask", "inference.ask", "one question, its steps shown as they come"),
    Command("compare", "inference.scoring.compare", "runs of the agent side by side: table, paired tests, plots"),
    Command("view", "apps.viewer.view", "trees, pairs, predictions and training curves of run folders, in a browser"),
    Command("score evaluate", "inference.scoring.evaluate", "score predictions again"),
    Command("score judge", "inference.scoring.answer_judge", "have a model say which answers are right"),
    Command("score export", "inference.interop.flashrag", "predictions of a run as FlashRAG's result file"),
    Command("score readings", "inference.readings", "does an agent that can go back keep what helps, and only that"),
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
CONFIGS = (
    "indexes.config:IndexConfig",
    "indexes.commands.evaluate:EvaluateConfig",
    "indexes.commands.search:SearchStageConfig",
    "indexes.config:ServeConfig",
    "indexes.web.config:WebFileConfig",
    "data_generation.config:GenerateConfig",
    "data_generation.worked:WorkedConfig",
    "preference.config:PairsStageConfig",
    "preference.config:LeakageStageConfig",
    "training.config:TrainConfig",
    "inference.config:InferConfig",
    "inference.scoring.answer_judge:AnswerJudgeConfig",
    "apps.chat.config:ChatConfig",
    "inference.readings:ReadingsConfig",
    "apps.adapt.questions:QuestionsConfig",
    "apps.adapt.adapt:AdaptConfig",
)
"""The configurations of all commands: what may be set in the environment (`steprag.config.load.environment`)."""

TABLE = CommandTable(COMMANDS, FIRST, NOUNS, MOVED, UNTOUCHED)


def main(argv: list[str] | None = None) -> int:
    """Runs `argv` (default: the process's arguments) and returns the exit code."""
    if argv is None:
        atexit.register(gc.freeze)  # a process that ends need not look once more for what is unused: a second of torch
    with rare_collections(700, 100):
        return cli.main(TABLE, argv)


def run(argv: list[str]) -> int:
    """Runs one command in this process; errors propagate."""
    with rare_collections(700, 100):
        return cli.run(TABLE, argv)


def configurations() -> list[type[StageConfig]]:
    """The classes of `CONFIGS`, loaded."""
    places = [each.split(":") for each in CONFIGS]
    return [getattr(importlib.import_module(module), name) for module, name in places]


if __name__ == "__main__":
    sys.exit(main())
