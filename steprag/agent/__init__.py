"""The agent: grammar, prompts, environment, rollout. Read this folder and you know the algorithm."""
