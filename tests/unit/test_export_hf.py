"""The exported directory: weights, tokenizer and files; the model itself is tested in tests/parity."""

import json
import resource
import sys

import jax
import numpy as np
import pytest
import sentencepiece
from flax import nnx
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from transformers import AutoTokenizer

from hayakuchi.config import CtrlConfig, CtrlRecipe
from hayakuchi.data.shards import Counts, DatasetInfo
from hayakuchi.errors import MissingExtraError, UserError
from hayakuchi.export import hf
from hayakuchi.export.hf import export_hf
from hayakuchi.export.hf_tokenizer import fast_tokenizer
from hayakuchi.export.hf_weights import from_hf, to_hf
from hayakuchi.infer.run import TextRun
from hayakuchi.models.ctrl import Ctrl
from hayakuchi.text.codes import CODE_SLOTS, CodeBook
from hayakuchi.text.normalise import POLICIES, normalise
from hayakuchi.text.tokenizer import FIRST_CODE_ID, FIRST_LEARNT_ID, Tokenizer, train_tokenizer

CODES = CodeBook({"story": 1, "お便り": 7})
SENTENCES = [
    f"{who}は{what}{end}"
    for who in ("ああああ、母", "犬と猫", "ははは、先生", "雨の日のバス", "わたし")
    for what in ("笑った", "ずっとずっと歩いた", "本を<1>から<20>まで読んだ", "「いいい」と言った", "No.7 is here ")
    for end in ("。", "……", "ーーー！", "\n", "　")
]
# Characters and strings that some tokenizer of public reports got wrong, or that mean something inside one.
NASTY = [
    "　a  b\n…㈱㍻①ﾊﾟ\t終",
    "𠮟",
    "葛󠄀",
    "👨‍👩‍👧",
    "\n",
    "\n\n\n",
    " ",
    "   ",
    "　",
    "\t",
    "\0",
    "\r\n",
    "か\u3099",
    "\u0301",
    "\ufeff",
    "\ufffd",
    "⁇",
    "▁",
    "▁▁ ▁",
    "<0x41>",
    "<0xE3><0x81>",
    "<0x0A>",
    "<",
    "<<>>",
    "<1>",
    "<code:64>",
    "<|dairy|>",
    "<|",
    "|>",
    "\ufdd0",
    "\ufdd0" + "0\ufdd0" + "2",
    "\ufdd1",
    "\uffff",
    "\U0010ffff",
    "ABC Hello",
    "ＡＢＣ",
    "ﾊﾝｶｸ",
    "ゐゑ",
    "ああああああああああああああああ",
    "ーーーーーーーーーーーーーーー",
    "…………………",
    "いいいいいはははははずっとずっとずっと",
]
ANY_TEXT = st.lists(
    st.one_of(st.sampled_from([*NASTY, *SENTENCES]), st.text(max_size=8), st.text("<>0xE3 ▁\ufdd012", max_size=8)),
    max_size=12,
).map("".join)


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"
    train_tokenizer(SENTENCES, [], path)
    return Tokenizer.load(path)


def make_run(tokenizer, *, codes=CODES, scan_layers=False):
    config = CtrlConfig(
        tokenizer.vocabulary_size, 32, layers=2, width=16, heads=2, feed_forward=24, scan_layers=scan_layers
    )
    counts = {"train": {name: Counts(3, 400, 1_234, 3_000) for name in codes.slots}, "heldout": {}}
    info = DatasetInfo(codes, tokenizer.sha256, tokenizer.vocabulary_size, "nfkc", (), counts)
    return TextRun(Ctrl(config, jax.random.key(0)), CtrlRecipe(model=config), tokenizer, info, 1_000)


@pytest.fixture(scope="session")
def run(tokenizer):
    return make_run(tokenizer)


@pytest.fixture(scope="session")
def exported(run, tmp_path_factory):
    out = tmp_path_factory.mktemp("export") / "out"
    return out, export_hf(run, out)


@pytest.fixture(scope="session")
def reloaded(exported):
    return AutoTokenizer.from_pretrained(exported[0])


def assert_same(ours, theirs, text):
    ids = ours.encode(text).tolist()
    found = theirs(text, split_special_tokens=True)["input_ids"]
    assert found == ids, text
    assert theirs.decode(found, skip_special_tokens=True) == text


def test_the_reloaded_tokenizer_gives_the_same_ids(tokenizer, reloaded):
    """T4."""
    assert len(reloaded) == tokenizer.vocabulary_size
    for text in ["", *NASTY, *SENTENCES]:
        assert_same(tokenizer, reloaded, text)
    for first in NASTY:
        for second in NASTY:
            assert_same(tokenizer, reloaded, f"{first}犬{second}")


@pytest.mark.parametrize("text", ["123456", "A , B .", "東京2020", " 犬 . 'm n't  猫 ? "])
def test_t14_the_same_ids_in_three_tokenizers_and_no_space_is_cleaned(tokenizer, reloaded, exported, text):
    plain = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    ids = tokenizer.encode(text).tolist()
    assert plain.encode(text) == reloaded(text)["input_ids"] == ids
    assert plain.decode(ids) == tokenizer.decode(ids) == reloaded.decode(ids) == text
    settings = json.loads((exported[0] / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert settings["clean_up_tokenization_spaces"] is False


@settings(max_examples=300, deadline=None, derandomize=True)
@given(text=ANY_TEXT, policy=st.sampled_from(POLICIES))
@example("<eos><pad><unk><code:0><|story|>", "none")
def test_the_same_ids_for_any_text(tokenizer, reloaded, text, policy):
    assert_same(tokenizer, reloaded, normalise(text, policy))


def test_the_same_ids_where_many_ways_to_cut_a_text_are_equally_good(tokenizer, reloaded):
    random = np.random.default_rng(0)
    for _ in range(200):
        characters, times = random.choice(list("あいはーっ…とずNo 。"), 6), random.integers(1, 20, 6)
        assert_same(tokenizer, reloaded, "".join(c * n for c, n in zip(characters, times.tolist(), strict=True)))


def test_a_long_line(tokenizer, reloaded):
    assert_same(tokenizer, reloaded, "ああ、犬と猫はずっと。▁<" * 2_000)


def test_without_a_piece_for_the_less_than_sign(tmp_path):
    texts = [sentence.replace("<", "").replace(">", "") for sentence in SENTENCES]
    train_tokenizer(texts, [], tmp_path / "tokenizer.model")
    ours = Tokenizer.load(tmp_path / "tokenizer.model")
    assert not any("<" in piece for piece in ours.pieces[FIRST_LEARNT_ID:])
    theirs = fast_tokenizer(ours, CODES)
    for text in NASTY:
        encoded = theirs.encode(text, add_special_tokens=False).ids
        assert encoded == ours.encode(text).tolist(), text
        assert theirs.decode(encoded) == text


def test_control_codes_are_special_tokens(tokenizer, reloaded):
    assert reloaded("<|story|>昔々")["input_ids"] == [FIRST_CODE_ID + 1, *tokenizer.encode("昔々")]
    assert reloaded("<|お便り|>")["input_ids"] == [FIRST_CODE_ID + 7]
    assert reloaded("<code:2><code:63>")["input_ids"] == [FIRST_CODE_ID + 2, FIRST_CODE_ID + 63]
    assert reloaded.decode([FIRST_CODE_ID + 1, *tokenizer.encode("犬"), 2, 0], skip_special_tokens=True) == "犬"
    assert sorted(reloaded.all_special_ids) == list(range(FIRST_CODE_ID + CODE_SLOTS))
    parts = (reloaded.pad_token_id, reloaded.unk_token_id, reloaded.eos_token_id, reloaded.bos_token_id)
    assert parts == (0, 1, 2, FIRST_CODE_ID)


def test_batches_are_padded_on_the_left(reloaded):
    batch = reloaded(["犬", "<|story|>犬"], padding=True)
    assert [row[0] for row in batch["input_ids"]] == [0, FIRST_CODE_ID + 1]
    assert [row[0] for row in batch["attention_mask"]] == [0, 1]


@pytest.mark.parametrize("scan_layers", [False, True])
def test_weights_come_back(tokenizer, tmp_path, scan_layers):
    run = make_run(tokenizer, scan_layers=scan_layers)
    export_hf(run, tmp_path / "out")
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert tensors["transformer.h.1.ffn.0.weight"].shape == (24, 16)
    assert all(tensor.dtype == np.float32 for tensor in tensors.values())
    parameters = nnx.to_pure_dict(nnx.state(run.model))
    jax.tree.map(np.testing.assert_array_equal, from_hf(tensors, run.recipe.model), parameters)
    assert to_hf(parameters, run.recipe.model).keys() == tensors.keys()


def test_files(exported, run):
    out, report = exported
    names = {
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert {file.name for file in out.iterdir()} == names
    assert len({file.stat().st_mode for file in out.iterdir()}) == 1
    assert report["bytes"] == sum(file.stat().st_size for file in out.iterdir())
    assert report["parameters"] == sum(leaf.size for leaf in jax.tree.leaves(nnx.state(run.model)))
    assert report["codes"] == {"story": "<|story|>", "お便り": "<|お便り|>"}
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    assert config["vocab_size"] == run.tokenizer.vocabulary_size
    assert [config[key] for key in ("n_positions", "n_embd", "n_layer", "n_head", "dff")] == [32, 16, 2, 2, 24]
    generation = json.loads((out / "generation_config.json").read_text(encoding="utf-8"))
    assert generation["max_length"] == 32
    assert generation["eos_token_id"] == 2
    assert 2 not in generation["suppress_tokens"]
    card = (out / "README.md").read_text(encoding="utf-8")
    assert 'tokenizer("<|story|>"' in card
    assert "| `<\\|お便り\\|>` | 3 | 1,234 |" in card


def test_without_codes(tokenizer, tmp_path):
    export_hf(make_run(tokenizer, codes=CodeBook({})), tmp_path / "out")
    assert 'tokenizer("<code:0>"' in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")


def test_an_empty_directory_is_filled(run, tmp_path):
    export_hf(run, tmp_path)
    assert (tmp_path / "config.json").exists()


def test_what_is_there_is_kept(run, tmp_path):
    (tmp_path / "mine").write_text("keep")
    for out in (tmp_path, tmp_path / "mine"):
        with pytest.raises(UserError, match="not an empty directory"):
            export_hf(run, out)
    assert (tmp_path / "mine").read_text() == "keep"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_full_disk_leaves_nothing(run, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hf, "_model_card", full)
    with pytest.raises(UserError, match=r"out: cannot write it \(No space left"):
        export_hf(run, tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_disk_that_fills_up_in_a_large_file_is_one_line(run, exported, tmp_path, monkeypatch, name):
    """The libraries make errors of their own of it. A limit on file sizes stands for the full disk."""
    if name == "tokenizer.json":
        monkeypatch.setattr(hf, "_write_model", lambda *_: 0)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((exported[0] / name).stat().st_size // 2, limits[1]))
    try:
        with pytest.raises(UserError, match=r"out: cannot write it .*File too large") as told:
            export_hf(run, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(told.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("library", ["safetensors.numpy", "tokenizers"])
def test_a_missing_library_is_named(run, tmp_path, monkeypatch, library):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtraError, match=r"hayakuchi\[hf\]"):
        export_hf(run, tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize(
    "kind",
    [{"sharing": "all", "sharing_groups": 2}, {"embedding_width": 6}, {"sharing": "attention", "embedding_width": 6}],
)
def test_lighter_networks_become_plain_ones_of_the_same_logits(kind, scan):
    sizes = {"vocabulary_size": 40, "length": 10, "layers": 4, "width": 16, "heads": 2, "feed_forward": 24}
    light, plain = CtrlConfig(**sizes, **kind, scan_layers=scan), CtrlConfig(**sizes)
    graph, parameters = nnx.split(Ctrl(light, jax.random.key(0)), nnx.Param)
    leaves, structure = jax.tree.flatten(parameters)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    leaves = [leaf + 0.3 * jax.random.normal(key, leaf.shape) for leaf, key in zip(leaves, keys, strict=True)]
    parameters = jax.tree.unflatten(structure, leaves)
    model = nnx.merge(graph, parameters)
    tensors = to_hf(nnx.to_pure_dict(parameters), light)
    assert (
        ("lm_head.weight" in tensors)
        == ("embedding_width" in kind)
        == (not hf.model_config(light)["tie_word_embeddings"])
    )
    tokens = jax.random.randint(jax.random.key(2), (2, 10), 0, 40)
    batch = tokens, tokens * 0 + 1, tokens * 0 + np.arange(10)
    graph, _ = nnx.split(Ctrl(plain, jax.random.key(0)), nnx.Param)
    read = jax.tree.map(jax.numpy.asarray, from_hf(tensors, plain))
    hidden = np.asarray(nnx.merge(graph, read).hidden(*batch))
    output = tensors.get("lm_head.weight", tensors["transformer.w.weight"])
    expected = np.asarray(model.logits(model.hidden(*batch)))
    np.testing.assert_allclose(hidden @ output.T + tensors["lm_head.bias"], expected, atol=1e-4 * abs(expected).max())


@pytest.mark.parametrize("scan", [False, True])
def test_the_products_of_a_factorised_embedding_are_numpys(scan, monkeypatch):
    """On an accelerator JAX would multiply the float32 arrays of a checkpoint in less than float32."""
    sizes = {"vocabulary_size": 40, "length": 10, "layers": 2, "width": 16, "heads": 2, "feed_forward": 24}
    config = CtrlConfig(**sizes, embedding_width=6, scan_layers=scan)
    shapes = jax.eval_shape(lambda: nnx.to_pure_dict(nnx.state(Ctrl(config, jax.random.key(0)), nnx.Param)))
    draw = np.random.default_rng(0)
    parameters = jax.tree.map(lambda leaf: jax.numpy.asarray(draw.standard_normal(leaf.shape, np.float32)), shapes)

    def refuse(*_):
        raise AssertionError("a product of JAX")

    monkeypatch.setattr(type(jax.numpy.zeros(())), "__matmul__", refuse)
    tensors = to_hf(parameters, config)
    table, narrow = (np.asarray(part, np.float64) for part in (parameters["embedding"], parameters["narrow"]["kernel"]))
    np.testing.assert_allclose(tensors["lm_head.weight"], table @ narrow.T, rtol=1e-4, atol=1e-5)
    assert {array.dtype for array in tensors.values()} == {np.dtype(np.float32)}
