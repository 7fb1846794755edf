"""Configurations: frozen dataclasses of plain values, with a strict JSON round trip.

Every run saves its resolved `Recipe`; whatever reads one back refuses keys it does not know, so that a setting is
never ignored without a word.
"""

import dataclasses
import json
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from hayakuchi.errors import UserError, require

Precision = Literal["float32", "bfloat16", "float16"]
Remat = Literal["none", "full", "dots"]
Retrace = Literal["stop", "warn"]
_MOST_PROFILED = 100  # steps; the files grow with them
Sharing = Literal["none", "all", "attention", "feed_forward"]
OptimizerName = Literal["adamw", "adagrad", "muon"]
ScheduleName = Literal["cosine", "wsd", "constant"]

ConfigT = TypeVar("ConfigT")


@dataclass(frozen=True)
class CtrlConfig:
    """Sizes of CTRL (arXiv 1909.05858, section 3.2).

    Attributes:
      vocabulary_size: V, number of token ids, control codes among them; `train` takes the data set's.
      length: L, positions in a window; the first holds the control code.
      layers: number of blocks.
      width: D, width of the residual stream; even, since the sinusoid has two halves.
      heads: H, attention heads; divides `width`.
      feed_forward: F, inner width of the feed-forward layers.
      dropout: rate after the embedding and on each residual branch.
      scan_layers: run the blocks as one `lax.scan` over stacked parameters: less to compile, same result.
      sharing: what layers of a group have in common (ALBERT, arXiv 1909.11942, section 3.1): "all" their parameters,
        those of "attention" or of "feed_forward", or "none". Fewer parameters, the same arithmetic.
      sharing_groups: groups of consecutive layers that share; divides `layers`.
      embedding_width: E, width of a factorised embedding (ALBERT, section 3.1): [V, E] and two maps between E and D
        in place of [V, D]; 0 does not factorise.
    """

    vocabulary_size: int = 32_000
    length: int = 256
    layers: int = 6
    width: int = 384
    heads: int = 6
    feed_forward: int = 1_536
    dropout: float = 0.1
    scan_layers: bool = False
    sharing: Sharing = "none"
    sharing_groups: int = 1
    embedding_width: int = 0

    def __post_init__(self) -> None:
        for name in ("vocabulary_size", "layers", "width", "heads", "feed_forward"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "must be 1 or more")
        require(self.length >= 2, "length", self.length, "must be 2 or more: a control code and a token")
        require(self.width % 2 == 0, "width", self.width, "must be even")
        require(self.width % self.heads == 0, "width", self.width, f"must be a multiple of heads ({self.heads})")
        require(0 <= self.dropout < 1, "dropout", self.dropout, "must be in [0, 1)")
        divides = self.sharing_groups >= 1 and self.layers % self.sharing_groups == 0
        require(divides, "sharing_groups", self.sharing_groups, f"must divide layers ({self.layers})")
        require(
            self.sharing != "none" or self.sharing_groups == 1,
            "sharing_groups",
            self.sharing_groups,
            "is for a model that shares; set sharing, or leave it out",
        )
        require(
            0 <= self.embedding_width < self.width,
            "embedding_width",
            self.embedding_width,
            f"must be 0 (no factorisation), or less than width ({self.width})",
        )


@dataclass(frozen=True)
class OptimizerConfig:
    """The update rule and its schedule.

    Attributes:
      optimizer: "adamw" (decay on matrices only), "adagrad" (as CTRL was published) or "muon".
      learning_rate: peak learning rate.
      schedule: after the warm-up "cosine" falls to the final fraction at the last step, "wsd" (warm-up, stable, decay)
        stays and falls linearly over the last `decay_fraction` of the steps, "constant" stays.
      warmup_steps: steps of linear warm-up.
      decay_fraction: share of all steps in which "wsd" decays.
      final_fraction: learning rate at the last step, as a fraction of the peak ("cosine" and "wsd").
      weight_decay: decoupled decay of matrices; biases, LayerNorm and the vocabulary bias are exempt. Adagrad has none.
      beta1: first-moment decay of AdamW, and of what "muon" leaves to it (embedding, biases, LayerNorm).
      beta2: second-moment decay of the same.
      epsilon: denominator floor.
      clip_norm: largest global norm of a gradient; 0 turns clipping off.
    """

    optimizer: OptimizerName = "adamw"
    learning_rate: float = 1e-3
    schedule: ScheduleName = "cosine"
    warmup_steps: int = 200
    decay_fraction: float = 0.2
    final_fraction: float = 0.1
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-8
    clip_norm: float = 0.25

    def __post_init__(self) -> None:
        require(self.learning_rate > 0, "learning_rate", self.learning_rate, "must be above 0")
        require(self.warmup_steps >= 0, "warmup_steps", self.warmup_steps, "must be 0 or more")
        require(0 < self.decay_fraction <= 1, "decay_fraction", self.decay_fraction, "must be in (0, 1]")
        require(0 <= self.final_fraction <= 1, "final_fraction", self.final_fraction, "must be in [0, 1]")
        require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "must be 0 or more")
        for name in ("beta1", "beta2"):
            require(0 <= getattr(self, name) < 1, name, getattr(self, name), "must be in [0, 1)")
        require(self.epsilon > 0, "epsilon", self.epsilon, "must be above 0")
        require(self.clip_norm >= 0, "clip_norm", self.clip_norm, "must be 0 or more")


@dataclass(frozen=True)
class TextDataConfig:
    """How batches are drawn from a prepared text data set.

    Attributes:
      code_dropout: share of windows whose control codes are replaced by the unconditional code.
      code_weights: "story=2,essay=0.5": relative sampling weight of a code's windows; a code left out weighs 1;
        "" draws every window once an epoch.
      data_seed: seed of shuffling and code dropout.
      data_workers: threads that assemble batches ahead; 0 assembles in the training thread.
    """

    code_dropout: float = 0.1
    code_weights: str = ""
    data_seed: int = 0
    data_workers: int = 1

    def __post_init__(self) -> None:
        require(0 <= self.code_dropout <= 1, "code_dropout", self.code_dropout, "must be in [0, 1]")
        require(self.data_workers >= 0, "data_workers", self.data_workers, "must be 0 or more")


@dataclass(frozen=True)
class SpeechDataConfig:
    """How batches are drawn from a prepared speech data set.

    Attributes:
      buckets: at most this many shapes of batch; clips of like length go together. Each is compiled once.
      data_seed: seed of shuffling.
      data_workers: threads that assemble batches ahead; 0 assembles in the training thread.
    """

    buckets: int = 3
    data_seed: int = 0
    data_workers: int = 1

    def __post_init__(self) -> None:
        require(1 <= self.buckets <= 64, "buckets", self.buckets, "must be 1 to 64")
        require(0 <= self.data_seed < 1 << 32, "data_seed", self.data_seed, "must be 0 to 2**32 - 1")
        require(self.data_workers >= 0, "data_workers", self.data_workers, "must be 0 or more")


@dataclass(frozen=True)
class TrainConfig:
    """Length, batch, arithmetic and bookkeeping of a run.

    Attributes:
      steps: optimiser steps in all.
      batch: windows (text) or clips (speech) in one optimiser step, over all devices and micro-batches.
      accumulate: micro-batches a step is split into; the gradient is the same, the memory smaller.
      precision: arithmetic of the forward and backward pass; parameters and optimiser stay float32. "float16" scales
        the loss as far as the gradients bear it (for T4 and V100, which have no bfloat16). "float32" multiplies as the
        device does by default: a CPU in float32, a GPU from Ampere on in TF32, a TPU in one pass of bfloat16.
      remat: what the backward pass computes anew instead of keeping: "none", the layers in "full", or all but their
        matrix products ("dots"). Less memory, more arithmetic, the same result.
      mesh: devices as "data=N,fsdp=M"; "" puts all devices on `data`.
      seed: seed of initialisation and dropout.
      checkpoint_every: steps between checkpoints; one is also written at the end and on SIGTERM or SIGINT.
      keep_checkpoints: how many of the newest checkpoints stay on disk.
      log_every: steps between lines in `metrics.jsonl` and TensorBoard.
      retrace: what happens where a step would be compiled anew, for arguments that no declared batch has: "stop" ends
        the run and names them, "warn" names them and compiles.
      watch: steps between statistics of each module's activations and gradients in TensorBoard; 0 never.
      profile: steps to take a profile of, early in the session; 0 none.
    """

    steps: int = 1_000
    batch: int = 32
    accumulate: int = 1
    precision: Precision = "float32"
    remat: Remat = "none"
    mesh: str = ""
    seed: int = 0
    checkpoint_every: int = 500
    keep_checkpoints: int = 3
    log_every: int = 10
    retrace: Retrace = "stop"
    watch: int = 0
    profile: int = 0

    def __post_init__(self) -> None:
        require(self.watch >= 0, "watch", self.watch, "must be 0 or more")
        require(0 <= self.profile <= _MOST_PROFILED, "profile", self.profile, f"must be 0 to {_MOST_PROFILED}")
        for name in ("steps", "batch", "accumulate", "checkpoint_every", "keep_checkpoints", "log_every"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "must be 1 or more")
        require(
            self.batch % self.accumulate == 0,
            "batch",
            self.batch,
            f"must be a multiple of accumulate ({self.accumulate})",
        )
        require(0 <= self.seed < 1 << 32, "seed", self.seed, "must be 0 to 2**32 - 1")


@dataclass(frozen=True)
class DistillationConfig:
    """Learning from a larger model's whole distributions, not from the next token alone (arXiv 1503.02531).

    Attributes:
      teacher: run directory of the larger model, on the same tokenizer; "" learns from the text alone.
      soft_weight: share of the teacher's part in the loss; the rest is that of the text.
      soft_temperature: both distributions are flattened by it before they are compared.
    """

    teacher: str = ""
    soft_weight: float = 0.5
    soft_temperature: float = 2.0

    def __post_init__(self) -> None:
        require(0 <= self.soft_weight <= 1, "soft_weight", self.soft_weight, "must be in [0, 1]")
        require(self.soft_temperature > 0, "soft_temperature", self.soft_temperature, "must be above 0")


@dataclass(frozen=True)
class CtrlRecipe:
    """A named CTRL run: everything that decides its result but the data."""

    name: str = "ctrl-small"
    task: Literal["ctrl"] = "ctrl"
    model: CtrlConfig = field(default_factory=CtrlConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    data: TextDataConfig = field(default_factory=TextDataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    distillation: DistillationConfig = field(default_factory=DistillationConfig)


def to_dict(config: Any) -> dict[str, Any]:
    """The configuration as plain JSON values."""
    return dataclasses.asdict(config)


def to_json(config: Any) -> str:
    return json.dumps(to_dict(config), ensure_ascii=False, indent=2) + "\n"


def from_dict(kind: type[ConfigT], values: object, where: str) -> ConfigT:
    """Builds a configuration from plain values.

    Args:
      kind: a dataclass of this module.
      values: what `to_dict` gave. Missing keys take their defaults.
      where: name of the source, for messages.

    Raises:
      UserError: an unknown key, or a value of the wrong type.
    """
    if not isinstance(values, dict):
        raise UserError(f"{where}: expected an object, found {type(values).__name__}")
    hints = typing.get_type_hints(kind)
    unknown = sorted(set(values) - set(hints))
    if unknown:
        raise UserError(f"{where}: unknown key {unknown[0]!r}; known are {', '.join(sorted(hints))}")
    return kind(**{key: _checked(hints[key], value, f"{where}: {key}") for key, value in values.items()})


def read_json(kind: type[ConfigT], path: Path) -> ConfigT:
    """Reads a configuration file written by `to_json`.

    Raises:
      UserError: the file is missing, is not JSON, or does not fit `kind`.
    """
    return from_dict(kind, load_json(path), str(path))


def load_json(path: Path, limit_bytes: int = 64 << 20) -> Any:
    """Reads any JSON file of at most `limit_bytes`; UserError where it is missing, too large or broken."""
    try:
        if path.stat().st_size > limit_bytes:
            raise UserError(f"{path}: larger than {limit_bytes >> 20} MiB; this is not the expected file")
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot read it ({error.strerror})") from error
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON ({error})") from error


def _checked(hint: Any, value: object, where: str) -> Any:
    """`value` as the type `hint`, or a UserError that names `where`."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return from_dict(hint, value, where)
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and isinstance(value, (list, tuple)):  # tuple[X, ...]; JSON has lists
        return tuple(_checked(options[0], part, where) for part in value)
    if origin is Literal:
        if value in options:
            return value
        raise UserError(f"{where}: {value!r} is not one of {', '.join(map(str, options))}")
    if origin in (typing.Union, types.UnionType):
        inner = next(option for option in options if option is not type(None))
        return None if value is None and type(None) in options else _checked(inner, value, where)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, origin or hint) and not (hint is int and isinstance(value, bool)):
        return value
    raise UserError(f"{where}: expected {'a list' if origin else hint.__name__}, found {value!r}")
