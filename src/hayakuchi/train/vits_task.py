"""The VITS training step: discriminators, then generator, in one program (arXiv 2106.06103, section 2.3)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int, Key

from hayakuchi.config.vits import VitsRecipe
from hayakuchi.data.batch import SpeechBatch
from hayakuchi.data.speech_batches import Bucket, Framing
from hayakuchi.errors import require
from hayakuchi.models.sharding import Layout, mean_by_rows, whole
from hayakuchi.models.vits.discriminators import Discriminators
from hayakuchi.models.vits.layers import length_mask, masked
from hayakuchi.models.vits.losses import adversarial_loss, discriminator_loss, feature_loss, kl_loss, mel_loss
from hayakuchi.models.vits.model import Vits, segments
from hayakuchi.models.vits.spectral import linear_spectrogram, log_mel
from hayakuchi.models.vits.subband_loss import subband_loss
from hayakuchi.train.joined import LARGE, join, part
from hayakuchi.train.optimizer import used_rate
from hayakuchi.train.precision import (
    LossScale,
    compute_dtype,
    first_scale,
    guarded,
    next_scale,
    scale_metrics,
    told_norm,
    unscaled,
)
from hayakuchi.train.task import Metrics, TrainState
from hayakuchi.train.watch import tap

_SHOWN_NOISE = 0.667
_SHOWN_DURATION_NOISE = 0.8


class _Outputs(NamedTuple):
    """What the losses of a generator's pass are computed from, and differentiated by."""

    audio: Float[Array, "B S"]
    subbands: Float[Array, "B U N"] | None
    duration_loss: Float[Array, ""]
    posterior_log_scale: Float[Array, "B T C"]
    z_prior: Float[Array, "B T C"]
    prior_mean: Float[Array, "B T C"]
    prior_log_scale: Float[Array, "B T C"]


class _Heard(NamedTuple):
    """A batch as the model takes it."""

    audio: Float[Array, "B S"]
    spectrogram: Float[Array, "B T F"]


def framing(recipe: VitsRecipe) -> Framing:
    """How the recipe's model frames audio."""
    audio = recipe.model.audio
    return Framing(audio.hop_samples, (audio.fft_samples - audio.hop_samples) // 2, recipe.model.segment_frames)


class VitsTask:
    """VITS under one recipe (see `Task`).

    Parameters are {"generator": ..., "discriminators": ...}, with "average", the generator's running average, where
    the recipe asks for one.

    Args:
      recipe: settings.
      buckets: the shapes of batches that come.
      epoch_steps: steps of an epoch, for a learning rate that decays with epochs.
    """

    unit = "frames"
    frozen = None

    def __init__(self, recipe: VitsRecipe, buckets: Sequence[Bucket], epoch_steps: int) -> None:
        require(recipe.train.accumulate == 1, "accumulate", recipe.train.accumulate, "must be 1 for VITS")
        self.recipe = recipe
        self.buckets = tuple(buckets)
        self.framing = framing(recipe)
        settings = recipe.optimizer
        self.schedule = _schedule(
            settings.learning_rate, settings.decay, settings.warmup_steps, self._span(epoch_steps)
        )
        self.optimizer = optax.adamw(
            self.schedule, settings.beta1, settings.beta2, settings.epsilon, weight_decay=settings.weight_decay
        )
        self._dtype = compute_dtype(recipe.train.precision)
        key = jax.random.key(0)
        self.graphs = {
            name: jax.eval_shape(lambda build=build: nnx.split(build(key), nnx.Param)[0])
            for name, build in (("generator", self._generator), ("discriminators", self._discriminators))
        }

    def init(self, key: Key[Array, ""], frozen: Any = None) -> TrainState:
        keys = jax.random.split(key)
        models = {"generator": self._generator(keys[0]), "discriminators": self._discriminators(keys[1])}
        parameters = {name: nnx.to_pure_dict(nnx.state(model, nnx.Param)) for name, model in models.items()}
        optimizer = {name: self.optimizer.init(join(values)) for name, values in parameters.items()}
        if self.recipe.optimizer.average_decay:
            parameters["average"] = parameters["generator"]
        return TrainState(jnp.int32(0), parameters, optimizer, first_scale(self.recipe.train.precision), frozen)

    def step(self, state: TrainState, batch: SpeechBatch, key: Key[Array, ""]) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(key, state.step)
        heard = self._heard(batch)
        # The generator runs once: its output trains the discriminators, then the generator by what they have learnt.
        outputs, pull_back, start = jax.vjp(
            lambda parameters: self._outputs(parameters, batch, heard.spectrogram, key),
            whole(state.parameters["generator"]),
            has_aux=True,
        )
        real = self._segments(heard, start)
        parameters, optimizer = dict(state.parameters), dict(state.optimizer)
        scale = 1.0 if state.scaler is None else state.scaler.scale

        judged_loss, gradients = jax.value_and_grad(lambda *inputs: scale * self._discriminator_loss(*inputs))(
            parameters["discriminators"], real, outputs.audio
        )
        judged_loss, gradients = unscaled((judged_loss, gradients), state.scaler)
        discriminator_norm, judged_well = self._update("discriminators", gradients, parameters, optimizer, state.scaler)

        (objective, losses), back = jax.value_and_grad(self._generator_loss, has_aux=True)(
            outputs, parameters["discriminators"], batch, heard, real, start, scale
        )
        [gradients] = pull_back(back)
        objective, gradients = unscaled((objective, gradients), state.scaler)
        generator_norm, made_well = self._update("generator", gradients, parameters, optimizer, state.scaler)
        scaler = state.scaler
        if scaler is not None:
            scaler = next_scale(scaler, judged_well & made_well)
        if self.recipe.optimizer.average_decay:
            with jax.named_scope("average"):
                weight = 1 - self._average_decay(state.step)
                parameters["average"] = optax.incremental_update(parameters["generator"], parameters["average"], weight)
        metrics = {
            **losses,
            "generator_loss": objective,
            "discriminator_loss": judged_loss,
            "gradient_norm": generator_norm,
            "discriminator_gradient_norm": discriminator_norm,
            "learning_rate": used_rate(self.schedule, state.optimizer["generator"]),
            "discriminator_learning_rate": used_rate(self.schedule, state.optimizer["discriminators"]),
            "frames": jnp.sum(batch.frame_lengths).astype(jnp.float32),
            **scale_metrics(scaler, state.scaler),
        }
        return TrainState(state.step + 1, parameters, optimizer, scaler, state.frozen), metrics

    def held_out_loss(self, parameters: Any, batch: SpeechBatch) -> Metrics:
        """Losses of a random segment of each clip without the discriminators, times frames."""
        heard = self._heard(batch)
        outputs, start = self._outputs(self._spoken_with(parameters), batch, heard.spectrogram, None)
        parts = self._reconstruction_losses(outputs, batch, heard, start, self._segments(heard, start))
        frames = jnp.sum(batch.frame_lengths).astype(jnp.float32)
        return {
            "frames": frames,
            **{name: frames * value for name, value in parts.items()},
        }

    def show(self, parameters: Any, batch: SpeechBatch) -> dict[str, Array]:
        """Mel, sound and alignment of the batch's first clip: recorded, reconstructed, and spoken from its symbols."""
        batch = SpeechBatch(*(array[:1] for array in batch))
        model = self._merged("generator", self._spoken_with(parameters))
        heard = self._heard(batch)
        frames, symbols = heard.spectrogram.shape[1], batch.symbols.shape[1]
        speaker = self._speaker(batch)
        noise = model.noise(jax.random.key(0), 1, frames, symbols)
        found = model.train_pass(
            batch.symbols, batch.symbol_lengths, heard.spectrogram, batch.frame_lengths, noise, speaker
        )
        rebuilt = model.convert(heard.spectrogram, batch.frame_lengths, noise.posterior, speaker, speaker)
        plan = model.plan(batch.symbols, batch.symbol_lengths, _SHOWN_DURATION_NOISE * noise.durations, speaker)
        spoken = model.speak(plan, _SHOWN_NOISE * noise.posterior, speaker)
        sounds = {
            "recorded": masked(heard.audio[:, : frames * self.framing.hop, None], self._sample_mask(batch))[..., 0],
            "reconstructed": rebuilt.audio,
            "spoken": spoken.audio,
        }
        audio = self.recipe.model.audio
        mels = {f"mel_{name}": log_mel(linear_spectrogram(value, audio), audio)[0].T for name, value in sounds.items()}
        sounds_by_name = {f"audio_{name}": value[0] for name, value in sounds.items()}
        return {"alignment": found.path[0].T, **mels, **sounds_by_name}

    def batch_specs(self) -> list[SpeechBatch]:
        rows = self.recipe.train.batch
        shapes = []
        for bucket in self.buckets:
            room = (bucket.frames + self.framing.margin) * self.framing.hop
            shapes.append(
                SpeechBatch(
                    symbols=jax.ShapeDtypeStruct((rows, bucket.symbols), jnp.int32),
                    symbol_lengths=jax.ShapeDtypeStruct((rows,), jnp.int32),
                    audio=jax.ShapeDtypeStruct((rows, room), jnp.int16),
                    frame_lengths=jax.ShapeDtypeStruct((rows,), jnp.int32),
                    speakers=jax.ShapeDtypeStruct((rows,), jnp.int32),
                )
            )
        return shapes

    def example_batch(self, spec: SpeechBatch, seed: int = 0) -> SpeechBatch:
        random = np.random.default_rng(seed)
        model = self.recipe.model
        rows, symbols = spec.symbols.shape
        frames = spec.audio.shape[1] // self.framing.hop - self.framing.margin
        return SpeechBatch(
            symbols=random.integers(1, model.vocabulary_size, spec.symbols.shape, np.int32),
            symbol_lengths=np.full(rows, min(symbols, frames), np.int32),
            audio=random.integers(-3_000, 3_000, spec.audio.shape, np.int16),
            frame_lengths=np.full(rows, frames, np.int32),
            speakers=random.integers(0, max(model.speakers, 1), rows, np.int32),
        )

    def rules(self) -> dict[str, Layout]:
        # By output channels, so that a kernel's weight norm and update need no message.
        split = Layout(P("fsdp"), LARGE)
        return {"direction": split, "kernel": split}

    def _generator(self, key: Key[Array, ""]) -> Vits:
        return Vits(self.recipe.model, key, self._dtype, self.recipe.train.remat)

    def _discriminators(self, key: Key[Array, ""]) -> Discriminators:
        return Discriminators(key, self._dtype, self.recipe.model.discriminator_division, self.recipe.train.remat)

    def _merged(self, name: str, parameters: Any) -> Any:
        return nnx.merge(self.graphs[name], parameters)

    def _span(self, epoch_steps: int) -> int:
        return epoch_steps if self.recipe.optimizer.decay_every == "epoch" else 1

    def _spoken_with(self, parameters: Any) -> Any:
        return whole(parameters.get("average", parameters["generator"]))

    def _average_decay(self, step: Int[Array, ""]) -> Float[Array, ""]:
        """Lower in the first steps, which would else stay in the average for thousands."""
        return jnp.minimum(self.recipe.optimizer.average_decay, (1 + step) / (10 + step))

    def _speaker(self, batch: SpeechBatch) -> Int[Array, " B"] | None:
        return batch.speakers if self.recipe.model.speakers else None

    def _sample_mask(self, batch: SpeechBatch) -> Array:
        frames = batch.audio.shape[1] // self.framing.hop - self.framing.margin
        return jnp.repeat(length_mask(batch.frame_lengths, frames), self.framing.hop, axis=1)

    @jax.named_scope("spectrogram")
    def _heard(self, batch: SpeechBatch) -> _Heard:
        audio = batch.audio.astype(jnp.float32) / 32_768
        spectrogram = linear_spectrogram(audio, self.recipe.model.audio)
        return _Heard(audio, spectrogram[:, : spectrogram.shape[1] - self.framing.margin])

    def _segments(self, heard: _Heard, start: Int[Array, " B"]) -> Float[Array, "B S"]:
        return segments(heard.audio, start * self.framing.hop, self.recipe.model.segment_samples)

    def _outputs(
        self, parameters: Any, batch: SpeechBatch, spectrogram: Float[Array, "B T F"], key: Key[Array, ""] | None
    ) -> tuple[_Outputs, Int[Array, " B"]]:
        """A training pass, and where its segments start; without a key there is no dropout and the noise is fixed."""
        model = self._merged("generator", parameters)
        rows, frames, _ = spectrogram.shape
        noise_key, dropout_key = (jax.random.key(0), None) if key is None else jax.random.split(key)
        found = model.train_pass(
            batch.symbols,
            batch.symbol_lengths,
            spectrogram,
            batch.frame_lengths,
            model.noise(noise_key, rows, frames, batch.symbols.shape[1]),
            self._speaker(batch),
            dropout_key,
        )
        outputs = _Outputs(
            found.audio,
            found.subbands,
            found.duration_loss,
            found.posterior.log_scale,
            found.z_prior,
            found.prior_mean,
            found.prior_log_scale,
        )
        return outputs, found.segment_start

    def _discriminator_loss(
        self, parameters: Any, real: Float[Array, "B S"], fake: Float[Array, "B S"]
    ) -> Float[Array, ""]:
        def loss(parameters: Any, real: Array, fake: Array) -> Array:
            judgements = self._merged("discriminators", parameters)(jnp.concatenate([real, fake]))
            with jax.named_scope("losses"):
                return discriminator_loss(judgements)

        return jnp.asarray(mean_by_rows(loss, parameters, real, fake))

    def _generator_loss(
        self,
        outputs: _Outputs,
        discriminators: Any,
        batch: SpeechBatch,
        heard: _Heard,
        real: Float[Array, "B S"],
        start: Int[Array, " B"],
        scale: float | Float[Array, ""] = 1.0,
    ) -> tuple[Float[Array, ""], Metrics]:

        def judged(parameters: Any, real: Array, fake: Array) -> Metrics:
            judgements = self._merged("discriminators", parameters)(jnp.concatenate([real, fake]))
            with jax.named_scope("losses"):
                return {"feature_loss": feature_loss(judgements), "adversarial_loss": adversarial_loss(judgements)}

        parts = {
            **self._reconstruction_losses(outputs, batch, heard, start, real),
            **mean_by_rows(judged, discriminators, real, outputs.audio),
        }
        objective = parts["loss"] + parts["feature_loss"] + parts["adversarial_loss"]
        return scale * objective, parts

    @jax.named_scope("losses")
    def _reconstruction_losses(
        self,
        outputs: _Outputs,
        batch: SpeechBatch,
        heard: _Heard,
        start: Int[Array, " B"],
        real: Float[Array, "B S"],
    ) -> Metrics:
        """The losses that need no discriminators, and their sum, "loss": of a step as of what is held out."""
        audio = self.recipe.model.audio
        wanted = log_mel(segments(heard.spectrogram, start, self.recipe.model.segment_frames), audio)
        made = log_mel(linear_spectrogram(outputs.audio, audio), audio)
        mask = length_mask(batch.frame_lengths, heard.spectrogram.shape[1])
        losses = {
            "mel_loss": mel_loss(wanted, made),
            "kl_loss": kl_loss(
                outputs.z_prior, outputs.posterior_log_scale, outputs.prior_mean, outputs.prior_log_scale, mask
            ),
            "duration_loss": outputs.duration_loss,
        }
        if outputs.subbands is not None:
            losses["subband_loss"] = subband_loss(real, outputs.subbands)
        return {"loss": jnp.sum(jnp.stack(list(losses.values()))), **losses}

    def _update(
        self,
        name: str,
        gradients: Any,
        parameters: dict[str, Any],
        optimizer: dict[str, Any],
        scaler: LossScale | None,
    ) -> tuple[Float[Array, ""], Bool[Array, ""]]:
        """Updates one network in place in both dictionaries, unless the loss scale was too large for its gradient.

        Gives the norm of the gradient, and whether the update was made.
        """
        with jax.named_scope(f"optimizer/{name}"):
            tap(f"gradients/{name}", gradients)
            before, gradients = parameters[name], join(whole(gradients))
            together = join(before)
            updates, changed = self.optimizer.update(gradients, optimizer[name], together)
            moved = optax.apply_updates(together, updates)
            (moved, changed), finite = guarded(scaler, gradients, (moved, changed), (together, optimizer[name]))
            parameters[name], optimizer[name] = part(moved, before), changed
            return told_norm(optax.tree.norm(gradients), scaler), finite


def _schedule(peak: float, decay: float, warmup: int, span: int) -> optax.Schedule:
    """peak * decay ** (step // span), after a linear rise over the first `warmup` steps."""

    def rate(step: Any) -> Any:
        falling = peak * jnp.power(decay, (step // span).astype(jnp.float32))
        return falling * jnp.minimum((step + 1) / warmup, 1.0) if warmup else falling

    return rate
