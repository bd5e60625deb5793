"""Pictures of reports: matplotlib without its global state or a display, and equal bytes for equal numbers."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from steprag.console.progress import say
from steprag.extras import remedy
from steprag.records.jsonl import written_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def can_draw() -> bool:
    """Whether matplotlib is installed; says which extra brings it where not. Reports are complete without plots."""
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        say(f"no plots: they need the extra `plots`: {remedy('plots')}")
        return False
    return True


def new_figure(width: float, height: float) -> Figure:
    """An empty figure in inches; matplotlib is imported here, on first use."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def png(figure: Figure, dpi: int) -> bytes:
    """The picture's file, without matplotlib's version in it."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=dpi, metadata={"Software": None})
    return stream.getvalue()


def save_png(figure: Figure, path: Path, dpi: int) -> None:
    """Writes the picture whole or not at all."""
    with written_whole(path, "wb") as stream:
        stream.write(png(figure, dpi))
