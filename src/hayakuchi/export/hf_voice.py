"""`export --format hf` of a voice: a directory that `transformers` loads as a VitsModel with a VitsTokenizer.

That tokenizer reads one character a token, so each symbol has one that stands for it (`characters`). Text becomes
symbols by our front end, as in training.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx

from hayakuchi.config.vits import VitsConfig
from hayakuchi.data.speech_shards import SpeechCounts
from hayakuchi.directories import new_directory
from hayakuchi.errors import UserError
from hayakuchi.export.files import folder_bytes, write_json, write_safetensors
from hayakuchi.export.hf_voice_weights import to_hf_voice
from hayakuchi.infer.voice import VoiceRun
from hayakuchi.models.vits.layers import LAYER_NORM_EPSILON
from hayakuchi.models.vits.spline import TAIL
from hayakuchi.speech.symbols import INVENTORY, MARKS, PAD, PAD_ID, PAUSE, Inventory

_UNKNOWN = "<unk>"
_PRIVATE_USE = 0xE000


def export_hf_voice(run: VoiceRun, out: Path) -> dict[str, Any]:
    """Writes a trained voice as a `transformers` model directory.

    Args:
      run: the model with what its data set says of symbols and speakers.
      out: where; must not exist, or be an empty directory.

    Returns:
      What was written: path, parameters, bytes, sample rate, speakers.

    Raises:
      UserError: VitsModel has no such layers, or `out` is taken or cannot be written.
      MissingExtraError: `safetensors` is not installed.
    """
    config, info = run.recipe.model, run.info
    _check(config)
    with new_directory(out) as folder:
        parameters = _write_model(run, folder)
        _write_tokenizer(info.inventory, folder)
        facts = {
            "sampling_rate": config.audio.sample_rate_hz,
            "speakers": list(info.speakers),
            "front_end": info.front_end,
            "inventory": info.inventory.to_dict(),
            "characters": character_table(info.inventory),
        }
        write_json(folder / "voice.json", facts)
        (folder / "README.md").write_text(_model_card(run, parameters), encoding="utf-8")
        size = folder_bytes(folder)
    return {
        "out": str(out),
        "format": "hf",
        "step": run.step,
        "parameters": parameters,
        "bytes": size,
        "sample_rate_hz": config.audio.sample_rate_hz,
        "speakers": list(info.speakers),
    }


def character_table(inventory: Inventory) -> dict[str, str]:
    """The character that stands for each symbol but padding.

    Letters and marks stand for themselves; all else, which is phones of several letters, has private-use characters
    from U+E000 on, in the order of the ids.
    """
    table: dict[str, str] = {}
    private_use = _PRIVATE_USE
    for symbol in inventory.symbols[PAD_ID + 1 :]:
        table[symbol] = symbol
        if len(symbol) != 1 or not (symbol.isalnum() or symbol in MARKS):
            table[symbol] = chr(private_use)
            private_use += 1
    return table


def characters(symbols: Iterable[str], inventory: Inventory = INVENTORY) -> str:
    """Symbols as the string that an exported voice's tokenizer takes; unknown ones become their fallback.

    Args:
      symbols: a sentence of the front end.
      inventory: that of the model.
    """
    table = character_table(inventory)
    return "".join(table[part] for symbol in symbols for part in inventory.resolve(symbol))


def model_config(config: VitsConfig) -> dict[str, Any]:
    """`config.json` of a VitsModel of these sizes, but for the vocabulary."""
    dropouts = ("hidden_dropout", "attention_dropout", "activation_dropout")
    return {
        "architectures": ["VitsModel"],
        "model_type": "vits",
        "dtype": "float32",
        "hidden_size": config.hidden_channels,
        "num_hidden_layers": config.text_layers,
        "num_attention_heads": config.heads,
        "window_size": config.attention_window,
        "use_bias": True,
        "ffn_dim": config.filter_channels,
        "ffn_kernel_size": config.text_kernel,
        "hidden_act": "relu",
        **dict.fromkeys(dropouts, config.text_dropout),
        "layerdrop": 0.0,
        "layer_norm_eps": LAYER_NORM_EPSILON,
        "flow_size": config.latent_channels,
        "spectrogram_bins": config.audio.bins,
        "sampling_rate": config.audio.sample_rate_hz,
        "num_speakers": max(config.speakers, 1),
        "speaker_embedding_size": config.condition_channels,
        "use_stochastic_duration_prediction": config.stochastic_durations,
        "depth_separable_channels": 2,
        "depth_separable_num_layers": 3,
        "duration_predictor_num_flows": 4,
        "duration_predictor_flow_bins": 10,
        "duration_predictor_tail_bound": TAIL,
        "duration_predictor_kernel_size": config.text_kernel,
        "duration_predictor_filter_channels": config.duration_channels,
        "duration_predictor_dropout": config.duration_dropout,
        "prior_encoder_num_flows": config.flow_couplings,
        "prior_encoder_num_wavenet_layers": config.flow_layers,
        "posterior_encoder_num_wavenet_layers": config.posterior_layers,
        "wavenet_kernel_size": config.wavenet_kernel,
        "wavenet_dilation_rate": 1,
        "wavenet_dropout": 0.0,
        "upsample_initial_channel": config.upsample_channels,
        "upsample_rates": list(config.upsample_rates),
        "upsample_kernel_sizes": list(config.upsample_kernels),
        "resblock_kernel_sizes": list(config.resblock_kernels),
        "resblock_dilation_sizes": list(map(list, config.resblock_dilations)),
        "leaky_relu_slope": 0.1,
        # As published (arXiv 2106.06103).
        "noise_scale": 0.667,
        "noise_scale_duration": 0.8,
        "speaking_rate": 1.0,
    }


def _check(config: VitsConfig) -> None:
    if config.decoder != "hifigan":
        raise UserError(
            f'export --format hf: decoder="{config.decoder}" is unknown to VitsModel of transformers; '
            'only models trained with decoder="hifigan" can be exported so'
        )
    if config.resblock != "1":
        raise UserError(
            f'export --format hf: resblock="{config.resblock}" is unknown to VitsModel of transformers; '
            'only models trained with resblock="1" can be exported so'
        )
    if config.speakers == 1:
        raise UserError(
            "export --format hf: VitsModel of transformers has no embedding for speakers=1; "
            "only models trained with speakers=0, or 2 and more, can be exported so"
        )


def _write_model(run: VoiceRun, folder: Path) -> int:
    """Configuration and weights; returns the number of parameters."""
    config = run.recipe.model
    tensors = to_hf_voice(nnx.to_pure_dict(nnx.state(run.model, nnx.Param)), config)
    # One row more than there are symbols: what is unknown sounds like a pause, as everywhere.
    embedding = tensors["text_encoder.embed_tokens.weight"]
    pause = embedding[run.info.inventory.ids[PAUSE]]
    tensors["text_encoder.embed_tokens.weight"] = np.concatenate([embedding, pause[None]])
    write_json(folder / "config.json", {**model_config(config), "vocab_size": len(embedding) + 1})
    write_safetensors(folder, tensors)
    return sum(tensor.size for tensor in tensors.values())


def _write_tokenizer(inventory: Inventory, folder: Path) -> None:
    table = character_table(inventory)
    ids = {character: inventory.ids[symbol] for symbol, character in table.items()}
    write_json(folder / "vocab.json", {PAD: PAD_ID, **ids, _UNKNOWN: inventory.size})
    settings = {
        "tokenizer_class": "VitsTokenizer",
        "language": "ja",
        "add_blank": True,
        "normalize": False,
        "phonemize": False,
        "is_uroman": False,
        "pad_token": PAD,
        "unk_token": _UNKNOWN,
        "clean_up_tokenization_spaces": False,
    }
    write_json(folder / "tokenizer_config.json", settings)


def _model_card(run: VoiceRun, parameters: int) -> str:
    config, info = run.recipe.model, run.info
    table = character_table(info.inventory)
    private = "\n".join(
        f'| `{symbol}` | `"\\u{ord(character):04x}"` |' for symbol, character in table.items() if character != symbol
    )
    speakers = "\n".join(
        f"| {index} | {_cell(name)} | {counts.clips:,} | {counts.seconds / 60:.1f} |"
        for index, name in enumerate(info.speakers)
        for counts in [info.counts["train"].get(name, SpeechCounts())]
    )
    speaker_argument, speaker_note = "", ""
    if config.speakers:
        speaker_argument = ", speaker_id=0"
        speaker_note = "\nWithout `speaker_id` the model speaks with no voice at all: always give one.\n"
    return f"""\
---
language: ja
library_name: transformers
pipeline_tag: text-to-speech
tags: [vits]
license: other
---

# {run.recipe.name}

A Japanese voice (VITS, arXiv 2106.06103) of {parameters:,} parameters, {config.audio.sample_rate_hz:,} Hz. Hayakuchi
trained it from scratch in {run.step:,} steps.

## Use

```python
import json
from pathlib import Path

from hayakuchi.export.hf_voice import characters
from hayakuchi.speech.frontend import make_front_end
from hayakuchi.speech.symbols import Inventory
from transformers import AutoTokenizer, VitsModel

tokenizer = AutoTokenizer.from_pretrained("PATH")
model = VitsModel.from_pretrained("PATH")
voice = json.loads(Path("PATH/voice.json").read_text(encoding="utf-8"))
inventory = Inventory.from_dict(voice["inventory"], "voice.json")
front_end = make_front_end("{info.front_end["engine"]}", devoiced="{info.front_end["devoiced"]}", inventory=inventory)
for sentence in front_end.read("おはようございます。").sentences:
    inputs = tokenizer(characters(sentence.symbols, inventory), return_tensors="pt")
    waveform = model(**inputs{speaker_argument}).waveform[0]  # {config.audio.sample_rate_hz} Hz
```
{speaker_note}
Speak sentence by sentence, not in padded batches: VitsModel's decoder hears the padding at the end of a row.
`model.noise_scale`, `model.noise_scale_duration` and `model.speaking_rate` change how it speaks.

## From text to the tokenizer's characters

The model reads phones of OpenJTalk and prosody marks, one character for each: `^` starts a sentence and `$` ends it (a
question `?`), `_` is a pause, `#` parts accent phrases, `[` and `]` raise and lower the pitch, capital vowels are
devoiced. Letters and marks stand for themselves; phones of several letters have these private-use characters:

| phone | character |
| --- | --- |
{private}

So `^ h a ] i $` is `"^ha]i$"`. `voice.json` has the whole table ("characters"), what stands for rare phones
("inventory", "fallbacks") and the speakers. A character that is no symbol's is read as a pause.

## Speakers

| id | name | clips | minutes |
| --- | --- | --- | --- |
{speakers}

## Licence

The weights come from your data: the licence of the model, and whether it may be passed on, follow from the terms of
the recordings it was trained on and of the speakers. Replace this section, and `license: other` above, before you
publish it.
"""


def _cell(text: str) -> str:
    """Text in a cell of a Markdown table."""
    return " ".join(text.replace("|", "\\|").split())
