"""Metrics of a run: fetched a step late, written to `metrics.jsonl` and TensorBoard, shown on the progress line."""

import json
import math
import os
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from tensorboardX import summary
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import RecordWriter

from hayakuchi import strict_json
from hayakuchi.errors import UserError
from hayakuchi.progress import Bar
from hayakuchi.train import media

_LONGEST_LINE_BYTES = 1 << 20


class NonFiniteLossError(RuntimeError):
    """The loss, the gradient or the state of a step was NaN or infinite; that state and later ones were not saved.

    Attributes:
      step: the first that is known to be bad.
      kept: folder of what the step was given (`train.dump`), once it is written.
    """

    def __init__(self, step: int, found: str) -> None:
        self.step = step
        self.kept: Path | None = None
        super().__init__(
            f"step {step}: {found}: the checkpoints before it are whole. Lower --learning-rate, "
            "lengthen --warmup-steps or use --precision float32, in a new run"
        )

    def __str__(self) -> str:
        if self.kept is None:
            return super().__str__()
        return f"{super().__str__()}. `hayakuchi inspect --replay {self.kept}` finds where it begins"


@dataclass
class Clock:
    """Where the time of a run went, in seconds.

    Attributes:
      waiting: for the next batch.
      paused: in checkpoints and held-out losses, which throughput leaves out.
    """

    waiting: float = 0.0
    paused: float = 0.0
    started: float = field(default_factory=time.monotonic)

    def training(self) -> float:
        """Seconds since the start without the pauses."""
        return time.monotonic() - self.started - self.paused


class Reporter:
    """Takes the metrics of every step as device arrays and reads those of the step before.

    The device is then busy with the newest step while the host waits for an older one: it never runs dry.

    Args:
      folder: run directory; lines are appended, so that a resumed run goes on in the same files. None writes no files:
        of several processes only the first does.
      bar: progress bar to write on.
      log_every: steps between lines in the files.
      unit: the metric that throughput counts.
      sample_rate_hz: of the sounds given to `show`.

    Raises:
      UserError: the files cannot be made; of `write` and at the end of the `with` block, cannot be written.
    """

    def __init__(
        self, folder: Path | None, bar: Bar, log_every: int, unit: str = "tokens", sample_rate_hz: int = 0
    ) -> None:
        self._folder = folder
        self._unit = unit
        self._sample_rate_hz = sample_rate_hz
        try:
            self._lines = (folder / "metrics.jsonl").open("a", encoding="utf-8") if folder else None
            # TensorBoard finds files by the middle part and orders those of one folder by name.
            self._event_path = (folder or Path()) / "tensorboard" / f"events.out.tfevents.{time.time_ns():020}"
            self._events = _event_file(self._event_path) if folder else None
        except OSError as error:
            raise self._failure(error) from error
        self._bar = bar
        self._log_every = log_every
        self._pending: tuple[int, Mapping[str, Any]] | None = None
        self._recent: deque[tuple[float, float]] = deque(maxlen=50)
        self.clock = Clock()
        self.done = 0.0
        self.last: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._lines is None or self._events is None:
            return
        for file in (self._lines, self._events):
            try:
                file.close()
            except OSError as failure:
                # After a failed write, closing tries to write the same again: then that error is the one to tell.
                error = error or self._failure(failure)
        if kind is None and error is not None:
            raise error

    def resume(self, step: int) -> bool:
        """Cuts the records of an earlier session to `step`, where training goes on; a line cut short is dropped.

        TensorBoard is asked to purge later steps, which may stand in files of earlier sessions.

        Returns:
          Whether the held-out loss at `step` is among the lines that stay. False where no files are written.
        """
        if self._lines is None or self._events is None:
            return False
        try:
            size, measured = _whole_lines(Path(self._lines.name), step)
            self._lines.truncate(size)
            start = SessionLog(status=SessionLog.START)
            purge = Event(step=step + 1, wall_time=time.time(), session_log=start)
            self._events.write(purge.SerializeToString())
            self.sync()
        except OSError as error:
            raise self._failure(error) from error
        return measured

    def sync(self) -> None:
        """Returns once all that was written is on the disk."""
        if self._folder is None or self._lines is None or self._events is None:
            return
        try:
            self._lines.flush()
            self._events.flush()
            # By name, since tensorboardX hides its file; the folders, so that the files' names are on the disk too.
            for path in (Path(self._lines.name), self._event_path, self._folder, self._event_path.parent):
                descriptor = os.open(path, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
        except OSError as error:
            raise self._failure(error) from error

    def push(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Takes the metrics of `step` (1 is the first) and handles those of the step before."""
        pending, self._pending = self._pending, (step, metrics)
        if pending is not None:
            self._read(*pending)

    def flush(self) -> None:
        """Waits for the newest step; raises NonFiniteLossError if its loss is not finite."""
        pending, self._pending = self._pending, None
        if pending is not None:
            self._read(*pending)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes one line and its TensorBoard scalars."""
        if self._lines is None or self._events is None:
            return
        try:
            self._lines.write(strict_json.dumps({"step": step, **values}, indent=None) + "\n")
            self._lines.flush()
        except OSError as error:
            raise self._failure(error) from error
        self.watched(step, values)

    def watched(self, step: int, values: Mapping[str, float]) -> None:
        """Writes scalars to TensorBoard alone."""
        if self._events is None:
            return
        try:
            for name, value in values.items():
                event = Event(step=step, wall_time=time.time(), summary=summary.scalar(name, value))
                self._events.write(event.SerializeToString())
            self._events.flush()
        except OSError as error:
            raise self._failure(error) from error

    def show(self, step: int, examples: Mapping[str, Any]) -> None:
        """Pictures [H, W] and sounds [S] for TensorBoard; the newest also stand in the folder `samples` as files."""
        if self._folder is None or self._events is None or not examples:
            return
        try:
            (self._folder / "samples").mkdir(exist_ok=True)
            for name, value in examples.items():
                array = np.asarray(value)
                content, suffix, event = (
                    media.picture(name, array) if array.ndim == 2 else media.sound(name, array, self._sample_rate_hz)
                )
                (self._folder / "samples" / f"{name}{suffix}").write_bytes(content)
                self._events.write(Event(step=step, wall_time=time.time(), summary=event).SerializeToString())
            self._events.flush()
        except OSError as error:
            raise self._failure(error) from error

    def throughput(self) -> float:
        """Throughput over the last steps, pauses left out."""
        if len(self._recent) < 2:
            return 0.0
        seconds = self._recent[-1][0] - self._recent[0][0]
        return (self._recent[-1][1] - self._recent[0][1]) / max(seconds, 1e-9)

    def wait_share(self) -> float:
        """Share of the training time spent waiting for data."""
        return self.clock.waiting / max(self.clock.training(), 1e-9)

    def _read(self, step: int, metrics: Mapping[str, Any]) -> None:
        values = {name: float(value) for name, value in metrics.items()}
        guarded = {name: value for name, value in values.items() if name.endswith(("loss", "gradient_norm"))}
        if bad := [name for name, value in guarded.items() if not math.isfinite(value)]:
            bad.sort(key=lambda name: name != "loss")
            raise NonFiniteLossError(step, ", ".join(f"{name.replace('_', ' ')} {guarded[name]}" for name in bad))
        self.done += values[self._unit]
        self._recent.append((self.clock.training(), self.done))
        values |= {f"{self._unit}_per_second": self.throughput(), "data_wait_share": self.wait_share()}
        self.last = values
        self._bar.update(
            f"loss {values['loss']:.3f}  {self.throughput():,.0f} {self._unit}/s  "
            f"data wait {100 * values['data_wait_share']:.1f}%"
        )
        self._bar.advance(1)
        if step % self._log_every == 0 or step == 1:
            self.write(step, values)

    def _failure(self, error: OSError) -> UserError:
        return UserError(f"{self._folder}: cannot write metrics.jsonl and tensorboard/ there ({error.strerror})")


def _event_file(path: Path) -> RecordWriter:
    """A TensorBoard event file of this session's own.

    Not tensorboardX's SummaryWriter: its writing thread dies of a full disk, and whoever waits for it waits for ever.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = RecordWriter(str(path))
    file.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
    return file


def _whole_lines(path: Path, step: int) -> tuple[int, bool]:
    """Bytes before the first line that is later than `step` or cut short; whether they hold its held-out loss."""
    size, measured = 0, False
    with path.open("rb") as file:
        while (line := file.readline(_LONGEST_LINE_BYTES)).endswith(b"\n"):
            try:
                values = json.loads(line)
                later = values["step"] > step
            except (ValueError, KeyError, TypeError):
                values, later = {}, False  # an older version could glue two lines together: not ours to drop
            if later:
                break
            size += len(line)
            measured |= values.get("step") == step and any(name.startswith("held_out_") for name in values)
    return size, measured
