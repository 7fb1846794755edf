"""The figures of `evaluate` against one document at a time, and what makes it refuse."""

import importlib.util
import json
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from hayakuchi.data.shards import Counts, DatasetInfo, ShardWriter
from hayakuchi.errors import MissingExtraError, UserError
from hayakuchi.evaluate.report_folder import make_report_folder
from hayakuchi.evaluate.text import evaluate_text, summary, write_text_report
from hayakuchi.models.ctrl import Ctrl
from hayakuchi.text.codes import CodeBook
from tiny_text_run import MODEL, SHA256, tiny_text_run

LENGTH = 16
# Shorter than a window, exactly full windows, several windows, and nothing but <eos>.
TEXTS = {
    "story": ["日月火水", "あいうえお" * 9, "です。", "", "土" * (LENGTH - 2), "金" * (2 * (LENGTH - 1) - 1)],
    "letter": ["東京、ました 𠮟\n", "か", "水" * LENGTH],
}
KEYS = ("loss", "perplexity", "bits_per_character", "bits_per_byte")


@pytest.fixture
def run():
    # Biases of 0, so that bytes and <eos> are as likely as the rest.
    return tiny_text_run(length=LENGTH, eos_bias=0.0, byte_bias=0.0)


def write_data(folder, run, texts, *, sha256=SHA256, codes=None):
    """A data set whose held-out split is `texts`, the codes taking turns."""
    book = codes or CodeBook.from_names(texts)
    counts = {name: Counts() for name in texts}
    with ShardWriter(folder / "heldout", run.tokenizer.vocabulary_size, shard_tokens=30) as writer:
        for index in range(max(map(len, texts.values()), default=0)):
            for name in texts:
                for text in texts[name][index : index + 1]:
                    ids = np.append(run.tokenizer.encode(text), run.tokenizer.eos_id)
                    writer.add(ids, characters=len(text), size=len(text.encode()), code=book.slot(name))
                    counts[name].add(len(ids), len(text), len(text.encode()))
    info = DatasetInfo(book, sha256, run.tokenizer.vocabulary_size, "nfkc", (), {"train": {}, "heldout": counts})
    info.save(folder / "dataset.json")
    (folder / "tokenizer.model").write_bytes(MODEL)
    return folder


@partial(jax.jit, static_argnames="graph")
def all_logits(graph, parameters, window):
    model = nnx.merge(graph, parameters)
    return model.logits(model.hidden(window, jnp.ones_like(window), jnp.arange(LENGTH)[None]))[0]


def document_nats(run, code, text):
    """-log p of a document under a code: no packing, no batch, all logits."""
    graph, parameters = nnx.split(run.model)
    ids = [*run.tokenizer.encode(text).tolist(), run.tokenizer.eos_id]
    nats = 0.0
    for start in range(0, len(ids), LENGTH - 1):
        piece = ids[start : start + LENGTH - 1]
        window = np.zeros((1, LENGTH), np.int32)
        window[0, : len(piece) + 1] = [run.tokenizer.code_id(run.codes.slot(code)), *piece]
        scores = np.asarray(all_logits(graph, parameters, window), np.float64)[: len(piece)]
        log_p = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        nats -= log_p[np.arange(len(piece)), piece].sum()
    return nats


def expected(run, texts):
    nats = sum(document_nats(run, code, text) for code, documents in texts.items() for text in documents)
    joint = [text for documents in texts.values() for text in documents]
    tokens = sum(len(run.tokenizer.encode(text)) + 1 for text in joint)
    characters = sum(map(len, joint))
    size = sum(len(text.encode()) for text in joint)
    return {
        "loss": nats / tokens,
        "perplexity": math.exp(nats / tokens),
        "bits_per_character": nats / math.log(2) / characters,
        "bits_per_byte": nats / math.log(2) / size,
        "documents": len(joint),
        "tokens": tokens,
        "characters": characters,
        "bytes": size,
    }


def test_equals_one_document_at_a_time(tmp_path, run):
    report = evaluate_text(run, write_data(tmp_path, run, TEXTS))
    assert {key: report[key] for key in expected(run, TEXTS)} == pytest.approx(expected(run, TEXTS), rel=1e-5)
    assert report["codes"].keys() == TEXTS.keys()
    for code, documents in TEXTS.items():
        assert report["codes"][code] == pytest.approx(expected(run, {code: documents}), rel=1e-5), code


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_the_batch_does_not_matter(tmp_path, run, batch):
    data = write_data(tmp_path, run, TEXTS)
    whole, report = evaluate_text(run, data), evaluate_text(run, data, batch=batch)
    assert whole.pop("codes")["letter"] == pytest.approx(report.pop("codes")["letter"], rel=1e-6)
    assert report.pop("data") == whole.pop("data")
    assert report == pytest.approx(whole, rel=1e-6)


def test_all_batches_share_one_trace(tmp_path, run, monkeypatch):
    traces = []
    hidden = Ctrl.hidden
    monkeypatch.setattr(Ctrl, "hidden", lambda *arguments: traces.append(1) or hidden(*arguments))
    evaluate_text(run, write_data(tmp_path, run, TEXTS), batch=2)
    assert len(traces) == 1


def test_a_uniform_model_has_the_loss_of_chance(tmp_path, run):
    run.model.norm.scale[...] = jnp.zeros_like(run.model.norm.scale[...])
    run.model.vocabulary_bias[...] = jnp.zeros_like(run.model.vocabulary_bias[...])
    report = evaluate_text(run, write_data(tmp_path, run, TEXTS))
    size = run.tokenizer.vocabulary_size
    assert report["loss"] == pytest.approx(math.log(size), rel=1e-6)
    assert report["perplexity"] == pytest.approx(size, rel=1e-5)
    assert report["bits_per_byte"] == pytest.approx(math.log2(size) * report["tokens"] / report["bytes"], rel=1e-6)


def test_codes_are_matched_by_name(tmp_path, run):
    # The run has "story" in slot 1 and "letter" in slot 3.
    one = evaluate_text(run, write_data(tmp_path / "one", run, TEXTS, codes=run.codes))
    other = evaluate_text(run, write_data(tmp_path / "other", run, TEXTS, codes=CodeBook({"letter": 1, "story": 40})))
    for key in KEYS:
        assert other["codes"]["story"][key] == pytest.approx(one["codes"]["story"][key], rel=1e-6)
        assert other["codes"]["letter"][key] == pytest.approx(one["codes"]["letter"][key], rel=1e-6)
    swapped = {"letter": TEXTS["story"], "story": TEXTS["letter"]}
    assert evaluate_text(run, write_data(tmp_path / "swapped", run, swapped))["loss"] != pytest.approx(one["loss"])


def test_report_and_chart(tmp_path):
    run = tiny_text_run(codes=("物語", "letter"), length=LENGTH)
    data = write_data(tmp_path / "data", run, {"物語": TEXTS["story"], "letter": TEXTS["letter"]})
    report, out = evaluate_text(run, data), tmp_path / "new" / "out"
    make_report_folder(out)
    write_text_report(report, out)
    assert json.loads((out / "report.json").read_text(encoding="utf-8")) == report
    assert (out / "codes.png").read_bytes().startswith(b"\x89PNG")


def test_the_summary_has_a_line_for_every_code(tmp_path, run):
    report = evaluate_text(run, write_data(tmp_path, run, TEXTS))
    header, *lines = summary(report).splitlines()
    assert header.split()[-1] == "code"
    assert [line.split()[-1] for line in lines] == ["(all)", *report["codes"]]
    assert {len(line.split()) for line in lines} == {len(header.split())}
    assert f"{report['codes']['letter']['bits_per_character']:.4f}" in lines[2]


def test_another_tokenizer_is_refused(tmp_path, run):
    with pytest.raises(UserError, match=r"tokenizer is not that of the run"):
        evaluate_text(run, write_data(tmp_path, run, TEXTS, sha256="f" * 64))


def test_an_unknown_code_is_refused(tmp_path, run):
    with pytest.raises(UserError, match=r"unknown code 'sotry'.*'story'"):
        evaluate_text(run, write_data(tmp_path, run, {"sotry": ["日"]}))


def test_an_unknown_code_without_documents_is_no_matter(tmp_path, run):
    evaluate_text(run, write_data(tmp_path, run, {"news": [], "story": ["日"]}))


@pytest.mark.parametrize("texts", [{}, {"story": []}])
def test_no_held_out_documents_are_refused(tmp_path, run, texts):
    with pytest.raises(UserError, match="no held-out documents"):
        evaluate_text(run, write_data(tmp_path, run, texts))


def test_a_directory_that_is_no_data_set_is_refused(tmp_path, run):
    with pytest.raises(UserError, match="not a data set directory"):
        evaluate_text(run, tmp_path)


def test_a_batch_of_nothing_is_refused(tmp_path, run):
    with pytest.raises(UserError, match="batch=0"):
        evaluate_text(run, tmp_path, batch=0)


@pytest.mark.parametrize("value", [float("nan"), 1e9])
def test_a_broken_model_is_named(tmp_path, run, value):
    run.model.vocabulary_bias[...] = run.model.vocabulary_bias[...].at[-1].set(value)
    with pytest.raises(UserError, match="the model is broken"):
        evaluate_text(run, write_data(tmp_path, run, TEXTS))


def test_an_unwritable_directory_is_told_before_the_work(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file: cannot make this directory"):
        make_report_folder(tmp_path / "file")


def test_missing_matplotlib_is_told_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"hayakuchi\[report\]"):
        make_report_folder(tmp_path)


@pytest.mark.parametrize("taken", ["report.json", "codes.png"])
def test_a_file_that_cannot_be_written_is_one_line(tmp_path, run, taken):
    report = evaluate_text(run, write_data(tmp_path / "data", run, TEXTS))
    (tmp_path / taken).mkdir()
    with pytest.raises(UserError, match=f"{taken}: cannot write it"):
        write_text_report(report, tmp_path)
