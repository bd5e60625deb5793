"""Models whose scores only their makers' code knows; `indexes.open` asks for them by what their folders hold."""
