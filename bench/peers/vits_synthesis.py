"""Real-time factor of speech against PyTorch's VitsModel, both of the published sizes with random weights, float32.

`python bench/peers/vits_synthesis.py [--torch PYTHON] [--rounds N] [--decoder KIND | --recipe NAME]` prints JSON.
PYTHON is an interpreter with torch and transformers, that of `make peers` if it is there; without one only our side is
timed. The sides are two processes that speak in turns, one waiting while the other computes, so that load from outside
meets both. Each speaks the same sentences, one by one, from symbols to waveform, after two times that count as warm-up
(and, on our side, compile). So that both make the same frames, the last layer of the duration predictor is set to a
duration of one, which is then stretched to FRAMES_PER_SYMBOL; the predictor itself runs in full. Our figures hold the
padding to the sizes of compiled programs.
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench import turns

# Symbols without blanks: from a short sentence to a long one of the corpora.
SENTENCES = (17, 52, 83)
FRAMES_PER_SYMBOL = 3
# Beyond it, durations are the same whatever the noise.
FLAT_LOG_SCALE = 50.0
HOP, RATE_HZ = 256, 22_050
# arXiv 2203.02395 and 2210.15975, for a hop of 256.
ISTFT_SIZES = {
    "hifigan": {},
    "istft": {"upsample_rates": (8, 8), "upsample_kernels": (16, 16)},
    "mb_istft": {"upsample_rates": (4, 4), "upsample_kernels": (16, 16), "subbands": 4},
    "ms_istft": {"upsample_rates": (4, 4), "upsample_kernels": (16, 16), "subbands": 4},
}


def ours(decoder: str, recipe: str) -> tuple[turns.Work, dict[str, Any]]:
    """Speaks all sentences by `infer.synthesis`."""
    facts = turns.jax_versions()
    import jax
    import jax.numpy as jnp

    from hayakuchi.config.vits import VitsConfig, VitsRecipe
    from hayakuchi.data.speech_shards import SpeechInfo
    from hayakuchi.infer.speak_options import SpeakOptions
    from hayakuchi.infer.synthesis import Utterance, synthesize
    from hayakuchi.infer.voice import VoiceRun
    from hayakuchi.models.vits.model import Vits
    from hayakuchi.recipes import find_recipe
    from hayakuchi.speech.symbols import INVENTORY

    chosen = find_recipe(recipe) if recipe else VitsRecipe(model=VitsConfig(decoder=decoder, **ISTFT_SIZES[decoder]))
    model = Vits(chosen.model, jax.random.key(0))
    if chosen.model.stochastic_durations:
        model.durations.flows.log_scale[...] = jnp.full(2, FLAT_LOG_SCALE)
    else:
        model.durations.leave.kernel[...] = jnp.zeros_like(model.durations.leave.kernel[...])
        model.durations.leave.bias[...] = jnp.zeros_like(model.durations.leave.bias[...])
    audio = chosen.model.audio
    run = VoiceRun(model, chosen, SpeechInfo(audio.sample_rate_hz, ("",), INVENTORY, {}, {}), 0)
    options = SpeakOptions(speed=1 / FRAMES_PER_SYMBOL)

    def speak(_: str) -> dict[str, float]:
        samples = 0
        for number, symbols in enumerate(SENTENCES):
            [made] = synthesize(run, [Utterance([1] * symbols, number)], 0, options)
            assert len(made) == (2 * symbols + 1) * FRAMES_PER_SYMBOL * audio.hop_samples
            samples += len(made)
        return {"audio_seconds": samples / audio.sample_rate_hz}

    return speak, facts


def theirs() -> tuple[turns.Work, dict[str, Any]]:
    """Speaks all sentences by transformers' VitsModel."""
    facts = turns.torch_versions()
    import torch
    from transformers import VitsConfig, VitsModel

    model = VitsModel(VitsConfig(sampling_rate=RATE_HZ)).eval()
    model.speaking_rate = 1 / FRAMES_PER_SYMBOL
    with torch.no_grad():
        model.duration_predictor.flows[0].log_scale.fill_(FLAT_LOG_SCALE)

    def speak(_: str) -> dict[str, float]:
        samples = 0
        with torch.inference_mode():
            for symbols in SENTENCES:
                made = model(torch.ones((1, 2 * symbols + 1), dtype=torch.long)).waveform
                assert made.shape == (1, (2 * symbols + 1) * FRAMES_PER_SYMBOL * HOP)
                samples += made.shape[1]
        return {"audio_seconds": samples / RATE_HZ}

    return speak, facts


def main() -> None:
    parser = turns.parser(__doc__, rounds=5)
    parser.add_argument("--decoder", default="hifigan", choices=ISTFT_SIZES)
    parser.add_argument("--recipe", default="", help="sizes of our side, in place of the published ones")
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.recipe = "vits-nano"  # theirs is small enough as it is
    if arguments.side:
        made = theirs() if arguments.side == "pytorch" else ours(arguments.decoder, arguments.recipe)
        turns.serve(*made)
        return

    # One after the other, so that warming up disturbs no one.
    sides = {
        name: turns.Side(
            python, "--side", name, environment=turns.allocator(arguments.malloc, ours=name == "ours")
        ).wait()
        for name, python in (("ours", sys.executable), ("pytorch", arguments.torch))
        if python
    }
    rounds = turns.in_turns(sides, arguments.rounds)[""]
    # Our sample rate may be another with --recipe, so the ratio is that of the factors.
    factors = {name: [one[name]["seconds"] / one[name]["told"]["audio_seconds"] for one in rounds] for name in sides}
    sizes = arguments.recipe or arguments.decoder
    ratios = {}
    if arguments.torch:
        ratios["ours / PyTorch, real-time factor"] = turns.summary(
            mine / other for mine, other in zip(factors["ours"], factors["pytorch"], strict=True)
        )
    result = {
        "case": "vits_synthesis",
        "sizes": sizes,
        "malloc": arguments.malloc,
        "rounds": arguments.rounds,
        "ratios": ratios,
        "real_time_factor": {name: turns.summary(values, 4) for name, values in factors.items()},
        "warm_up_seconds": {name: round(side.warm_up_seconds, 1) for name, side in sides.items()},
        "peak_megabytes": turns.peak_megabytes(rounds),
        "versions": turns.versions(sides.values()),
        "machine": turns.machine(),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
