"""Monte Carlo tree search for one question, in waves: select, simulate, backup.

A wave selects up to `search.wave` leaves by its rule (UCT), counting simulations under way, simulates them at the same
time, and backs them up in the order of selection. A simulation touches only what is below its own leaf. So neither the
tree nor its node ids depend on which reply comes first.
"""

from __future__ import annotations

import asyncio

from data_generation.expand import Searcher, expand
from data_generation.growth import Rule, SearchNode, SearchTree, Simulation, add_reward, finished, upwards
from data_generation.stopping import left, verdict
from data_generation.values import Fresh, outcomes
from steprag.agent.belief import believe, gains
from steprag.errors import NotJournalled
from steprag.policy.traces import traced
from steprag.scores.metrics import f1, guessable
from steprag.tree import Tree

RIGHT = 0.5
"""F1 from which an answer counts as right, where a tree is stopped or prolonged."""


async def grow(tree: SearchTree, searcher: Searcher) -> Tree:
    """Grows the tree and returns it finished. Raises RequestError; `tree` keeps what was sampled until then."""
    while not (ended := verdict(tree, searcher.config.search, searcher.config.tree)):
        await run_wave(tree, searcher)
    return finished(tree, ended)


async def run_wave(tree: SearchTree, searcher: Searcher) -> None:
    """Simulates selected leaves at the same time, backs them up in order, then raises what a simulation raised."""
    simulations: list[Simulation] = []
    for _ in range(min(searcher.config.search.wave, left(tree, searcher.config.search))):
        leaf = select(tree, searcher.rule)
        if leaf is None:
            break
        leaf.busy = True
        leaf.mark_pending(1)
        simulations.append(Simulation(leaf))
    played = (traced(simulate(one, tree, searcher), "chain", "simulation") for one in simulations)
    ended = await asyncio.gather(*played, return_exceptions=True)
    for simulation in simulations:
        backup(simulation, tree)
    for node in (node for simulation in simulations for node in upwards(simulation.leaf)):
        node.busy = False
    for error in ended:
        if error is not None:
            raise error


def select(tree: SearchTree, rule: Rule) -> SearchNode | None:
    """The node to expand next: from the root, down the free child that `rule` prefers, to the first that is not full.

    None where everything is closed, or busy in this wave.
    """
    node = tree.root
    while not (node.closed or node.busy):
        if not node.full:
            return node
        free = [child for child in node.children if not (child.closed or child.busy)]
        if free:
            node = max(free, key=rule)  # the first of equals
        elif node.record.terminal:  # only where finished leaves are visited again
            return node
        else:
            node.busy = True
            node = tree.root
    return None


async def simulate(simulation: Simulation, tree: SearchTree, searcher: Searcher) -> None:
    """Samples the leaf's children, plays the first open one on to an answer, a request a step, and values what came
    out. Everything that was sampled stays in the tree.

    Where a replay's journal has no more calls, the simulation ends there; the answers that it came to count.
    """
    leaf = simulation.leaf
    try:
        fresh = [leaf] if leaf.record.terminal else await expand(simulation, leaf, tree, searcher)
        first = list(fresh)
        while searcher.config.search.play and (open_ := next((b for b in fresh if not b.record.terminal), None)):
            fresh = await expand(simulation, open_, tree, searcher)
        await _believe(simulation, tree, searcher)
        children = [node for node in first if node.record.failure is None]
        kept = [b for b in simulation.created if b.record.action and searcher.grammar.action(b.record.action).keeps]
        new = Fresh(children, _answers(simulation, tree), kept)
        simulation.valued, usage = await searcher.value(tree.question, new)
        simulation.usage += usage
    except NotJournalled:
        leaf.full = tree.short = True
        answers = _answers(simulation, tree)
        if not searcher.config.reward.judged:
            simulation.valued = outcomes(answers, searcher.config.reward.alpha)


async def _believe(simulation: Simulation, tree: SearchTree, searcher: Searcher) -> None:
    """Asks what the policy believes at the states that the simulation came to, and at the leaf where nobody asked yet.

    Not on questions that can be guessed: there belief says nothing, and each asking costs a prompt.
    """
    scorer, asked = searcher.scorer, tree.question
    if scorer is None or guessable(asked.question, asked.golden_answers):
        return
    everywhere = searcher.config.search.score_found
    open_ = [
        node
        for node in (simulation.leaf, *simulation.created)
        if not node.record.terminal and node.record.belief is None and (everywhere or not node.state.passages)
    ]
    believed = await asyncio.gather(*(believe(searcher.environment, scorer, asked, node.state) for node in open_))
    for node, belief in zip(open_, believed, strict=True):
        node.record = node.with_facts(belief=belief)


def _answers(simulation: Simulation, tree: SearchTree) -> list[SearchNode]:
    """The answers among what the simulation created, scored."""
    answers = [node for node in simulation.created if node.record.terminal and node.record.failure is None]
    for node in answers:
        node.record = node.with_facts(prediction_f1=f1(node.record.content, tree.question.golden_answers))
    return answers


def backup(simulation: Simulation, tree: SearchTree) -> None:
    """Numbers what the simulation created, backs its rewards up, and closes what is explored."""
    simulation.leaf.mark_pending(-1)
    tree.iterations += 1
    tree.usage += simulation.usage
    for node in simulation.created:
        tree.number(node)
        if node.record.prediction_f1 is not None:
            right = node.record.prediction_f1 >= RIGHT
            tree.right, tree.wrong = tree.right + right, tree.wrong + (not right)
        tree.gained = tree.gained or _gained(node)
    for node, reward in simulation.valued:
        add_reward(node, reward)
    for node in (*reversed(simulation.created), simulation.leaf):
        if not node.record.terminal:
            node.close_explored()


def _gained(node: SearchNode) -> bool:
    """Whether the belief rose since somebody last asked."""
    before = next((above.record.belief for above in upwards(node.parent) if above.record.belief), None)
    return node.record.belief is not None and before is not None and gains(node.record.belief, before)
