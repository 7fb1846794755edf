"""Files that exports of several kinds write."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hayakuchi import strict_json
from hayakuchi.errors import MissingExtraError


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(strict_json.dumps(values) + "\n", encoding="utf-8")


def write_safetensors(folder: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes `model.safetensors` for `transformers` into a folder that has its `config.json`.

    Raises:
      OSError: the file cannot be written.
      MissingExtraError: the library `safetensors` is not installed.
    """
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import save_file
    except ImportError as error:
        raise MissingExtraError("safetensors", "hf", "export --format hf") from error
    try:
        save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
    except SafetensorError as error:  # what it makes of a full disk
        raise OSError(str(error)) from error
    # safetensors lets nobody but the owner read the file.
    shutil.copymode(folder / "config.json", folder / "model.safetensors")


def folder_bytes(folder: Path) -> int:
    """Size of the files in a folder."""
    return sum(file.stat().st_size for file in folder.iterdir())
