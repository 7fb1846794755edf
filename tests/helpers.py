"""Small data sets and recipes that several tests share."""

import hashlib
from pathlib import Path

import numpy as np

from hayakuchi.config import CtrlConfig, CtrlRecipe, OptimizerConfig, TextDataConfig, TrainConfig
from hayakuchi.data.shards import SPLITS, Counts, DatasetInfo, ShardWriter, checksums
from hayakuchi.text.codes import CODE_SLOTS, CodeBook
from hayakuchi.text.tokenizer import EOS_ID, FIRST_CODE_ID
from hayakuchi.tracing.walk import walk

VOCABULARY = 120
LENGTH = 16
STAND_IN = b"stand-in"
"""The tokenizer of `random_dataset`."""


def random_dataset(folder: Path, documents: int = 40, seed: int = 0) -> Path:
    """A data set directory of random documents of two codes; its tokenizer.model is only a stand-in."""
    random = np.random.default_rng(seed)
    book = CodeBook.from_names(["even", "odd"])
    counts = {split: {"even": Counts(), "odd": Counts()} for split in SPLITS}
    for split, number in zip(SPLITS, (documents, 6), strict=True):
        with ShardWriter(folder / split, VOCABULARY) as writer:
            for index in range(number):
                name = ("even", "odd")[index % 2]
                ids = random.integers(FIRST_CODE_ID + CODE_SLOTS, VOCABULARY, random.integers(3, 40))
                ids = np.append(ids, EOS_ID)
                writer.add(ids, characters=2 * len(ids), size=6 * len(ids), code=book.slot(name))
                counts[split][name].add(len(ids), 2 * len(ids), 6 * len(ids))
    sha256 = hashlib.sha256(STAND_IN).hexdigest()
    (folder / "tokenizer.model").write_bytes(STAND_IN)
    DatasetInfo(book, sha256, VOCABULARY, "nfkc", (), counts, checksums(folder)).save(folder / "dataset.json")
    return folder


def tiny_recipe(**train) -> CtrlRecipe:
    """Two small layers, every other setting at its default, dropout on."""
    return CtrlRecipe(
        name="tiny",
        model=CtrlConfig(vocabulary_size=VOCABULARY, length=LENGTH, layers=2, width=16, heads=2, feed_forward=32),
        optimizer=OptimizerConfig(learning_rate=1e-2, warmup_steps=3),
        data=TextDataConfig(),
        train=TrainConfig(**{"steps": 10, "batch": 4, "checkpoint_every": 100, "log_every": 1, **train}),
    )


def count_equations(jaxpr) -> int:
    """Equations of a jaxpr, nested ones too; the body of a loop counts once."""
    return sum(1 for _ in walk(jaxpr))
