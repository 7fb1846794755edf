"""`evaluate` for text: how well a model predicts the held-out documents, in all and per control code.

Every token of every held-out document is predicted once, <eos> included; the first from the control code alone, the
others from the code and what stands before them in the document, as far as one window holds it.
"""

import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding
from jaxtyping import Array

from hayakuchi import progress
from hayakuchi.data.batch import Batch
from hayakuchi.data.batches import HeldoutBatches
from hayakuchi.data.shards import DatasetInfo, TokenShards, open_split
from hayakuchi.errors import UserError
from hayakuchi.evaluate import charts
from hayakuchi.evaluate.report_folder import report_folder
from hayakuchi.infer.run import TextRun
from hayakuchi.models.sharding import BATCH, make_mesh
from hayakuchi.text.codes import CODE_SLOTS
from hayakuchi.text.tokenizer import FIRST_CODE_ID
from hayakuchi.train.ctrl_task import targets

# exp of more is no float any more, and a model that bad is none.
_LARGEST_LOSS = 700


def evaluate_text(run: TextRun, data: Path, *, batch: int = 32) -> dict[str, Any]:
    """Measures a model on the held-out split of a data set.

    Args:
      run: the model.
      data: data set directory; another than the model was trained on if need be, but of the same tokenizer and without
        codes that the model does not know.
      batch: windows computed at once; the result does not depend on it.

    Returns:
      `loss` (nats per token), `perplexity`, `bits_per_character`, `bits_per_byte` and the sizes they rest on, for the
      whole split and in `codes` for each control code that it has.

    Raises:
      UserError: a data set of another tokenizer, with an unknown code, damaged or without held-out text; `batch` below
        1; a model that is broken.
    """
    if batch < 1:
        raise UserError(f"batch={batch} must be 1 or more")
    shards = _heldout(run, data)
    nats = _nats(run, shards, batch)
    documents = shards.documents
    codes = {}
    for slot in np.unique(documents["code"]).tolist():
        name = run.codes.name(slot)
        codes[name] = _figures(nats[slot], documents[documents["code"] == slot], f"{data}: code {name!r}")
    whole = _figures(nats.sum(), documents, str(data))
    return {"step": run.step, "data": str(data), **whole, "codes": codes}


def write_text_report(report: dict[str, Any], out: Path) -> None:
    """Writes what `evaluate_text` returned as `report.json`, with a bar chart of the codes, `codes.png`.

    Raises:
      UserError: a file cannot be written.
    """
    with report_folder(out, report):
        values = {name: code["bits_per_character"] for name, code in report["codes"].items()}
        charts.save_bars(out / "codes.png", values, "bits per character")


def summary(report: dict[str, Any]) -> str:
    """What `evaluate_text` returned as a table of text."""
    lines = [" bits/char  bits/byte  perplexity  nats/token  documents      tokens  code"]
    for name, figures in {"(all)": report, **report["codes"]}.items():
        lines.append(
            f"{figures['bits_per_character']:10.4f} {figures['bits_per_byte']:10.4f} {figures['perplexity']:11.2f} "
            f"{figures['loss']:11.4f} {figures['documents']:10,} {figures['tokens']:11,}  {name or '(none)'}"
        )
    return "\n".join(lines)


def _heldout(run: TextRun, data: Path) -> TokenShards:
    """The held-out documents, their codes in the slots of the run: data sets may number the same names otherwise."""
    info = DatasetInfo.load(data / "dataset.json")
    if info.tokenizer_sha256 != run.info.tokenizer_sha256:
        raise UserError(
            f"{data}: its tokenizer is not that of the run; prepare the data set with --tokenizer and the run's"
            " tokenizer.model"
        )
    shards = open_split(data, "heldout")
    if not len(shards):
        raise UserError(f"{data}: has no held-out documents; prepare it from more text, or with a --heldout above 0")
    slots, places = np.unique(shards.documents["code"], return_inverse=True)
    ours = [run.codes.slot(info.codes.name(slot), str(data)) for slot in slots.tolist()]
    shards.documents["code"] = np.array(ours)[places]
    return shards


def _nats(run: TextRun, shards: TokenShards, batch: int) -> np.ndarray:
    """Sum of -log p of the tokens under each code, float64 [CODE_SLOTS]."""
    mesh = make_mesh()
    layout = NamedSharding(mesh, BATCH)
    graph, parameters = nnx.split(run.model, nnx.Param)

    @jax.jit
    def nats_of_windows(parameters: Any, windows: Batch) -> Array:
        model = nnx.merge(graph, parameters)
        labels, weights = targets(windows)
        hidden = model.hidden(windows.tokens, windows.segments, windows.positions)
        return jnp.sum(model.token_losses(hidden, labels) * weights, axis=1)

    sums = np.zeros(CODE_SLOTS)
    # Every device takes an equal share of the rows.
    batches = HeldoutBatches(shards, run.model.config.length, math.ceil(batch / mesh.size) * mesh.size)
    with progress.bar("evaluating", len(batches)) as bar:

        def add(windows: Batch, nats: Array) -> None:
            # All segments of a window have one code. A row of padding begins with <pad>; it has no loss to add.
            slots = np.maximum(windows.tokens[:, 0] - FIRST_CODE_ID, 0)
            np.add.at(sums, slots, np.asarray(nats, np.float64))
            bar.advance(1)

        running: list[tuple[Batch, Array]] = []
        for windows in batches:
            running.append((windows, nats_of_windows(parameters, jax.device_put(windows, layout))))
            # The device works on this batch while the one before is added up.
            if len(running) > 1:
                add(*running.pop(0))
        add(*running.pop())
    return sums


def _figures(nats: float, documents: np.ndarray, where: str) -> dict[str, Any]:
    """Averages and sizes of documents whose tokens have a -log p of `nats` in all."""
    sizes = {name: int(documents[name].sum(dtype=np.int64)) for name in ("tokens", "characters", "bytes")}
    loss, bits = float(nats) / sizes["tokens"], float(nats) / math.log(2)
    if not loss < _LARGEST_LOSS:  # true of NaN too
        raise UserError(f"{where}: the loss is {loss} nats a token; the model is broken, choose another checkpoint")
    return {
        "loss": loss,
        "perplexity": math.exp(loss),
        # A document can be nothing but <eos>.
        "bits_per_character": bits / max(sizes["characters"], 1),
        "bits_per_byte": bits / max(sizes["bytes"], 1),
        "documents": len(documents),
        **sizes,
    }
