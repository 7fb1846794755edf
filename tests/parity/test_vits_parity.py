"""VITS against the published PyTorch code, by recorded numbers: weights, inputs and noise follow from a formula.

Runs over every `*.json` of the folder that HAYAKUCHI_GOLDEN names (default: tests/golden/vits), of any size.
"""

import json
import os
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from hayakuchi.config.vits import AudioConfig, VitsConfig
from hayakuchi.models.vits.discriminators import Discriminators
from hayakuchi.models.vits.losses import adversarial_loss, discriminator_loss, feature_loss, kl_loss, mel_loss
from hayakuchi.models.vits.model import TrainingNoise, Vits, segments
from hayakuchi.models.vits.published_names import discriminator_names, from_published, generator_names, to_published
from hayakuchi.models.vits.spectral import linear_spectrogram, log_mel

FOLDER = Path(os.environ.get("HAYAKUCHI_GOLDEN") or Path(__file__).parents[1] / "golden" / "vits")
TOLERANCE = 1e-3


def stream(tag):
    return np.random.RandomState(zlib.crc32(tag.encode()))


def draw(tag, shape):
    random = stream(tag)
    return random.random_sample(shape) if "/uniform" in tag else random.standard_normal(shape)


def parameter(owner, name, shape):
    values = stream(f"{owner}/{name}").standard_normal(shape)
    kind = name.rpartition(".")[2]
    if kind in ("weight_g", "gamma"):
        values = 1 + 0.1 * values
    elif kind in ("bias", "beta", "m", "logs"):
        values = 0.05 * values
    elif len(shape) >= 2:
        values = values / np.sqrt(np.prod(shape[1:]))
        if name in ("enc_p.proj.weight", "enc_q.proj.weight"):
            values = 0.2 * values
    else:
        values = 0.1 * values
    return values.astype(np.float32)


def config_of(record):
    model, audio = record["model"], record["audio"]
    return VitsConfig(
        audio=AudioConfig(
            sample_rate_hz=audio["sampling_rate"],
            fft_samples=audio["filter_length"],
            window_samples=audio["win_length"],
            hop_samples=audio["hop_length"],
            mel_bins=audio["n_mel_channels"],
        ),
        vocabulary_size=record["n_vocab"],
        speakers=record["n_speakers"],
        speaker_channels=model.get("gin_channels", 0),
        latent_channels=model["inter_channels"],
        hidden_channels=model["hidden_channels"],
        filter_channels=model["filter_channels"],
        heads=model["n_heads"],
        text_layers=model["n_layers"],
        text_kernel=model["kernel_size"],
        stochastic_durations=record["use_sdp"],
        resblock=model["resblock"],
        resblock_kernels=tuple(model["resblock_kernel_sizes"]),
        resblock_dilations=tuple(map(tuple, model["resblock_dilation_sizes"])),
        upsample_rates=tuple(model["upsample_rates"]),
        upsample_kernels=tuple(model["upsample_kernel_sizes"]),
        upsample_channels=model["upsample_initial_channel"],
        segment_samples=audio["segment_size"],
    )


class Recorded:
    """One recorded model: its numbers, and the same computations by ours."""

    def __init__(self, path):
        self.record = json.loads(path.read_text())
        with np.load(path.with_suffix(".npz"), allow_pickle=False) as arrays:
            self.arrays = {name: jnp.asarray(array) for name, array in arrays.items()}
        self.name = self.record["name"]
        self.config = config_of(self.record)
        self.names = {"g": generator_names(self.config), "d": discriminator_names()}
        self.parameters = {side: self.weights(side) for side in "gd"}
        key = jax.random.key(0)
        self.graphs = {
            "g": nnx.split(nnx.eval_shape(lambda: Vits(self.config, key)))[0],
            "d": nnx.split(nnx.eval_shape(lambda: Discriminators(key)))[0],
        }
        self.speaker = self.arrays.get("sid")
        # [B, C, T] -> [B, T, C], as all arrays are here.
        self.spectrogram = self.arrays["spec"].swapaxes(1, 2)

    def weights(self, side):
        shapes = self.record[f"param_shapes_{side}"]
        tensors = {name: parameter(f"{self.name}/{side}", name, tuple(shape)) for name, shape in shapes.items()}
        return jax.tree.map(jnp.asarray, from_published(tensors, self.names[side]))

    def model(self, side, parameters=None):
        return nnx.merge(self.graphs[side], self.parameters[side] if parameters is None else parameters)

    def draws(self, part):
        found = [jnp.asarray(draw(tag, tuple(shape)), jnp.float32) for tag, shape in self.record[f"{part}_draws"]]
        return [values.swapaxes(1, 2) if values.ndim == 3 else values for values in found]

    def training_pass(self, parameters):
        arrays = self.arrays
        draws = self.draws("train")
        if not self.config.stochastic_durations:
            draws.insert(1, jnp.zeros((*arrays["text_ids"].shape, 2)))
        return self.model("g", parameters).train_pass(
            arrays["text_ids"],
            arrays["text_lengths"],
            self.spectrogram,
            arrays["frame_lengths"],
            TrainingNoise(*draws),
            self.speaker,
        )

    def real(self, found):
        start = found.segment_start * self.config.audio.hop_samples
        return segments(self.arrays["wav"], start, self.config.segment_samples)

    def judge(self, discriminators, found):
        """The batch of six that the losses take: real segments, then generated ones."""
        return discriminators(jnp.concatenate([self.real(found), found.audio]))

    def generator_loss(self, parameters, discriminators):
        found = self.training_pass(parameters)
        audio = self.config.audio
        mel = segments(log_mel(self.spectrogram, audio), found.segment_start, self.config.segment_frames)
        generated_mel = log_mel(linear_spectrogram(found.audio, audio), audio)
        judgements = self.judge(self.model("d", discriminators), found)
        losses = {
            "dur": found.duration_loss,
            "mel": mel_loss(mel, generated_mel),
            "kl": kl_loss(
                found.z_prior,
                found.posterior.log_scale,
                found.prior_mean,
                found.prior_log_scale,
                found.frame_mask,
            ),
            "fm": feature_loss(judgements),
            "gen": adversarial_loss(judgements),
        }
        total = sum(losses.values())
        return total, ({**losses, "gen_total": total}, found, generated_mel, [one.score for one in judgements])

    def discriminator_loss(self, parameters, found):
        return discriminator_loss(self.judge(self.model("d", parameters), found))


@pytest.fixture(scope="module", params=sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def recorded(request):
    return Recorded(request.param)


@pytest.fixture(scope="module")
def trained(recorded):
    (_, results), gradients = jax.jit(jax.value_and_grad(recorded.generator_loss, has_aux=True))(
        recorded.parameters["g"], recorded.parameters["d"]
    )
    return results, gradients


@pytest.fixture(scope="module")
def judged(recorded, trained):
    found = trained[0][1]
    return jax.jit(jax.value_and_grad(recorded.discriminator_loss))(recorded.parameters["d"], found)


def assert_close(ours, theirs, name, tolerance=TOLERANCE):
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert ours.shape == theirs.shape, name
    error = np.max(np.abs(ours - theirs)) / np.max(np.abs(theirs))
    print(f"{name}: {error:.1e}")
    assert error <= tolerance, name


def channels_first(x):
    return np.asarray(x).swapaxes(1, 2)


@pytest.mark.parametrize("side", ["g", "d"])
def test_every_tensor_is_mapped_once_and_back(recorded, side):
    shapes = recorded.record[f"param_shapes_{side}"]
    assert sorted(name.published for name in recorded.names[side]) == sorted(shapes)
    back = to_published(recorded.parameters[side], recorded.names[side])
    for name, array in back.items():
        np.testing.assert_array_equal(array, parameter(f"{recorded.name}/{side}", name, tuple(shapes[name])))
    ours = nnx.to_pure_dict(nnx.state(nnx.eval_shape(lambda: recorded.model(side))))
    assert jax.tree.map(jnp.shape, ours) == jax.tree.map(jnp.shape, recorded.parameters[side])


def test_spectrograms(recorded):
    audio = recorded.config.audio
    arrays = recorded.arrays
    spectrogram = linear_spectrogram(arrays["wav"], audio)
    inside = np.arange(spectrogram.shape[1]) < arrays["frame_lengths"][:, None]
    assert_close(channels_first(spectrogram * inside[..., None]), arrays["spec"], "spec")
    assert_close(channels_first(log_mel(recorded.spectrogram, audio)), arrays["mel"], "mel")


def test_training_pass(recorded, trained):
    (_, found, generated_mel, _), _ = trained
    arrays = recorded.arrays
    np.testing.assert_array_equal(found.segment_start, arrays["ids_slice"])
    np.testing.assert_array_equal(found.path, arrays["path"])
    assert_close(found.scores, arrays["neg_cent"], "neg_cent")
    assert_close(found.audio[:, None], arrays["y_hat"], "y_hat")
    assert_close(channels_first(generated_mel), arrays["y_hat_mel"], "y_hat_mel")
    for ours, theirs in (
        (found.posterior.sample, "z"),
        (found.posterior.mean, "m_q"),
        (found.posterior.log_scale, "logs_q"),
        (found.z_prior, "z_p"),
        (found.prior_mean, "m_p"),
        (found.prior_log_scale, "logs_p"),
    ):
        assert_close(channels_first(ours), arrays[theirs], theirs)


def test_scores_of_the_discriminators(recorded, trained):
    (_, _, _, scores), _ = trained
    for index, score in enumerate(scores):
        real, fake = np.split(np.asarray(score), 2)
        assert_close(real, recorded.arrays[f"disc{index}_real"], f"disc{index}_real")
        assert_close(fake, recorded.arrays[f"disc{index}_fake"], f"disc{index}_fake")


def test_losses(recorded, trained, judged):
    losses = {**trained[0][0], "disc": judged[0]}
    assert losses.keys() == recorded.record["losses"].keys()
    for name, loss in losses.items():
        assert_close(loss, recorded.record["losses"][name], name)


@pytest.mark.parametrize("side", ["g", "d"])
def test_gradients(recorded, trained, judged, side):
    gradients = to_published(trained[1] if side == "g" else judged[1], recorded.names[side])
    probes = recorded.record[f"grad_probe_{side}"]
    assert gradients.keys() == probes.keys()
    scale = max(norm for norm, _ in probes.values())
    worst = (0.0, "")
    for name, (norm, product) in probes.items():
        gradient = gradients[name].astype(np.float64)
        # The dot product with a standard normal is of the size of the norm. A gradient that is 0 but for rounding
        # (a bias of the attention keys shifts all scores of a query alike) is held to the largest of all.
        allowed = TOLERANCE * max(norm, 1e-5 * scale)
        probe = stream(f"probe/{recorded.name}/{side}/{name}").standard_normal(gradient.shape)
        errors = abs(np.linalg.norm(gradient) - norm), abs(np.sum(gradient * probe) - product)
        worst = max(worst, (max(errors) / allowed * TOLERANCE, name))
        assert max(errors) <= allowed, (name, errors, norm, product)
    print(f"gradients {side}: {worst[0]:.1e} ({worst[1]})")


def test_synthesis(recorded):
    model = recorded.model("g")
    parts = sorted(name.removesuffix("_draws") for name in recorded.record if name.startswith("infer"))
    assert parts
    for part in parts:
        row = int(part.removeprefix("infer"))
        *duration_noise, noise = recorded.draws(part)
        length = recorded.arrays["text_lengths"][row]
        text = recorded.arrays["text_ids"][row : row + 1, :length]
        speaker = None if recorded.speaker is None else recorded.speaker[row : row + 1]
        duration_noise = 0.8 * duration_noise[0] if duration_noise else np.zeros((1, length, 2), np.float32)
        plan = nnx.jit(lambda model, *arguments: model.plan(*arguments, length_scale=1.1))(
            model, text, np.array([length]), duration_noise, speaker
        )
        np.testing.assert_array_equal(plan.durations, recorded.arrays[f"{part}_durations"])
        speech = nnx.jit(lambda model, *arguments: model.speak(*arguments))(model, plan, 0.667 * noise, speaker)
        assert_close(speech.audio[:, None], recorded.arrays[f"{part}_wav"], f"{part}_wav")


def test_voice_conversion(recorded):
    if "vc_draws" not in recorded.record:
        pytest.skip("one speaker")
    (noise,) = recorded.draws("vc")
    frames = noise.shape[1]
    speech = nnx.jit(lambda model, *arguments: model.convert(*arguments))(
        recorded.model("g"),
        recorded.spectrogram[:1, :frames],
        np.array([frames]),
        noise,
        np.array([0]),
        np.array([1]),
    )
    assert_close(speech.audio[:, None], recorded.arrays["vc_wav"], "vc_wav")
