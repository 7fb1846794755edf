"""The VITS training step of the package coqui-tts, at its defaults: those published, with our number of speakers.

For an interpreter with coqui-tts (`make peers`). The package asks for torchaudio and torchcodec when it is imported. It
reads audio files with them, which no step does; and on a machine without CUDA what an index offers need not load. So
empty modules stand for them where they are not installed.
"""

import importlib.machinery
import importlib.util
import logging
import sys
import types
from typing import Any

import torch

VOCABULARY = 178


def import_coqui() -> Any:
    """The package's module of VITS."""
    for name in ("torchaudio", "torchcodec"):
        if importlib.util.find_spec(name) is None:
            empty = types.ModuleType(name)
            empty.__spec__ = importlib.machinery.ModuleSpec(name, None)
            empty.__version__ = "0"
            sys.modules[name] = empty
    logging.getLogger("TTS").setLevel(logging.ERROR)
    from TTS.tts.models import vits

    return vits


class Step:
    """Both networks with their optimisers; calling it does one training step, as the package's trainer orders it."""

    def __init__(self, batch: int, frames: int, symbols: int, speakers: int, *, tiny: bool) -> None:
        vits = import_coqui()
        from TTS.tts.configs.shared_configs import CharactersConfig
        from TTS.tts.configs.vits_config import VitsConfig

        sizes: dict[str, Any] = {"use_speaker_embedding": speakers > 0}
        if tiny:
            # The discriminators are as large as ever.
            sizes |= {"num_layers_text_encoder": 1, "num_layers_posterior_encoder": 2, "num_layers_flow": 2}
            sizes |= {"upsample_initial_channel_decoder": 32, "spec_segment_size": 8}
        config = VitsConfig(
            model_args=vits.VitsArgs(**sizes),
            # The package counts its symbols itself; pad and one mark are two more.
            characters=CharactersConfig(
                pad="_",
                eos="",
                bos="",
                blank="",
                punctuations="!",
                characters="".join(chr(0x4E00 + index) for index in range(VOCABULARY - 2)),
            ),
            speakers=[str(index) for index in range(speakers)],
        )
        self.model = vits.Vits(config).train()
        self.criteria, self.optimizers = self.model.get_criterion(), self.model.get_optimizer()
        self.limits = config.grad_clip
        audio = config.audio
        # Read from a file in the published run, so the spectrograms of the clips are not part of the step.
        self.batch = self.model.format_batch_on_device(
            {
                "tokens": torch.randint(1, VOCABULARY, (batch, symbols)),
                "token_lens": torch.full((batch,), symbols),
                "waveform": torch.randn(batch, 1, frames * audio.hop_length) / 11,
                "waveform_rel_lens": torch.ones(batch),
                "speaker_ids": torch.randint(0, max(speakers, 1), (batch,)) if speakers else None,
                "d_vectors": None,
                "language_ids": None,
            }
        )
        assert self.batch["spec"].shape[2] == frames

    def __call__(self) -> dict[str, float]:
        told = {}
        for index, name in enumerate(("discriminator_loss", "generator_loss")):
            optimizer = self.optimizers[index]
            _, losses = self.model.train_step(self.batch, self.criteria[index], index)
            losses["loss"].backward()
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            norm = torch.nn.utils.clip_grad_norm_(parameters, self.limits[index])
            optimizer.step()
            # Of both networks: the generator's loss leaves gradients in the discriminators too.
            self.model.zero_grad(set_to_none=True)
            told |= {name: losses["loss"].item(), f"{name}_gradient_norm": norm.item()}
        return told

    def parameters(self) -> dict[str, int]:
        counts = {"generator": 0, "discriminators": 0}
        for name, parameter in self.model.named_parameters():
            counts["discriminators" if name.startswith("disc.") else "generator"] += parameter.numel()
        return counts
