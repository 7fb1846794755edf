"""Real-time factor of speech against PyTorch's VitsModel, both of the published sizes with random weights, float32.

`python bench/cases/speak_rtf.py --torch PYTHON [--rounds N] [--decoder KIND | --recipe NAME]` prints JSON. PYTHON is an
interpreter with torch and transformers; without it only our side is timed. The sides are two processes that speak in
turns, one waiting while the other computes, so that load from outside meets both. Each speaks the same sentences, one
by one, from symbols to waveform, after a first time that counts as warm-up (and, on our side, compiles). So that both
make the same frames, the last layer of the duration predictor is set to a duration of one, which is then stretched to
FRAMES_PER_SYMBOL; the predictor itself runs in full. Our figures hold the padding to the sizes of compiled programs.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

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


def ours(decoder: str, recipe: str) -> Callable[[], float]:
    """Speaks all sentences by `infer.synthesis`."""
    import jax
    import jax.numpy as jnp

    from hayakuchi.config.vits import VitsConfig, VitsRecipe
    from hayakuchi.data.speech_shards import SpeechInfo
    from hayakuchi.infer.synthesis import SpeakOptions, Utterance, synthesize
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

    def speak() -> float:
        samples = 0
        for number, symbols in enumerate(SENTENCES):
            [made] = synthesize(run, [Utterance([1] * symbols, number)], 0, options)
            assert len(made) == (2 * symbols + 1) * FRAMES_PER_SYMBOL * audio.hop_samples
            samples += len(made)
        return samples / audio.sample_rate_hz

    return speak


def theirs() -> Callable[[], float]:
    """Speaks all sentences by transformers' VitsModel."""
    import torch
    from transformers import VitsConfig, VitsModel

    model = VitsModel(VitsConfig(sampling_rate=RATE_HZ)).eval()
    model.speaking_rate = 1 / FRAMES_PER_SYMBOL
    with torch.no_grad():
        model.duration_predictor.flows[0].log_scale.fill_(FLAT_LOG_SCALE)

    def speak() -> float:
        samples = 0
        with torch.inference_mode():
            for symbols in SENTENCES:
                made = model(torch.ones((1, 2 * symbols + 1), dtype=torch.long)).waveform
                assert made.shape == (1, (2 * symbols + 1) * FRAMES_PER_SYMBOL * HOP)
                samples += made.shape[1]
        return samples / RATE_HZ

    return speak


def serve(speak: Callable[[], float]) -> None:
    """Speaks once for every line of standard input and answers with the real-time factor."""
    speak()
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        seconds = speak()
        print((time.perf_counter() - start) / seconds, flush=True)


class Side:
    """One of the processes."""

    def __init__(self, python: str, *words: str) -> None:
        command = [python, __file__, *words]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603 - this very program
        started = time.perf_counter()
        if self._answer() != "ready":
            sys.exit(f"{python}: the process ended early; see above")
        self.warm_up_seconds = time.perf_counter() - started

    def measure(self) -> float:
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> str:
        return self._process.stdout.readline().strip()


def summary(values: list[float]) -> dict[str, float]:
    found = {"median": statistics.median(values), "least": min(values), "most": max(values)}
    return {name: round(value, 4) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", default="", metavar="PYTHON", help="interpreter with torch and transformers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--decoder", default="hifigan", choices=ISTFT_SIZES)
    parser.add_argument("--recipe", default="", help="sizes of our side, in place of the published ones")
    parser.add_argument("--side", choices=("ours", "theirs"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        serve(theirs() if arguments.side == "theirs" else ours(arguments.decoder, arguments.recipe))
        return

    # One after the other, so that warming up disturbs no one.
    sizes = ["--decoder", arguments.decoder, "--recipe", arguments.recipe]
    sides = {"ours": Side(sys.executable, "--side", "ours", *sizes)}
    if arguments.torch:
        sides["pytorch"] = Side(arguments.torch, "--side", "theirs")
    factors: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(arguments.rounds):
        for name, side in sides.items():
            factors[name].append(side.measure())
    for side in sides.values():
        side.close()
    result = {
        "case": "speak_rtf",
        "sizes": arguments.recipe or arguments.decoder,
        "rounds": arguments.rounds,
        "real_time_factor": {name: summary(values) for name, values in factors.items()},
        "warm_up_seconds": {name: round(side.warm_up_seconds, 1) for name, side in sides.items()},
        "processors": os.cpu_count(),
        "load": os.getloadavg(),
        "python": platform.python_version(),
    }
    if arguments.torch:
        result["ratio"] = summary([a / b for a, b in zip(factors["ours"], factors["pytorch"], strict=True)])
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
