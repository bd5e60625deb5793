"""StepRAG inside FlashRAG (docs/howto/flashrag.md): the names under which programs of FlashRAG import it."""

from steprag import lazily

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
