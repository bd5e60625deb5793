"""The chat service's routes: turns, conversations, sources, the OpenAI API."""
