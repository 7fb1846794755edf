"""`generate` against that of transformers' CTRLLMHeadModel: ctrl-base of equal random weights, float32.

`python bench/peers/generate.py [--torch PYTHON] [--rounds N] [--batches 1 8] [--tokens N]` prints JSON. The sides are
two processes that generate in strict turns. Both continue a prompt of 16 tokens in as many samples as the batch says,
with their key-value caches, and draw with temperature, top-p and a repetition penalty, all as `hayakuchi generate` has
them by default; transformers knows the penalty in its "hf" form only. A ratio is our tokens a second over theirs.

Without a draw and a penalty, both must choose the same tokens, else nothing is printed: so both run the same model.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench import turns

PROMPT_TOKENS, GREEDY_TOKENS = 16, 32
# Only the first is a control code, as in a run; the others are plain pieces.
CODE_ID, FIRST_PIECE_ID, BANNED_IDS = 3, 100, (0, 1, *range(3, 67))
BASE = {"vocabulary": 32_000, "length": 256, "layers": 12, "width": 768, "heads": 12, "feed_forward": 3_072}
TINY = {"vocabulary": 500, "length": 64, "layers": 2, "width": 64, "heads": 4, "feed_forward": 128}
GREEDY = "greedy"


def prompt() -> list[int]:
    return [CODE_ID, *range(FIRST_PIECE_ID, FIRST_PIECE_ID + PROMPT_TOKENS - 1)]


def ours(arguments: argparse.Namespace, sizes: dict[str, int]) -> tuple[turns.Work, dict[str, Any]]:
    """Tokens as `hayakuchi generate` draws them, up to their text."""
    facts = turns.jax_versions()
    import numpy as np
    from bench.random_text_run import make_run
    from flax import nnx

    from hayakuchi.config import CtrlConfig
    from hayakuchi.export.hf_weights import to_hf
    from hayakuchi.infer.decoding import decoded_blocks
    from hayakuchi.infer.sampling import SamplingConfig

    config = CtrlConfig(**{"vocabulary_size" if name == "vocabulary" else name: n for name, n in sizes.items()})
    run = make_run(config)
    np.savez(arguments.weights, **to_hf(nnx.to_pure_dict(nnx.state(run.model, nnx.Param)), config))

    def draw(sampling: Any, tokens: int, rows: int) -> Any:
        drawn = np.concatenate(list(decoded_blocks(run, prompt(), sampling, max_tokens=tokens, rows=rows, seed=0)), 1)
        assert drawn.shape == (rows, tokens)
        return drawn

    def generate(rows: str) -> dict[str, float]:
        return {"tokens": draw(SamplingConfig(), arguments.tokens, int(rows)).size}

    greedy = draw(SamplingConfig(temperature=0, penalty=1), GREEDY_TOKENS, 1)
    return generate, {**facts, GREEDY: greedy[0].tolist()}


def theirs(arguments: argparse.Namespace, sizes: dict[str, int]) -> tuple[turns.Work, dict[str, Any]]:
    """The same by transformers."""
    facts = turns.torch_versions()
    import numpy as np
    import torch
    import transformers

    config = transformers.CTRLConfig(
        vocab_size=sizes["vocabulary"],
        n_positions=sizes["length"],
        n_embd=sizes["width"],
        dff=sizes["feed_forward"],
        n_layer=sizes["layers"],
        n_head=sizes["heads"],
    )
    model = transformers.CTRLLMHeadModel(config).eval()
    with np.load(arguments.weights) as tensors:
        _, unexpected = model.load_state_dict({k: torch.from_numpy(v) for k, v in tensors.items()}, strict=False)
    assert not unexpected, unexpected

    def draw(tokens: int, rows: int, **options: Any) -> Any:
        ids = torch.tensor([prompt()] * rows)
        # All positions of the prompt count; there is no <eos>, so that all the tokens are drawn.
        settings = transformers.GenerationConfig(
            max_new_tokens=tokens, use_cache=True, pad_token_id=0, suppress_tokens=list(BANNED_IDS), **options
        )
        with torch.inference_mode():
            drawn = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
        assert drawn.shape == (rows, PROMPT_TOKENS + tokens)
        return drawn[:, PROMPT_TOKENS:]

    def generate(rows: str) -> dict[str, float]:
        # The defaults of hayakuchi.infer.sampling.SamplingConfig.
        options = {"do_sample": True, "temperature": 0.8, "top_k": 0, "top_p": 0.95, "repetition_penalty": 1.2}
        return {"tokens": draw(arguments.tokens, int(rows), **options).numel()}

    greedy = draw(GREEDY_TOKENS, 1, do_sample=False)
    return generate, {**facts, GREEDY: greedy[0].tolist()}


def main() -> None:
    parser = turns.parser(__doc__, rounds=5)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8], metavar="N", help="samples at once")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--weights", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sizes = TINY if arguments.tiny else BASE
    arguments.tokens = min(arguments.tokens, sizes["length"] - PROMPT_TOKENS)
    batches = [str(rows) for rows in arguments.batches]
    if arguments.side:
        made = (ours if arguments.side == "ours" else theirs)(arguments, sizes)
        turns.serve(*made, warm_ups=batches)
        return

    sides: dict[str, turns.Side] = {}
    with tempfile.TemporaryDirectory() as folder:
        # Ours first, since it writes the weights.
        for name, python in (("ours", sys.executable), ("transformers", arguments.torch)):
            if python:
                words = ("--side", name, "--weights", str(Path(folder) / "weights.npz"))
                environment = turns.allocator(arguments.malloc, ours=name == "ours")
                sides[name] = turns.Side(python, *words, environment=environment).wait()
    chosen = {name: side.facts.pop(GREEDY) for name, side in sides.items()}
    if len({tuple(tokens) for tokens in chosen.values()}) > 1:
        sys.exit(f"not the same model: the best tokens are {chosen}")
    found = turns.in_turns(sides, arguments.rounds, batches)
    speeds = {
        rows: {name: [one[name]["told"]["tokens"] / one[name]["seconds"] for one in rounds] for name in sides}
        for rows, rounds in found.items()
    }
    ratios = {}
    if arguments.torch:
        for rows, by_side in speeds.items():
            pairs = zip(by_side["ours"], by_side["transformers"], strict=True)
            ratios[f"tokens/s, ours / transformers, batch {rows}"] = turns.summary(a / b for a, b in pairs)
    result = {
        "case": "generate",
        **sizes,
        "tokens": arguments.tokens,
        "malloc": arguments.malloc,
        "tiny": arguments.tiny,
        "rounds": arguments.rounds,
        "ratios": ratios,
        "tokens_per_second": {
            rows: {name: turns.summary(values, 1) for name, values in by_side.items()}
            for rows, by_side in speeds.items()
        },
        "peak_megabytes": turns.peak_megabytes([one for rounds in found.values() for one in rounds]),
        "versions": turns.versions(sides.values()),
        "sides": {name: side.facts for name, side in sides.items()},
        "machine": turns.machine(),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
