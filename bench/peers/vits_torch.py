"""One VITS training step in PyTorch: what bench/cases/vits_step.py holds ours against.

For an interpreter with torch and transformers. The generator's parts are those of `transformers`, with the weight
norm and the starting values of training; discriminators, losses, alignment and the order of a step follow the
published description (arXiv 2106.06103, sections 2 and 3; arXiv 2010.05646, section 2.3).

Two ways of one computation: as the published code does it, and `lean`, without what only that code's form costs it:
gradients of the discriminators in the generator's turn, a graph for the real half there, two passes where one of twice
the batch does, AdamW parameter by parameter.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import get_total_norm
from torch.nn.utils.parametrizations import weight_norm
from transformers import VitsConfig
from transformers.audio_utils import mel_filter_bank
from transformers.models.vits.modeling_vits import (
    VitsConvFlow,
    VitsHifiGan,
    VitsPosteriorEncoder,
    VitsResidualCouplingBlock,
    VitsResidualCouplingLayer,
    VitsStochasticDurationPredictor,
    VitsTextEncoder,
)

FFT, HOP, MELS = 1_024, 256, 80
PERIODS = (2, 3, 5, 7, 11)
# Kernel width, input and output channels, stride, groups.
SCALE_LAYERS = (
    (15, 1, 16, 1, 1),
    (41, 16, 64, 4, 4),
    (41, 64, 256, 4, 16),
    (41, 256, 1024, 4, 64),
    (41, 1024, 1024, 4, 256),
    (5, 1024, 1024, 1, 1),
    (3, 1024, 1, 1, 1),
)
PERIOD_LAYERS = (
    (5, 1, 32, 3, 1),
    (5, 32, 128, 3, 1),
    (5, 128, 512, 3, 1),
    (5, 512, 1024, 3, 1),
    (5, 1024, 1024, 1, 1),
    (3, 1024, 1, 1, 1),
)
SLOPE = 0.1


class Batch(NamedTuple):
    """Clips that fill their rows: symbols [B, L], audio [B, 1, S], spectrogram [B, F, T], speakers [B]."""

    symbols: Tensor
    audio: Tensor
    spectrogram: Tensor
    speakers: Tensor


class Passed(NamedTuple):
    """What the losses are computed from."""

    audio: Tensor
    start: list[int]
    duration_loss: Tensor
    posterior_log_scale: Tensor
    z_prior: Tensor
    prior_mean: Tensor
    prior_log_scale: Tensor


class Generator(nn.Module):
    def __init__(self, config: VitsConfig) -> None:
        super().__init__()
        self.text_encoder = VitsTextEncoder(config)
        self.posterior_encoder = VitsPosteriorEncoder(config)
        self.flow = VitsResidualCouplingBlock(config)
        self.durations = VitsStochasticDurationPredictor(config)
        self.decoder = VitsHifiGan(config)
        width = config.speaker_embedding_size
        self.speakers = nn.Embedding(config.num_speakers, width) if width else None
        nn.init.normal_(self.text_encoder.embed_tokens.weight, 0.0, config.hidden_size**-0.5)
        for module in self.modules():
            if isinstance(module, VitsResidualCouplingLayer | VitsConvFlow):
                last = module.conv_post if isinstance(module, VitsResidualCouplingLayer) else module.conv_proj
                nn.init.zeros_(last.weight)
                nn.init.zeros_(last.bias)
        for part in (self.decoder.upsampler, self.decoder.resblocks):
            for module in part.modules():
                if isinstance(module, nn.Conv1d | nn.ConvTranspose1d):
                    nn.init.normal_(module.weight, 0.0, 0.01)
        self.decoder.apply_weight_norm()

    def forward(self, batch: Batch, segment_frames: int) -> Passed:
        voice = None if self.speakers is None else self.speakers(batch.speakers)[..., None]
        rows, symbols = batch.symbols.shape
        frames = batch.spectrogram.shape[2]
        text_mask, frame_mask = torch.ones(rows, 1, symbols), torch.ones(rows, 1, frames)
        text = self.text_encoder(batch.symbols, text_mask.transpose(1, 2), text_mask[:, 0])
        hidden, mean, log_scale = (
            x.transpose(1, 2) for x in (text.last_hidden_state, text.prior_means, text.prior_log_variances)
        )
        z, _, posterior_log_scale = self.posterior_encoder(batch.spectrogram, frame_mask, voice)
        z_prior = self.flow(z, frame_mask, voice)
        with torch.no_grad():
            path = torch.from_numpy(align(alignment_scores(z_prior, mean, log_scale).numpy()))
        losses = self.durations(hidden, text_mask, voice, path.sum(1)[:, None])
        start = [int(u * (frames - segment_frames + 1)) for u in torch.rand(rows)]
        return Passed(
            audio=self.decoder(pieces(z, start, segment_frames), voice),
            start=start,
            duration_loss=losses.sum() / text_mask.sum(),
            posterior_log_scale=posterior_log_scale,
            z_prior=z_prior,
            prior_mean=torch.matmul(path, mean.transpose(1, 2)).transpose(1, 2),
            prior_log_scale=torch.matmul(path, log_scale.transpose(1, 2)).transpose(1, 2),
        )


class Discriminator(nn.Module):
    """Of the samples (period 0) or of every `period`-th one; gives the outputs of all layers, the score last."""

    def __init__(self, period: int, division: int) -> None:
        super().__init__()
        self.period = period
        layers = []
        for width, *channels, stride, groups in PERIOD_LAYERS if period else SCALE_LAYERS:
            inputs, outputs = (c if c == 1 else c // division for c in channels)
            if period:
                layer = nn.Conv2d(inputs, outputs, (width, 1), (stride, 1), (width // 2, 0))
            else:
                groups_left = math.gcd(groups, inputs, outputs)
                layer = nn.Conv1d(inputs, outputs, width, stride, width // 2, groups=groups_left)
            layers.append(weight_norm(layer))
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> list[Tensor]:
        if self.period:
            x = functional.pad(x, (0, -x.shape[2] % self.period), "reflect")
            x = x.view(*x.shape[:2], -1, self.period)
        features = []
        for layer in self.layers[:-1]:
            x = functional.leaky_relu(layer(x), SLOPE)
            features.append(x)
        return [*features, self.layers[-1](x)]


class Discriminators(nn.Module):
    def __init__(self, division: int) -> None:
        super().__init__()
        self.all = nn.ModuleList(Discriminator(period, division) for period in (0, *PERIODS))

    def forward(self, x: Tensor) -> list[list[Tensor]]:
        return [one(x) for one in self.all]


class Step:
    """Both networks with their optimisers; calling it does one training step."""

    def __init__(self, config: VitsConfig, division: int, segment_samples: int, rate_hz: int, *, lean: bool) -> None:
        self.generator, self.discriminators = Generator(config).train(), Discriminators(division).train()
        self.segment_samples, self.lean = segment_samples, lean
        settings = {"lr": 2e-4, "betas": (0.8, 0.99), "eps": 1e-9, "weight_decay": 0.01, "fused": lean or None}
        self.generator_optimizer = torch.optim.AdamW(self.generator.parameters(), **settings)
        self.discriminator_optimizer = torch.optim.AdamW(self.discriminators.parameters(), **settings)
        filters = mel_filter_bank(FFT // 2 + 1, MELS, 0.0, rate_hz / 2, rate_hz, norm="slaney", mel_scale="slaney")
        self.filters = torch.tensor(filters.T, dtype=torch.float32)

    def __call__(self, batch: Batch) -> dict[str, float]:
        found = self.generator(batch, self.segment_samples // HOP)
        wanted = pieces(self._log_mel(batch.spectrogram), found.start, self.segment_samples // HOP)
        made = self._log_mel(linear_spectrogram(found.audio[:, 0]))
        real = pieces(batch.audio, [HOP * first for first in found.start], self.segment_samples)

        judged = self._judge_both(real, found.audio.detach())
        judged_loss = sum(((1 - r[-1]) ** 2).mean() + (f[-1] ** 2).mean() for r, f in judged)
        discriminator_norm = update(self.discriminator_optimizer, self.discriminators, judged_loss)

        judged = self._judge_for_generator(real, found.audio)
        losses = {
            "mel_loss": 45 * functional.l1_loss(made, wanted),
            "kl_loss": kl_loss(found),
            "duration_loss": found.duration_loss,
            "feature_loss": 2
            * sum((a.detach() - b).abs().mean() for r, f in judged for a, b in zip(r, f, strict=True)),
            "adversarial_loss": sum(((1 - f[-1]) ** 2).mean() for _, f in judged),
        }
        generator_norm = update(self.generator_optimizer, self.generator, sum(losses.values()))
        if self.lean:
            self.discriminators.requires_grad_(True)
        norms = {"gradient_norm": generator_norm, "discriminator_gradient_norm": discriminator_norm}
        told = {**losses, "discriminator_loss": judged_loss, **norms}
        return {name: value.item() for name, value in told.items()}

    def parameters(self) -> dict[str, int]:
        networks = {"generator": self.generator, "discriminators": self.discriminators}
        return {name: sum(p.numel() for p in network.parameters()) for name, network in networks.items()}

    def _judge_both(self, real: Tensor, fake: Tensor) -> list[tuple[list[Tensor], list[Tensor]]]:
        if not self.lean:
            return list(zip(self.discriminators(real), self.discriminators(fake), strict=True))
        halves = [[feature.chunk(2) for feature in one] for one in self.discriminators(torch.cat([real, fake]))]
        return [tuple(map(list, zip(*one, strict=True))) for one in halves]

    def _judge_for_generator(self, real: Tensor, fake: Tensor) -> list[tuple[list[Tensor], list[Tensor]]]:
        if not self.lean:
            return self._judge_both(real, fake)
        self.discriminators.requires_grad_(False)
        with torch.no_grad():
            targets = self.discriminators(real)
        return list(zip(targets, self.discriminators(fake), strict=True))

    def _log_mel(self, spectrogram: Tensor) -> Tensor:
        return (self.filters @ spectrogram).clamp(min=1e-5).log()


def update(optimizer: torch.optim.Optimizer, network: nn.Module, loss: Tensor) -> Tensor:
    """One step down the loss; gives the norm of the gradient."""
    optimizer.zero_grad()
    loss.backward()
    norm = get_total_norm([p.grad for p in network.parameters() if p.grad is not None])
    optimizer.step()
    return norm


def pieces(x: Tensor, start: list[int], length: int) -> Tensor:
    return torch.stack([row[:, first : first + length] for row, first in zip(x, start, strict=True)])


def linear_spectrogram(audio: Tensor) -> Tensor:
    """Magnitudes [B, F, T] of audio [B, S]."""
    edge = (FFT - HOP) // 2
    audio = functional.pad(audio[:, None], (edge, edge), "reflect")[:, 0]
    spectrum = torch.stft(audio, FFT, HOP, window=torch.hann_window(FFT), center=False, return_complex=True)
    return (torch.view_as_real(spectrum).square().sum(-1) + 1e-6).sqrt()


def kl_loss(found: Passed) -> Tensor:
    squares = (found.z_prior - found.prior_mean) ** 2 * torch.exp(-2 * found.prior_log_scale)
    terms = found.prior_log_scale - found.posterior_log_scale - 0.5 + 0.5 * squares
    return terms.sum() / (terms.shape[0] * terms.shape[2])


def alignment_scores(z: Tensor, mean: Tensor, log_scale: Tensor) -> Tensor:
    """[B, T, L] of z [B, C, T], mean and log-scale [B, C, L]."""
    precision = torch.exp(-2 * log_scale)
    by_symbol = (-0.5 * math.log(2 * math.pi) - log_scale - 0.5 * mean**2 * precision).sum(1, keepdim=True)
    frames = z.transpose(1, 2)
    return by_symbol + torch.matmul(-0.5 * frames**2, precision) + torch.matmul(frames, mean * precision)


def align(scores: np.ndarray) -> np.ndarray:
    """The monotonic path [B, T, L] of the largest sum; all rows and symbols at once, frame by frame."""
    rows, frames, symbols = scores.shape
    edge = np.full((rows, 1), -np.inf, np.float32)
    best = np.full((rows, symbols), -np.inf, np.float32)
    best[:, 0] = scores[:, 0, 0]
    moved = np.zeros((frames, rows, symbols), bool)
    for t in range(1, frames):
        before = np.concatenate([edge, best[:, :-1]], axis=1)
        np.greater(before, best, out=moved[t])
        best = np.maximum(best, before) + scores[:, t]
    path, each, place = np.zeros_like(scores), np.arange(rows), np.full(rows, symbols - 1)
    for t in reversed(range(frames)):
        path[each, t, place] = 1
        place = place - moved[t, each, place]
    return path
