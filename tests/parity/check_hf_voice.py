"""An exported voice in `transformers` against ours: loading, tokenizer, waveform at zero noise.

The two sides may live in two environments, since PyTorch is no dependency of ours:

    python tests/parity/check_hf_voice.py write /tmp/voices    # where hayakuchi is installed
    python tests/parity/check_hf_voice.py check /tmp/voices    # in the environment of the extra `parity`

`write --published` writes one of the sizes of arXiv 2106.06103 instead. `record` (in the second environment) prints the
tensors that `transformers` expects, as in tests/golden/hf_voice_tensors.json. `test_hf_model.py` does `write` and
`check` at once where everything is installed.
"""

import argparse
import json
from pathlib import Path

import numpy as np

TOLERANCE = 1e-5
# Durations at this many times their length: whole frames of the usual length would hide mistakes.
SLOW = 1e4
# The short one has fewer ids than the attention has offsets; "kw" has a fallback.
SYMBOLS = {
    "long": "^ k o [ N n i ch i w a ? _ # ky o ] o w a kw a i I t e N k i d e sh U n e cl $",
    "short": "a",
}


def configs() -> "dict[str, VitsConfig]":
    """Small models of every kind that can be exported."""
    from hayakuchi.config.vits import AudioConfig, VitsConfig
    from hayakuchi.speech.symbols import INVENTORY

    # As tests/golden/vits/tiny_*.json.
    tiny = {
        "audio": AudioConfig(8_000, 256, 256, 64, 20),
        "vocabulary_size": INVENTORY.size,
        "speaker_channels": 12,
        "latent_channels": 16,
        "hidden_channels": 16,
        "filter_channels": 32,
        "text_layers": 2,
        "upsample_rates": (8, 8),
        "upsample_kernels": (16, 16),
        "upsample_channels": 32,
        "resblock_kernels": (3, 7),
        "resblock_dilations": ((1, 3, 5), (1, 3, 5)),
        "segment_samples": 1_024,
    }
    # What the others leave at its default, or equal to another size.
    odd = {
        "latent_channels": 12,
        "heads": 4,
        "resblock_dilations": ((1, 2), (1, 4)),
        "text_kernel": 5,
        "attention_window": 3,
        "posterior_layers": 3,
        "flow_couplings": 3,
        "flow_layers": 2,
        "wavenet_kernel": 3,
    }
    return {
        "single": VitsConfig(**tiny),
        "multi": VitsConfig(**tiny, speakers=3),
        "multi_dp": VitsConfig(**tiny, speakers=3, stochastic_durations=False, duration_channels=24),
        "odd": VitsConfig(**{**tiny, **odd}),
    }


def write(folder: Path, *, published: bool = False) -> None:
    """Exports voices with random weights to `folder/NAME/model` and their speech to `folder/NAME/ours.npz`."""
    from hayakuchi.config.vits import VitsConfig
    from hayakuchi.speech.symbols import INVENTORY

    voices = {"published": VitsConfig(vocabulary_size=INVENTORY.size)} if published else configs()
    for name, config in voices.items():
        _write_voice(folder / name, config)


def random_voice(config: "VitsConfig") -> "VoiceRun":
    """A voice that was not trained. It is not at the usual start, where flows are the identity and mistakes hide."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    from hayakuchi.config.vits import VitsRecipe
    from hayakuchi.data.speech_shards import SpeechCounts, SpeechInfo
    from hayakuchi.infer.voice import VoiceRun
    from hayakuchi.models.vits.model import Vits
    from hayakuchi.speech.symbols import INVENTORY

    graph, shapes = nnx.split(nnx.eval_shape(lambda: Vits(config, jax.random.key(0))), nnx.Param)
    random, deviation = np.random.default_rng(0), 0.6 / config.hidden_channels**0.5
    parameters = jax.tree.map_with_path(
        lambda path, leaf: jnp.asarray(
            deviation * random.standard_normal(leaf.shape) + (str(path[-2].key) in ("scale", "gain")), jnp.float32
        ),
        shapes,
    )
    speakers = tuple(f"voice|{index}" for index in range(max(config.speakers, 1)))
    info = SpeechInfo(
        sample_rate_hz=config.audio.sample_rate_hz,
        speakers=speakers,
        inventory=INVENTORY,
        front_end={"engine": "haqumei", "version": "haqumei 0", "devoiced": "fold"},
        counts={"train": {name: SpeechCounts(1_200, 90.0) for name in speakers}, "heldout": {}},
    )
    return VoiceRun(nnx.merge(graph, parameters), VitsRecipe(model=config), info, 1_000)


def _write_voice(folder: Path, config: "VitsConfig") -> None:
    import jax.numpy as jnp
    from flax import nnx

    from hayakuchi.export.hf_voice import characters, export_hf_voice
    from hayakuchi.models.vits.model import Vits
    from hayakuchi.speech.symbols import INVENTORY, with_blanks

    folder.mkdir(parents=True, exist_ok=True)
    run = random_voice(config)
    export_hf_voice(run, folder / "model")
    make_plan, speak = nnx.jit(Vits.plan), nnx.jit(Vits.speak)
    arrays = {}
    for name, symbols in SYMBOLS.items():
        ids = jnp.array([with_blanks(INVENTORY.encode(symbols.split()))])
        arrays[f"{name}.ids"] = ids[0]
        for speaker in range(max(config.speakers, 1)):
            voice = jnp.array([speaker]) if config.speakers else None
            inputs = (run.model, ids, jnp.array(ids.shape[1:]), jnp.zeros((*ids.shape, 2)), voice)
            arrays[f"{name}.{speaker}.durations"] = make_plan(*inputs, SLOW).durations[0]
            plan = make_plan(*inputs, 1.0)
            noise = jnp.zeros((1, int(plan.frame_lengths[0]), config.latent_channels))
            arrays[f"{name}.{speaker}"] = speak(run.model, plan, noise, voice).audio[0]
    np.savez(folder / "ours.npz", **arrays)
    texts = {name: characters(symbols.split()) for name, symbols in SYMBOLS.items()}
    (folder / "texts.json").write_text(json.dumps(texts), encoding="utf-8")


def check(folder: Path) -> None:
    """Compares what `transformers` makes of every voice in `folder` with ours; AssertionError where it differs."""
    for path in sorted(folder.glob("*/ours.npz")):
        worst, level = _check_voice(path.parent)
        print(f"{path.parent.name}: largest difference of samples {worst:.1e}, standard deviation {level:.3f} or more")


def _check_voice(folder: Path) -> tuple[float, float]:
    import torch
    from transformers import AutoTokenizer, VitsModel

    model, loading = VitsModel.from_pretrained(folder / "model", output_loading_info=True)
    assert not any(loading.values()), loading
    assert (model.noise_scale, model.noise_scale_duration, model.speaking_rate) == (0.667, 0.8, 1.0)
    model.noise_scale = model.noise_scale_duration = 0.0
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    texts = json.loads((folder / "texts.json").read_text(encoding="utf-8"))
    with np.load(folder / "ours.npz", allow_pickle=False) as arrays:
        ours = dict(arrays)
    log_durations = []
    model.duration_predictor.register_forward_hook(lambda _module, _inputs, output: log_durations.append(output))
    worst, level = 0.0, 1.0
    for name, text in texts.items():
        inputs = tokenizer(text, return_tensors="pt")
        assert inputs["input_ids"][0].tolist() == ours[f"{name}.ids"].tolist()
        for speaker in range(model.config.num_speakers):
            with torch.no_grad():
                audio = model(**inputs, speaker_id=speaker).waveform[0].numpy()
            durations = np.ceil(SLOW * np.exp(log_durations.pop()[0, 0].numpy()))
            np.testing.assert_allclose(durations, ours[f"{name}.{speaker}.durations"], rtol=1e-4, atol=1)
            expected = ours[f"{name}.{speaker}"]
            assert audio.shape == expected.shape, (name, speaker, audio.shape, expected.shape)
            worst = max(worst, float(np.abs(audio - expected).max()))
            level = min(level, float(np.std(expected)))
    # Near silence would hide mistakes.
    assert level > 0.005, level
    assert worst < TOLERANCE, worst
    return worst, level


def record(folder: Path) -> None:
    """Prints the names and shapes of the tensors that `transformers` expects for the voices in `folder`."""
    from transformers import VitsConfig, VitsModel

    voices = []
    for path in sorted(folder.glob("*/model/config.json")):
        tensors = sorted(VitsModel(VitsConfig.from_pretrained(path)).state_dict().items())
        shapes = json.dumps({name: list(tensor.shape) for name, tensor in tensors})
        voices.append(f"{json.dumps(path.parents[1].name)}: {shapes}")
    print("{", ",\n".join(voices), "}", sep="\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["write", "check", "record"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--published", action="store_true")
    arguments = parser.parse_args()
    match arguments.what:
        case "write":
            write(arguments.folder, published=arguments.published)
        case "check":
            check(arguments.folder)
        case "record":
            record(arguments.folder)
