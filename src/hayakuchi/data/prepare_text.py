"""`prepare text`: corpora -> one data set directory with tokenizer, shards and report.

Two passes, both spread over worker processes and both in the order of the sources, so that the same input gives the
same bytes however many workers there are. The first parses, normalises and hashes; this process drops duplicates,
stages the texts on disk and keeps a sample for the tokenizer. The second encodes what was staged. Memory is bounded:
a few tasks in flight, the sample, and some numbers a document.

Everything is made in a folder `OUT.partial` of its own and moved when complete: there is never half a data set
under its own name, and two preparations do not meet.
"""

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from hayakuchi import progress, strict_json
from hayakuchi.corpora.document import Dropped, Reader, Record
from hayakuchi.data import text_tasks
from hayakuchi.data.dedup import Deduplicator
from hayakuchi.data.shards import SPLITS, Counts, DatasetInfo, ShardWriter, Split, checksums
from hayakuchi.data.split import threshold
from hayakuchi.data.staging import Sample, Staging
from hayakuchi.data.text_report import SourceReport, nothing_left, sources_summary, summary, text_rates
from hayakuchi.data.text_tasks import EncodeTask, ParseTask, PrepareOptions, Usage
from hayakuchi.data.workers import WorkerPool
from hayakuchi.directories import new_directory
from hayakuchi.errors import UserError
from hayakuchi.text.codes import CODE_SLOTS, CodeBook
from hayakuchi.text.tokenizer import Tokenizer, TokenizerReport, train_tokenizer

__all__ = ["PrepareOptions", "prepare_text", "summary"]

TASK_BYTES = 1 << 20
SAMPLE_BYTES = 50_000_000
HELDOUT_SAMPLE_BYTES = 4_000_000

_STAGED, _MODEL, _INFO, _REPORT = "staging.utf8", "tokenizer.model", "dataset.json", "report.json"


def prepare_text(out: Path, sources: Sequence[Reader], options: PrepareOptions) -> dict[str, Any]:
    """Makes a data set directory (ARCHITECTURE.md).

    Args:
      out: where; must not exist, or be an empty directory.
      sources: what to read, in this order.
      options: how.

    Returns:
      The report, as it stands in `report.json`; `summary` tells it in words.

    Raises:
      UserError: an unreadable source or tokenizer, no document left, `out` taken, or no room on the disk. Nothing is
        left behind then.
    """
    if options.tokenizer is not None:
        # Refuses a bad one; better now than after hours of reading.
        Tokenizer.load(options.tokenizer)
    with new_directory(out) as folder, WorkerPool(options.workers or os.cpu_count() or 1) as pool:
        return _Preparation(folder, sources, options, pool).run()


class _Preparation:
    """One run: the steps in their order, and what the report says of them."""

    def __init__(self, folder: Path, sources: Sequence[Reader], options: PrepareOptions, pool: WorkerPool) -> None:
        self._folder = folder
        self._sources = sources
        self._options = options
        self._pool = pool
        self._reports = [SourceReport.of(reader) for reader in sources]
        self._train_sample = Sample(SAMPLE_BYTES)
        self._heldout_sample = Sample(HELDOUT_SAMPLE_BYTES)
        self._counts: dict[Split, dict[str, Counts]] = {}
        self._byte_tokens = 0
        self._notes: list[str] = []
        self._peaks: dict[int, int] = {}

    def run(self) -> dict[str, Any]:
        """Writes the data set into the folder and returns the report."""
        clock = [time.perf_counter()]
        staged = self._folder / _STAGED
        with Staging(staged) as staging:
            self._read(staging)
        thresholds = staging.thresholds(self._options.heldout_fraction)
        clock.append(time.perf_counter())
        model = self._folder / _MODEL
        training = None
        if self._options.tokenizer is None:
            heldout_below = dict(zip(staging.code_names, thresholds, strict=True))
            training = self._train_tokenizer(heldout_below, model)
        else:
            shutil.copyfile(self._options.tokenizer, model)
        clock.append(time.perf_counter())
        loaded = Tokenizer.load(model)
        codes = CodeBook.from_names(staging.code_names, "sources")
        self._encode(staging, thresholds, codes, model, loaded)
        staged.unlink()
        clock.append(time.perf_counter())

        DatasetInfo(
            codes=codes,
            tokenizer_sha256=loaded.sha256,
            vocabulary_size=loaded.vocabulary_size,
            normalisation=self._options.normalisation,
            subcodes=self._options.subcodes,
            counts=self._counts,
            checksums=checksums(self._folder),
        ).save(self._folder / _INFO)
        report = self._report(loaded, training, np.diff(clock).tolist())
        text = strict_json.dumps(report) + "\n"
        # A path may hold bytes that are no UTF-8.
        (self._folder / _REPORT).write_text(text, encoding="utf-8", errors="replace")
        return report

    def _read(self, staging: Staging) -> None:
        """First pass: documents into the staging file and the samples."""
        sizes = [reader.size_bytes() for reader in self._sources]
        known = [size for size in sizes if size is not None]
        deduplicator = Deduplicator(self._options.deduplicate)
        self._notes = [deduplicator.note] if deduplicator.note else []
        general = threshold(self._options.heldout_fraction)
        with progress.bar("reading", sum(known) if len(known) == len(sizes) else None) as bar:
            for result in self._pool.map(text_tasks.parse, self._parse_tasks()):
                self._note(result.usage)
                report = self._reports[result.source]
                report.records += result.records
                report.input_bytes += result.size
                report.documents_in += len(result.documents)
                for document in result.documents:
                    if isinstance(document, Dropped):
                        report.drop(document)
                    elif reason := deduplicator.add(document.signature):
                        report.drop(Dropped(document.origin, reason))
                    else:
                        report.documents_out += 1
                        staging.add(document.text, document.characters, document.code, document.hashes.split)
                        heldout = document.hashes.split < general
                        sample = self._heldout_sample if heldout else self._train_sample
                        sample.add(document.text, document.code, document.hashes)
                if len(staging.code_names) >= CODE_SLOTS:
                    # Refuses them; better now than after hours of reading.
                    CodeBook.from_names(staging.code_names, "sources")
                bar.advance(result.size)
        if not len(staging):
            raise UserError(nothing_left(self._reports))

    def _parse_tasks(self) -> Iterator[ParseTask]:
        for source, reader in enumerate(self._sources):
            records: list[Record] = []
            size = 0
            for record in reader.records():
                records.append(record)
                size += len(record.data)
                if size >= TASK_BYTES:
                    yield ParseTask(source, reader, records, self._options)
                    records, size = [], 0
            if records:
                yield ParseTask(source, reader, records, self._options)

    def _train_tokenizer(self, heldout_below: dict[str, int], model: Path) -> TokenizerReport:
        """Trains on the sample, without what small codes hold out besides."""
        texts: dict[bool, list[str]] = {False: [], True: []}
        for sampled in [*self._train_sample.texts(), *self._heldout_sample.texts()]:
            heldout = sampled.split_hash < heldout_below[sampled.code]
            texts[heldout].append(sampled.text.decode("utf-8", "ignore"))
        return train_tokenizer(texts[False], texts[True], model, vocabulary_size=self._options.vocabulary_size)

    def _encode(
        self, staging: Staging, thresholds: list[int], codes: CodeBook, model: Path, tokenizer: Tokenizer
    ) -> None:
        """Second pass: staged texts into shards."""
        names = staging.code_names
        self._counts = {split: {name: Counts() for name in names} for split in SPLITS}
        tasks = (EncodeTask(stretch, model, tokenizer.sha256) for stretch in staging.stretches(TASK_BYTES))
        places = zip(staging.codes, staging.split_hashes, staging.characters, staging.sizes, strict=True)
        with ExitStack() as stack, progress.bar("encoding", sum(staging.sizes)) as bar:
            writers = {
                split: stack.enter_context(ShardWriter(self._folder / split, tokenizer.vocabulary_size))
                for split in SPLITS
            }
            for result in self._pool.map(text_tasks.encode, tasks):
                self._note(result.usage)
                self._byte_tokens += result.byte_tokens
                for ids in np.split(result.ids, np.cumsum(result.lengths)[:-1]):
                    code, split_hash, characters, size = next(places)
                    split: Split = "heldout" if split_hash < thresholds[code] else "train"
                    writers[split].add(ids, characters=characters, size=size, code=codes.slot(names[code]))
                    self._counts[split][names[code]].add(len(ids), characters, size)
                bar.advance(result.size)

    def _note(self, usage: Usage) -> None:
        self._peaks[usage.process] = usage.peak_bytes

    def _report(
        self, tokenizer: Tokenizer, training: TokenizerReport | None, seconds: Sequence[float]
    ) -> dict[str, Any]:
        self._note(text_tasks.usage())
        reading, learning, encoding = seconds
        megabytes = sum(source.input_bytes for source in self._reports) / 1e6
        return {
            "notes": self._notes,
            **sources_summary(self._reports),
            "splits": {
                split: {name: asdict(c) for name, c in by_code.items()} for split, by_code in self._counts.items()
            },
            "vocabulary_size": tokenizer.vocabulary_size,
            **text_rates([c for by_code in self._counts.values() for c in by_code.values()], self._byte_tokens),
            "tokenizer_training": training and asdict(training),
            "options": {
                **asdict(self._options),
                "tokenizer": self._options.tokenizer and str(self._options.tokenizer),
                "subcodes": list(self._options.subcodes),
            },
            "seconds": {"reading": reading, "tokenizer": learning, "encoding": encoding},
            "input_megabytes": megabytes,
            "megabytes_per_second": megabytes / (reading + encoding),
            "processes": len(self._peaks),
            "peak_memory_bytes": sum(self._peaks.values()),
        }
