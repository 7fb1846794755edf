"""An exported model in `transformers` against ours: loading, logits, loss, greedy text, tokenizer.

The two sides may live in two environments, since PyTorch is no dependency of ours:

    python tests/parity/check_hf_export.py write /tmp/hf                   # where hayakuchi is installed
    python tests/parity/check_hf_export.py check /tmp/hf   # in the environment of the extra `parity`

`test_hf_model.py` does both at once where everything is installed.
"""

import argparse
import json
from pathlib import Path

import numpy as np

LENGTH = 48
PROMPTS = {"昔々、": "story", "　こんにちは。\n": "letter", "𠮟る  <eos>": "story", "": "letter"}


# Shared layers are repeated there, a factorised embedding becomes two tables.
KINDS = {"plain": {}, "lighter": {"layers": 4, "sharing": "all", "sharing_groups": 2, "embedding_width": 12}}


def write(folder: Path, kind: str = "plain") -> None:
    """Exports a small model with random weights to `folder/model` and what ours makes of it to `folder/ours.npz`."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    from hayakuchi.config import CtrlConfig, CtrlRecipe
    from hayakuchi.data.shards import Counts, DatasetInfo
    from hayakuchi.export.hf import export_hf
    from hayakuchi.infer.generate import generate
    from hayakuchi.infer.run import TextRun
    from hayakuchi.infer.sampling import SamplingConfig
    from hayakuchi.models.ctrl import Ctrl
    from hayakuchi.text.codes import CodeBook
    from hayakuchi.text.tokenizer import Tokenizer, train_tokenizer

    folder.mkdir(parents=True, exist_ok=True)
    corpus = Path(__file__).parents[2] / "src/hayakuchi/corpora/embedded"
    texts = [path.read_text(encoding="utf-8") for path in sorted(corpus.glob("*.txt"))]
    train_tokenizer(texts, texts[:1], folder / "tokenizer.model", vocabulary_size=2_500)
    tokenizer = Tokenizer.load(folder / "tokenizer.model")
    sizes = CtrlConfig(
        tokenizer.vocabulary_size, LENGTH, **{"layers": 3, "width": 32, "heads": 4, "feed_forward": 48, **KINDS[kind]}
    )
    graph, parameters = nnx.split(Ctrl(sizes, jax.random.key(0)), nnx.Param)
    # Initial weights are so small, and biases 0, that mistakes would hide.
    leaves, structure = jax.tree.flatten(parameters)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    leaves = [leaf + 0.5 * jax.random.normal(key, leaf.shape) for leaf, key in zip(leaves, keys, strict=True)]
    model = nnx.merge(graph, jax.tree.unflatten(structure, leaves))
    codes = CodeBook.from_names(["story", "letter"])
    counts = {"train": {"story": Counts(1, 1, 1, 1)}, "heldout": {}}
    info = DatasetInfo(codes, tokenizer.sha256, tokenizer.vocabulary_size, "none", (), counts)
    run = TextRun(model, CtrlRecipe(model=sizes), tokenizer, info, 0)
    export_hf(run, folder / "model")

    # Without the ban a random model repeats one token for ever.
    greedy = SamplingConfig(temperature=0.0, top_p=1.0, penalty=1.0, ban_ngram=1)
    arrays = {}
    for index, (prompt, code) in enumerate(PROMPTS.items()):
        ids = jnp.array([[tokenizer.code_id(codes.slot(code)), *tokenizer.encode(prompt)]])
        positions = jnp.arange(ids.shape[1])[None]
        [sample] = generate(run, prompt, code, max_tokens=LENGTH - ids.shape[1], sampling=greedy)
        arrays[f"ids{index}"] = ids[0]
        arrays[f"logits{index}"] = model.logits(model.hidden(ids, jnp.ones_like(ids), positions))[0]
        arrays[f"greedy{index}"] = np.array(sample.tokens)
    np.savez(folder / "ours.npz", **arrays)
    expected = {code: tokenizer.code_id(slot) for code, slot in codes.slots.items()}
    (folder / "codes.json").write_text(json.dumps(expected), encoding="utf-8")


def check(folder: Path) -> None:
    """Compares what `transformers` makes of `folder/model` with `folder/ours.npz`; AssertionError where it differs."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, loading = AutoModelForCausalLM.from_pretrained(folder / "model", output_loading_info=True)
    assert not any(loading.values()), loading
    assert type(model).__name__ == "CTRLLMHeadModel"
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    for code, index in json.loads((folder / "codes.json").read_text(encoding="utf-8")).items():
        assert tokenizer(f"<|{code}|>")["input_ids"] == [index]
    with np.load(folder / "ours.npz", allow_pickle=False) as arrays:
        ours = dict(arrays)
    greedy = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None, "no_repeat_ngram_size": 1}
    worst = 0.0
    for index, prompt in enumerate(PROMPTS):
        ids, expected = ours[f"ids{index}"].tolist(), ours[f"greedy{index}"].tolist()
        assert tokenizer(prompt, split_special_tokens=True)["input_ids"] == ids[1:], prompt
        inputs = torch.tensor([ids])
        with torch.no_grad():
            difference = np.abs(model(inputs).logits[0].numpy() - ours[f"logits{index}"]).max()
        worst = max(worst, float(difference))
        found = model.generate(inputs, **greedy)[0, len(ids) :].tolist()
        assert found[: len(expected)] == expected, (prompt, found, expected)
        assert found[len(expected) :] in ([], [model.config.eos_token_id]), (prompt, found, expected)
    assert worst < 1e-4, worst
    print(f"largest difference of logits {worst:.1e}; greedy text equal for {len(PROMPTS)} prompts")
    print(*(tokenizer.decode(ours[f"greedy{index}"]) for index in range(len(PROMPTS))), sep="\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["write", "check"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kind", choices=list(KINDS), default="plain", help="the model to write")
    arguments = parser.parse_args()
    if arguments.what == "write":
        write(arguments.folder, arguments.kind)
    else:
        check(arguments.folder)
