"""`prepare text`: corpora -> one data set directory with tokenizer, shards and report.

Two passes, both spread over worker processes and both in the order of the sources, so that the same input gives the
same bytes however many workers there are. The first parses, normalises and hashes; this process drops duplicates,
stages the texts on disk and keeps a sample for the tokenizer. The second encodes what was staged. Memory is bounded:
a few tasks in flight, the sample, and some numbers a document.

Everything is made in `OUT.partial` and renamed when complete: there is never half a data set under its own name.
"""

import json
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hayakuchi import progress
from hayakuchi.corpora.document import Document, Dropped, Reader, Record
from hayakuchi.data import dedup
from hayakuchi.data.shards import SPLITS, Counts, DatasetInfo, ShardWriter, Split, token_dtype
from hayakuchi.data.split import TextHash, text_hash, threshold
from hayakuchi.data.staging import Sample, Staging, Stretch
from hayakuchi.data.workers import WorkerPool, peak_memory_bytes
from hayakuchi.errors import UserError
from hayakuchi.text.codes import CODE_SLOTS, CodeBook
from hayakuchi.text.normalise import DEFAULT_POLICY, POLICIES, normalise
from hayakuchi.text.tokenizer import Tokenizer, train_tokenizer

SUBCODES = {"title": "題名：", "author": "作者："}
"""What stands before a title and an author where they are written in front of a document, a line each."""

TASK_BYTES = 1 << 20
SAMPLE_BYTES = 50_000_000
HELDOUT_SAMPLE_BYTES = 4_000_000
EXAMPLES = 5


@dataclass(frozen=True)
class TextPreparation:
    """How documents become a data set.

    Attributes:
      normalisation: policy of `text.normalise`.
      heldout_fraction: share of all documents that is held out.
      deduplicate: "none", "exact" or "near".
      subcodes: which of "title" and "author" are written in front of a document.
      minimum_characters: shorter documents are dropped.
    """

    normalisation: str = DEFAULT_POLICY
    heldout_fraction: float = 0.01
    deduplicate: dedup.Mode = "near"
    subcodes: tuple[str, ...] = ()
    minimum_characters: int = 1
