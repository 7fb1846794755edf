"""`export --format hf`: a directory that `transformers` loads offline, without code of ours.

`AutoModelForCausalLM` finds a CTRLLMHeadModel there and `AutoTokenizer` a fast tokenizer with the ids of ours.
"""

from pathlib import Path
from typing import Any

from flax import nnx

from hayakuchi.config import CtrlConfig
from hayakuchi.directories import new_directory
from hayakuchi.export.files import folder_bytes, write_json, write_safetensors
from hayakuchi.export.hf_tokenizer import fast_tokenizer, special_names, token_names
from hayakuchi.export.hf_weights import to_hf
from hayakuchi.infer.run import TextRun
from hayakuchi.infer.sampling import SamplingConfig
from hayakuchi.models.ctrl_blocks import LAYER_NORM_EPSILON
from hayakuchi.text.codes import CODE_SLOTS
from hayakuchi.text.tokenizer import EOS_ID, FIRST_CODE_ID, PAD_ID, UNKNOWN_ID

_IDS = {"bos_token_id": FIRST_CODE_ID, "eos_token_id": EOS_ID, "pad_token_id": PAD_ID}


def export_hf(run: TextRun, out: Path) -> dict[str, Any]:
    """Writes a trained model as a `transformers` model directory.

    Args:
      run: the model with its tokenizer and codes.
      out: where; must not exist, or be an empty directory.

    Returns:
      What was written: path, parameters, bytes, names of the codes' tokens.

    Raises:
      UserError: `out` is taken or cannot be written.
      MissingExtraError: `safetensors` or `tokenizers` is not installed.
    """
    with new_directory(out) as folder:
        parameters = _write_model(run, folder)
        names = _write_tokenizer(run, folder)
        (folder / "README.md").write_text(_model_card(run, parameters, names), encoding="utf-8")
        size = folder_bytes(folder)
    codes = {name: names[FIRST_CODE_ID + run.codes.slots[name]] for name in run.codes.names}
    return {"out": str(out), "format": "hf", "step": run.step, "parameters": parameters, "bytes": size, "codes": codes}


def model_config(config: CtrlConfig) -> dict[str, Any]:
    """`config.json` of a CTRLLMHeadModel of these sizes."""
    return {
        "architectures": ["CTRLLMHeadModel"],
        "model_type": "ctrl",
        "dtype": "float32",
        "vocab_size": config.vocabulary_size,
        "n_positions": config.length,
        "n_embd": config.width,
        "dff": config.feed_forward,
        "n_layer": config.layers,
        "n_head": config.heads,
        "embd_pdrop": config.dropout,
        "resid_pdrop": config.dropout,
        "layer_norm_epsilon": LAYER_NORM_EPSILON,
        "tie_word_embeddings": config.embedding_width == 0,
        "use_cache": True,
        **_IDS,
    }


def _write_model(run: TextRun, folder: Path) -> int:
    """Configuration, generation settings and weights; returns the number of parameters."""
    config = run.recipe.model
    tensors = to_hf(nnx.to_pure_dict(nnx.state(run.model, nnx.Param)), config)
    write_json(folder / "config.json", model_config(config))
    write_safetensors(folder, tensors)
    write_json(folder / "generation_config.json", _generation_config(config.length))
    return sum(tensor.size for tensor in tensors.values())


def _generation_config(length: int) -> dict[str, Any]:
    """The defaults of `generate` of ours, but for the penalty: that of `transformers` is another one."""
    sampling = SamplingConfig()
    return {
        "do_sample": True,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "max_length": length,
        # Padding, <unk> and the control codes are no text: they are never a target in training.
        "suppress_tokens": [PAD_ID, UNKNOWN_ID, *range(FIRST_CODE_ID, FIRST_CODE_ID + CODE_SLOTS)],
        **_IDS,
    }


def _write_tokenizer(run: TextRun, folder: Path) -> list[str]:
    """The tokenizer; returns the names of its ids."""
    fast = fast_tokenizer(run.tokenizer, run.codes)
    names = token_names(run.tokenizer, run.codes)
    # `fast.save` would make a bare Exception of a full disk.
    (folder / "tokenizer.json").write_text(fast.to_str(pretty=True), encoding="utf-8")
    settings = {
        # Without this key AutoTokenizer looks for CTRL's own tokenizer, which splits at spaces.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": run.recipe.model.length,
        "clean_up_tokenization_spaces": False,
        "padding_side": "left",
        **special_names(names),
        "additional_special_tokens": names[FIRST_CODE_ID + 1 : FIRST_CODE_ID + CODE_SLOTS],
    }
    write_json(folder / "tokenizer_config.json", settings)
    return names


def _model_card(run: TextRun, parameters: int, names: list[str]) -> str:
    config, info = run.recipe.model, run.info
    code = names[FIRST_CODE_ID + min(info.codes.slots.values(), default=0)]
    rows = "\n".join(
        f"| `<\\|{name}\\|>` | {counts.documents:,} | {counts.characters:,} |"
        for name in info.codes.names
        if (counts := info.counts["train"].get(name))
    )
    return f"""\
---
language: ja
library_name: transformers
pipeline_tag: text-generation
tags: [ctrl]
license: other
---

# {run.recipe.name}

A Japanese conditional language model (CTRL, arXiv 1909.05858) of {parameters:,} parameters: {config.layers} layers
of width {config.width}, {config.vocabulary_size:,} tokens, windows of {config.length} tokens. Hayakuchi trained it from
scratch in {run.step:,} steps.

## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("PATH")
model = AutoModelForCausalLM.from_pretrained("PATH")
inputs = tokenizer("{code}", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs)[0], skip_special_tokens=True))
```

Every text begins with a control code, and text may follow it: `"{code}昔々"`. `{names[FIRST_CODE_ID]}` is the
unconditional code. A text and its continuation hold {config.length} tokens at most.

The training text was normalised under the policy "{info.normalisation}" of `hayakuchi.text.normalise`; this tokenizer
takes text as it is, so normalise a prompt likewise.

## Training data

| code | documents | characters |
| --- | --- | --- |
{rows}

## Licence

The weights come from your data: the licence of the model, and whether it may be passed on, follow from the terms of
the texts it was trained on. Replace this section, and `license: other` above, before you publish it.
"""
