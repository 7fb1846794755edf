"""Records what `transformers`' CTRLLMHeadModel computes, as `tests/golden/ctrl_*.npz`.

Needs the extra `parity` (PyTorch), which neither the package nor its default tests need. Run from the repository:

    pip install 'hayakuchi[parity]'
    python tests/parity/record_ctrl.py

Recorded with PyTorch 2.13.0 (CPU) and transformers 5.24.0. `test_ctrl_parity.py` reads the arrays.
"""

import json
from pathlib import Path

import numpy as np
import torch
from transformers import CTRLConfig, CTRLLMHeadModel

GOLDEN = Path(__file__).parents[1] / "golden"
# The second is wider than its feed-forward layer and has one head: sizes that are mixed up do not fit both.
SIZES = {
    "ctrl_a": {"vocab_size": 97, "n_positions": 20, "n_embd": 24, "dff": 56, "n_layer": 3, "n_head": 3},
    "ctrl_b": {"vocab_size": 41, "n_positions": 33, "n_embd": 28, "dff": 20, "n_layer": 2, "n_head": 1},
}
BATCH = 2


def record(name: str, sizes: dict[str, int]) -> None:
    torch.manual_seed(1909_05858)
    config = CTRLConfig(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_implementation="eager")
    model = CTRLLMHeadModel(config).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            # HF starts biases at 0 and LayerNorm weights at 1, which would hide a mistake in them; small weights would
            # hide one in the attention.
            mean = 1.0 if "layernorm" in key and key.endswith("weight") else 0.0
            parameter.normal_(mean, 0.4 if parameter.ndim == 2 else 0.3)
    tokens = torch.randint(0, config.vocab_size, (BATCH, config.n_positions))
    logits = model(tokens).logits
    # The loss of every position but the last, whose target is outside the window.
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")
    loss.backward()
    arrays = {
        "config": np.array(json.dumps(sizes)),
        "tokens": tokens.numpy().astype(np.int32),
        "logits": logits.detach().numpy(),
        "loss": loss.detach().numpy(),
    }
    for key, parameter in model.named_parameters():
        arrays[f"weight/{key}"] = parameter.detach().numpy()
        arrays[f"gradient/{key}"] = parameter.grad.numpy()
    np.savez_compressed(GOLDEN / f"{name}.npz", **arrays)


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name, sizes in SIZES.items():
        record(name, sizes)
