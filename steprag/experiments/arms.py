"""By what the arms of `steprag reproduce` label steps: the options of `steprag pairs` that make an arm's data."""

SOUND = ("--filters.repeating", "true", "--filters.again", "true", "--filters.unread", "true",
         "--filters.made_up", "true", "--pairs.cross_action", "false", "--sft.per_tree", "3")  # fmt: skip
"""What is learnt from in every arm. A small model rambles, asks again, makes evidence up, and guesses at the end. Pairs
of a search and an answer are left out: the agent learnt to search on and on (docs/results-shipped-start.md). One
episode a tree would be too few.
"""
STEPS = ("--label.grounded", "true", "--sft.paths", "shortest")
"""Of right episodes, those whose facts were found, for luck teaches to guess; the shortest, for the others dawdle."""
RULES = {
    "gain": (*SOUND, *STEPS, "--label.name", "gain", "--sft.partial", "kept"),
    "cover": (*SOUND, *STEPS, "--label.name", "cover", "--label.alpha", "1", "--sft.partial", "kept"),
    "rollouts": (*SOUND, "--label.alpha", "1", "--sft.paths", "surest"),
    "outcome": (*SOUND, "--label.name", "first_answer", "--label.metric", "em", "--label.alpha", "1",
                "--pairs.errors", "0", "--sft.paths", "all"),
}  # fmt: skip
"""What makes an arm's supervised steps and pairs: beliefs and found answers; string match; the mean of the rollouts
below; right episodes and where they part from wrong ones, whatever other episodes say. Without a discount: with one,
pairs would teach to answer early (docs/results-shipped-start.md).
"""
