"""The sizes of CTRL as options of a case."""

import argparse
from typing import Any

_NAMES = ("layers", "width", "heads", "feed_forward", "length")


def add_options(parser: argparse.ArgumentParser, **defaults: int) -> None:
    """An option for each of `_NAMES` and for the vocabulary, with its default."""
    for name in (*_NAMES, "vocabulary"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=defaults[name])


def model_config(arguments: argparse.Namespace, **more: Any) -> Any:
    """The `CtrlConfig` of these options. Only our side of a case has it: what it imports is ours."""
    from hayakuchi.config import CtrlConfig

    sizes = {name: getattr(arguments, name) for name in _NAMES}
    return CtrlConfig(vocabulary_size=arguments.vocabulary, **sizes, **more)
