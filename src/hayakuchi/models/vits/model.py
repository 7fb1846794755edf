"""The VITS generator: training pass, synthesis and voice conversion (arXiv 2106.06103, section 2)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

from hayakuchi.config import Remat
from hayakuchi.config.vits import VitsConfig
from hayakuchi.models.module import Module
from hayakuchi.models.vits.alignment import align, alignment_scores, along, expand
from hayakuchi.models.vits.decoder import Decoder
from hayakuchi.models.vits.duration import DeterministicDurations, StochasticDurations
from hayakuchi.models.vits.flow import Flow
from hayakuchi.models.vits.istft_decoder import IstftDecoder
from hayakuchi.models.vits.layers import length_mask, masked
from hayakuchi.models.vits.posterior_encoder import Posterior, PosteriorEncoder
from hayakuchi.models.vits.starts import Source
from hayakuchi.models.vits.text_encoder import TextEncoder


class TrainingNoise(NamedTuple):
    """All randomness of a training pass but dropout.

    Attributes:
      posterior: standard normal.
      durations: standard normal.
      segment: uniform in [0, 1); picks where each clip's segment starts.
    """

    posterior: Float[Array, "B T C"]
    durations: Float[Array, "B L 2"]
    segment: Float[Array, " B"]


class TrainingPass(NamedTuple):
    """Everything the losses need, and what is worth looking at.

    Attributes:
      audio: decoded segments.
      subbands: the same as subbands, where the decoder joins fixed ones: for `subband_loss.subband_loss`.
      segment_start: first frame of each.
      duration_loss: nats or squared error per symbol.
      posterior: z and its distribution.
      z_prior: z in the prior's space.
      prior_mean: the prior's mean at each frame.
      prior_log_scale: its log-scale.
      scores: alignment scores in nats.
      path: the alignment.
      frame_mask: frames that count.
    """

    audio: Float[Array, "B S"]
    subbands: Float[Array, "B U N"] | None
    segment_start: Int[Array, " B"]
    duration_loss: Float[Array, ""]
    posterior: Posterior
    z_prior: Float[Array, "B T C"]
    prior_mean: Float[Array, "B T C"]
    prior_log_scale: Float[Array, "B T C"]
    scores: Float[Array, "B T L"]
    path: Float[Array, "B T L"]
    frame_mask: Bool[Array, "B T"]


class Plan(NamedTuple):
    """What the text asks for, before any frame is made.

    Attributes:
      mean: the prior's mean of each symbol.
      log_scale: its log-scale.
      durations: whole frames of each symbol; 0 past a text's end.
      text_mask: symbols that count.
    """

    mean: Float[Array, "B L C"]
    log_scale: Float[Array, "B L C"]
    durations: Float[Array, "B L"]
    text_mask: Bool[Array, "B L"]

    @property
    def frame_lengths(self) -> Int[Array, " B"]:
        """Frames of each row, at least 1."""
        return jnp.maximum(jnp.sum(self.durations, axis=1), 1).astype(jnp.int32)


class Speech(NamedTuple):
    """Waveforms in [-1, 1], 0 past each row's end, and their lengths in samples."""

    audio: Float[Array, "B S"]
    sample_lengths: Int[Array, " B"]


class Vits(Module):
    """The generator. Its state is float32 parameters only.

    Args:
      config: sizes.
      key: of the initialisation.
      dtype: arithmetic of convolutions and matrix products.
      remat: what the backward pass computes anew.
    """

    def __init__(
        self, config: VitsConfig, key: Key[Array, ""], dtype: Any = jnp.float32, remat: Remat = "none"
    ) -> None:
        source = Source(key)
        self.config = config
        self.text_encoder = TextEncoder(config, source, dtype, remat)
        self.posterior_encoder = PosteriorEncoder(config, source, dtype, remat)
        self.flow = Flow(config, source, dtype, remat)
        self.durations: Any = (
            StochasticDurations(config, source)
            if config.stochastic_durations
            else DeterministicDurations(config, source)
        )
        self.decoder: Any = make_decoder(config, source, dtype, remat)
        self.speakers = (
            nnx.Param(source.normal((config.speakers, config.speaker_channels), 1.0)) if config.speakers else None
        )

    def noise(self, key: Key[Array, ""], batch: int, frames: int, symbols: int) -> TrainingNoise:
        """Fresh noise for a training pass."""
        posterior_key, duration_key, segment_key = jax.random.split(key, 3)
        return TrainingNoise(
            jax.random.normal(posterior_key, (batch, frames, self.config.latent_channels)),
            jax.random.normal(duration_key, (batch, symbols, 2)),
            jax.random.uniform(segment_key, (batch,)),
        )

    def train_pass(
        self,
        text: Int[Array, "B L"],
        text_lengths: Int[Array, " B"],
        spectrogram: Float[Array, "B T F"],
        frame_lengths: Int[Array, " B"],
        noise: TrainingNoise,
        speaker: Int[Array, " B"] | None = None,
        key: Key[Array, ""] | None = None,
    ) -> TrainingPass:
        """Encodes text and audio, aligns them and decodes a random segment of each clip.

        Args:
          text: symbol ids.
          text_lengths: symbols of each text.
          spectrogram: linear spectrograms; T is at least the segment's frames.
          frame_lengths: frames of each clip.
          noise: see `TrainingNoise`.
          speaker: speaker indices; None for one speaker.
          key: dropout key; None turns dropout off.
        """
        text_key, duration_key = (None, None) if key is None else jax.random.split(key)
        text_mask = length_mask(text_lengths, text.shape[1])
        frame_mask = length_mask(frame_lengths, spectrogram.shape[1])
        voice = self._voice(speaker)
        hidden, mean, log_scale = self.text_encoder(text, text_mask, text_key)
        posterior = self.posterior_encoder(spectrogram, frame_mask, noise.posterior, voice)
        z_prior = self.flow.forward(posterior.sample, frame_mask, voice)

        scores = lax.stop_gradient(alignment_scores(z_prior, mean, log_scale))
        path = align(scores, frame_mask, text_mask)
        durations = jnp.sum(path, axis=1)
        if self.config.stochastic_durations:
            losses = self.durations.loss(hidden, text_mask, durations, noise.durations, voice, duration_key)
        else:
            losses = self.durations.loss(hidden, text_mask, durations, voice, duration_key)

        frames = self.config.segment_frames
        choices = jnp.maximum(frame_lengths - frames + 1, 1)
        start = jnp.floor(noise.segment * choices).astype(jnp.int32)
        z = segments(posterior.sample, start, frames)
        subbands = self.decoder.subbands(z, voice) if self.config.decoder == "mb_istft" else None
        return TrainingPass(
            audio=self.decoder(z, voice) if subbands is None else self.decoder.join(subbands),
            subbands=subbands,
            segment_start=start,
            duration_loss=jnp.sum(losses) / jnp.sum(text_mask),
            posterior=posterior,
            z_prior=z_prior,
            prior_mean=along(path, mean),
            prior_log_scale=along(path, log_scale),
            scores=scores,
            path=path,
            frame_mask=frame_mask,
        )

    def plan(
        self,
        text: Int[Array, "B L"],
        text_lengths: Int[Array, " B"],
        noise: Float[Array, "B L 2"],
        speaker: Int[Array, " B"] | None = None,
        length_scale: float | Float[Array, "..."] = 1.0,
    ) -> Plan:
        """Encodes text and chooses durations.

        Args:
          text: symbol ids.
          text_lengths: symbols of each text.
          noise: normal, already scaled (0.8 as published); unused by deterministic durations.
          speaker: speaker indices; None for one speaker.
          length_scale: factor of all durations: 2 speaks half as fast.
        """
        mask = length_mask(text_lengths, text.shape[1])
        voice = self._voice(speaker)
        hidden, mean, log_scale = self.text_encoder(text, mask)
        if self.config.stochastic_durations:
            log_durations = self.durations.log_durations(hidden, mask, noise, voice)
        else:
            log_durations = self.durations.log_durations(hidden, mask, voice)
        durations = jnp.ceil(jnp.exp(log_durations) * mask * length_scale)
        return Plan(mean, log_scale, durations, mask)

    def speak(self, plan: Plan, noise: Float[Array, "B T C"], speaker: Int[Array, " B"] | None = None) -> Speech:
        """Makes the waveforms of a plan.

        Args:
          plan: from `plan`.
          noise: normal, already scaled (0.667 as published). T is the room for frames: what goes past it is cut.
          speaker: speaker indices; None for one speaker.
        """
        lengths = jnp.minimum(plan.frame_lengths, noise.shape[1])
        mask = length_mask(lengths, noise.shape[1])
        path = expand(plan.durations, mask, plan.text_mask)
        mean, log_scale = along(path, plan.mean), along(path, plan.log_scale)
        voice = self._voice(speaker)
        z = self.flow.inverse(mean + noise * jnp.exp(log_scale), mask, voice)
        return self._decode(z, lengths, mask, voice)

    def convert(
        self,
        spectrogram: Float[Array, "B T F"],
        frame_lengths: Int[Array, " B"],
        noise: Float[Array, "B T C"],
        source: Int[Array, " B"] | None,
        target: Int[Array, " B"] | None,
    ) -> Speech:
        """The same words in another speaker's voice (section 2.5): out of one voice's flow and back through another's.

        Args:
          spectrogram: linear spectrograms.
          frame_lengths: frames of each clip.
          noise: standard normal.
          source: index of the speaker heard; None for one speaker.
          target: index of the speaker wanted; the same one gives what the model makes of a recording.
        """
        mask = length_mask(frame_lengths, spectrogram.shape[1])
        heard, wanted = self._voice(source), self._voice(target)
        posterior = self.posterior_encoder(spectrogram, mask, noise, heard)
        z = self.flow.inverse(self.flow.forward(posterior.sample, mask, heard), mask, wanted)
        return self._decode(z, frame_lengths, mask, wanted)

    def _decode(
        self,
        z: Float[Array, "B T C"],
        lengths: Int[Array, " B"],
        mask: Bool[Array, "B T"],
        voice: Float[Array, "B G"] | None,
    ) -> Speech:
        # The iSTFT decoders' samples are not bounded.
        audio = jnp.clip(self.decoder(masked(z, mask), voice, mask), -1, 1)
        return Speech(audio, lengths * self.config.audio.hop_samples)

    def _voice(self, speaker: Int[Array, " B"] | None) -> Float[Array, "B G"] | None:
        if self.speakers is None:
            return None
        if speaker is None:
            raise ValueError(f"this model has {self.config.speakers} speakers: a speaker index is needed")
        return self.speakers[...][speaker]


def make_decoder(config: VitsConfig, source: Source, dtype: Any, remat: Remat = "none") -> Decoder | IstftDecoder:
    """The decoder that `config.decoder` names."""
    return (Decoder if config.decoder == "hifigan" else IstftDecoder)(config, source, dtype, remat)


def segments(x: Float[Array, "B T *C"], start: Int[Array, " B"], length: int) -> Float[Array, "B {length} *C"]:
    """x[b, start[b] : start[b] + length] of every row."""
    return jax.vmap(lambda row, first: lax.dynamic_slice_in_dim(row, first, length))(x, start)
