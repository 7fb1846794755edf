"""Pictures for reports, drawn without a display."""

import importlib.util
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hayakuchi.errors import MissingExtraError

# matplotlib brings no Japanese; whichever of these is installed lends its characters.
_JAPANESE_FONTS = (
    "Noto Sans CJK JP",
    "Noto Sans JP",
    "IPAexGothic",
    "TakaoGothic",
    "Hiragino Sans",
    "Yu Gothic",
    "Meiryo",
)


def check_installed() -> None:
    """Finds out before the work whether its picture can be drawn.

    Raises:
      MissingExtraError: `matplotlib` is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtraError("matplotlib", "report", "drawing charts")


def save_bars(path: Path, values: Mapping[str, float], label: str) -> None:
    """Draws one horizontal bar for each name, the first on top, with its value beside it.

    Args:
      path: PNG file.
      values: length of each bar.
      label: what the length means, with its unit.

    Raises:
      OSError: `path` cannot be written.
    """
    # Of an optional extra.
    from matplotlib.figure import Figure

    with drawing():
        figure = Figure(figsize=(7, 1.2 + 0.35 * len(values)), layout="constrained")
        axes = figure.add_subplot()
        bars = axes.barh(list(values), list(values.values()))
        axes.bar_label(bars, fmt="%.3f", padding=3)
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.set_xlabel(label)
        figure.savefig(path, dpi=150)


@contextmanager
def drawing() -> Iterator[None]:
    """What is drawn inside has Japanese characters where a font of the machine has them."""
    from matplotlib import font_manager, rc_context

    installed = set(font_manager.get_font_names())
    fonts = ["DejaVu Sans", *(font for font in _JAPANESE_FONTS if font in installed)]
    with rc_context({"font.family": fonts}), warnings.catch_warnings():
        # Without a Japanese font its names are drawn as boxes: no reason to fail, or to warn once a character.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield
