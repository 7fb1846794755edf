"""The exported directory of a voice: tensors, tokenizer and files; the model itself is tested in tests/parity."""

import dataclasses
import json
import re
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file
from transformers import AutoTokenizer

from hayakuchi.cli import main
from hayakuchi.errors import MissingExtraError, UserError
from hayakuchi.export import hf_voice
from hayakuchi.export.hf_voice import character_table, characters, export_hf_voice
from hayakuchi.export.hf_voice_weights import folded
from hayakuchi.models.convolutions import weight_norm
from hayakuchi.models.vits.published_names import (
    generator_names,
    to_published,
)
from hayakuchi.speech.symbols import INVENTORY, MARKS, PAD_ID, PAUSE, Inventory, with_blanks
from parity.check_hf_voice import configs, random_voice
from tiny_voice_run import save_voice, tiny_voice_run

# Printed by `check_hf_voice.py record`.
EXPECTED = json.loads((Path(__file__).parents[1] / "golden" / "hf_voice_tensors.json").read_text(encoding="utf-8"))
FILES = {"README.md", "config.json", "model.safetensors", "tokenizer_config.json", "vocab.json", "voice.json"}
# A symbol may be anything: what a tokenizer could take for something else is never written as it is.
HOSTILE = Inventory(9, (*INVENTORY.symbols, "<", ">", " ", "\u3000", "\ue000", "\u3099", "<unk>", "あ", "ａ"), {})


@pytest.fixture(scope="module")
def run():
    return random_voice(configs()["multi"])


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    out = tmp_path_factory.mktemp("export") / "out"
    return out, export_hf_voice(run, out)


@pytest.fixture(scope="module")
def tokenizer(exported):
    return AutoTokenizer.from_pretrained(exported[0])


@pytest.mark.parametrize("name", configs())
def test_the_tensors_are_those_that_transformers_expects(name, tmp_path):
    report = export_hf_voice(random_voice(configs()[name]), tmp_path / "out")
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert {name: list(tensor.shape) for name, tensor in tensors.items()} == EXPECTED[name]
    assert {tensor.dtype for tensor in tensors.values()} == {np.dtype(np.float32)}
    assert report["parameters"] == sum(tensor.size for tensor in tensors.values())


def test_every_weight_is_there(run, exported):
    """Published tensors under their names; the decoder's with their norms."""
    published = to_published(nnx.to_pure_dict(nnx.state(run.model)), generator_names(run.recipe.model))
    tensors = load_file(exported[0] / "model.safetensors")

    def same(theirs, ours):
        np.testing.assert_array_equal(tensors[theirs], published[ours].reshape(tensors[theirs].shape))

    for part in ("q", "k", "v"):
        layer = f"text_encoder.encoder.layers.1.attention.{part}_proj"
        same(f"{layer}.weight", f"enc_p.encoder.attn_layers.1.conv_{part}.weight")
    same("flow.flows.3.wavenet.in_layers.2.parametrizations.weight.original0", "flow.flows.6.enc.in_layers.2.weight_g")
    same("flow.flows.3.wavenet.in_layers.2.parametrizations.weight.original1", "flow.flows.6.enc.in_layers.2.weight_v")
    # What does not matter to synthesis, so that tests/parity does not notice it.
    same("text_encoder.encoder.layers.0.attention.k_proj.bias", "enc_p.encoder.attn_layers.0.conv_k.bias")
    same("posterior_encoder.conv_pre.weight", "enc_q.pre.weight")
    same(
        "posterior_encoder.wavenet.res_skip_layers.15.parametrizations.weight.original1",
        "enc_q.enc.res_skip_layers.15.weight_v",
    )
    same("posterior_encoder.conv_proj.bias", "enc_q.proj.bias")
    same("duration_predictor.flows.1.conv_pre.weight", "dp.flows.1.pre.weight")
    same("duration_predictor.flows.0.translate", "dp.flows.0.m")
    same("duration_predictor.flows.4.conv_dds.norms_2.1.weight", "dp.flows.7.convs.norms_2.1.gamma")
    same("duration_predictor.post_flows.1.conv_proj.bias", "dp.post_flows.1.proj.bias")
    same("duration_predictor.post_conv_pre.weight", "dp.post_pre.weight")
    upsample = published["dec.ups.1.weight_v"]
    norms = np.linalg.norm(tensors["decoder.upsampler.1.weight"].reshape(len(upsample), -1), axis=1)
    np.testing.assert_allclose(norms, abs(published["dec.ups.1.weight_g"].reshape(-1)), rtol=1e-5)


def test_an_unknown_character_sounds_like_a_pause(run, exported):
    table = load_file(exported[0] / "model.safetensors")["text_encoder.embed_tokens.weight"]
    assert len(table) == INVENTORY.size + 1
    np.testing.assert_array_equal(table[:-1], run.model.text_encoder.embedding[...])
    np.testing.assert_array_equal(table[-1], table[INVENTORY.ids[PAUSE]])


def test_folding_is_our_weight_norm():
    random = np.random.default_rng(0)
    direction, gain = (random.standard_normal(shape).astype(np.float32) for shape in ((4, 3, 5), (4, 1, 1)))
    ours = weight_norm(jnp.asarray(direction.transpose(2, 1, 0)), jnp.asarray(gain[:, 0, 0]), 0)
    np.testing.assert_allclose(folded(direction, gain).transpose(2, 1, 0), ours, rtol=1e-5)


@pytest.mark.parametrize(
    "symbols",
    [
        list(INVENTORY.symbols[PAD_ID + 1 :]),
        ["^", "h", "a", "]", "i", "$"],
        ["a"],
        ["cl", "cl", "_", "_", "?", "#"],
        ["kw", "a", "fy", "u", "no such phone", "<pad>", "<unk>", "😀"],
    ],
)
def test_the_reloaded_tokenizer_gives_our_ids(tokenizer, symbols):
    encoded = tokenizer(characters(symbols))
    assert encoded["input_ids"] == with_blanks(INVENTORY.encode(symbols))
    assert set(encoded["attention_mask"]) == {1}


def test_random_symbols(tokenizer):
    random = np.random.default_rng(0)
    for length in range(1, 200):
        symbols = random.choice(INVENTORY.symbols[1:], length).tolist()
        ids = tokenizer(characters(symbols))["input_ids"]
        assert ids == with_blanks(INVENTORY.encode(symbols))
        assert tokenizer.decode(ids) == characters(symbols)


def test_tokenizer_settings(tokenizer):
    assert type(tokenizer).__name__ == "VitsTokenizer"
    assert (tokenizer.pad_token_id, tokenizer.unk_token_id) == (PAD_ID, INVENTORY.size)
    assert len(tokenizer) == INVENTORY.size + 1
    assert tokenizer("犬A")["input_ids"] == with_blanks([INVENTORY.size, INVENTORY.ids["A"]])
    batch = tokenizer(["a", "aa"], padding=True)
    assert batch["input_ids"][0] == [0, INVENTORY.ids["a"], 0, 0, 0]
    assert batch["attention_mask"][0] == [1, 1, 1, 0, 0]


def test_an_inventory_of_any_symbols(run, tmp_path):
    model = dataclasses.replace(run.recipe.model, vocabulary_size=HOSTILE.size)
    voice = random_voice(model)
    export_hf_voice(dataclasses.replace(voice, info=dataclasses.replace(voice.info, inventory=HOSTILE)), tmp_path / "o")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "o")
    symbols = [*HOSTILE.symbols[1:], "<", "<", "p", "a", "d", ">", " ", "\u3000"]
    assert tokenizer(characters(symbols, HOSTILE))["input_ids"] == with_blanks(HOSTILE.encode(symbols))
    assert Inventory.from_dict(json.loads((tmp_path / "o/voice.json").read_text())["inventory"], "") == HOSTILE


def test_every_symbol_has_one_character_of_its_own():
    for inventory in (INVENTORY, HOSTILE):
        table = character_table(inventory)
        assert list(table) == list(inventory.symbols[1:])
        assert {len(character) for character in table.values()} == {1}
        assert len(set(table.values())) == len(table)
        assert all(table[mark] == mark for mark in (*MARKS, "a", "A", "N"))
    assert character_table(INVENTORY)["cl"] == "\ue000"


def test_files(exported, run):
    out, report = exported
    assert {file.name for file in out.iterdir()} == FILES
    assert len({file.stat().st_mode for file in out.iterdir()}) == 1
    assert report["bytes"] == sum(file.stat().st_size for file in out.iterdir())
    assert report["speakers"] == ["voice|0", "voice|1", "voice|2"]
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    assert (config["sampling_rate"], config["num_speakers"], config["speaker_embedding_size"]) == (8_000, 3, 12)
    assert (config["noise_scale"], config["noise_scale_duration"], config["speaking_rate"]) == (0.667, 0.8, 1.0)
    voice = json.loads((out / "voice.json").read_text(encoding="utf-8"))
    assert voice["speakers"] == report["speakers"]
    assert voice["characters"] == character_table(INVENTORY)
    assert voice["front_end"] == run.info.front_end


def test_the_card_says_how_text_becomes_characters(exported):
    card = (exported[0] / "README.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r'^\| `(\w+)` \| `"(.*)"` \|$', card, re.MULTILINE))
    stand_ins = {symbol: character for symbol, character in character_table(INVENTORY).items() if len(symbol) > 1}
    assert {symbol: json.loads(f'"{escape}"') for symbol, escape in shown.items()} == stand_ins
    assert "| 1 | voice\\|1 | 1,200 | 1.5 |" in card
    assert "speaker_id=0" in card
    assert 'make_front_end("haqumei", devoiced="fold", inventory=inventory)' in card
    [code] = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    compile(code, "README.md", "exec")


def test_one_speaker(tmp_path):
    report = export_hf_voice(random_voice(configs()["single"]), tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))
    assert (config["num_speakers"], config["speaker_embedding_size"]) == (1, 0)
    assert "speaker_id" not in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert report["speakers"] == ["voice|0"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"resblock": "2"}, 'resblock="2"'),
        ({"speakers": 1}, "speakers=1"),
        ({"decoder": "istft", "istft_hop": 8, "upsample_rates": (4, 2), "upsample_kernels": (8, 4)}, 'decoder="istft"'),
    ],
)
def test_what_transformers_lacks_is_refused(run, tmp_path, changes, reason):
    config = dataclasses.replace(run.recipe.model, **changes)
    refused = dataclasses.replace(run, recipe=dataclasses.replace(run.recipe, model=config))
    with pytest.raises(UserError, match=reason) as told:
        export_hf_voice(refused, tmp_path / "out")
    assert "\n" not in str(told.value)
    assert not list(tmp_path.iterdir())


def test_what_is_there_is_kept(run, tmp_path):
    (tmp_path / "mine").write_text("keep")
    with pytest.raises(UserError, match="not an empty directory"):
        export_hf_voice(run, tmp_path)
    assert (tmp_path / "mine").read_text() == "keep"


def test_a_full_disk_leaves_nothing(run, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hf_voice, "_model_card", full)
    with pytest.raises(UserError, match=r"out: cannot write it \(No space left"):
        export_hf_voice(run, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_missing_library_is_named(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(MissingExtraError, match=r"hayakuchi\[hf\]"):
        export_hf_voice(run, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_the_command_line_knows_a_voice(tmp_path, capsys):
    save_voice(tiny_voice_run(), tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--format", "hf"]) == 0
    assert "load it with VitsModel" in capsys.readouterr().out
    assert {file.name for file in (tmp_path / "out").iterdir()} == FILES
