"""Generation with a cache against recomputing everything, and what becomes of the tokens on the host."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from hayakuchi.errors import UserError
from hayakuchi.infer.generate import generate, stream
from hayakuchi.infer.sampling import SamplingConfig
from hayakuchi.text.codes import CODE_SLOTS
from hayakuchi.text.tokenizer import FIRST_BYTE_ID, FIRST_CODE_ID, FIRST_LEARNT_ID
from tiny_text_run import LEARNT, tiny_text_run

# Most tests ask for 1 or 4 samples in a room of 64 tokens, so that they share what is compiled.
GREEDY = SamplingConfig(temperature=0.0, penalty=1.0)
FREE = SamplingConfig(temperature=1.0, top_p=1.0, penalty=1.0)
SPECIAL = FIRST_CODE_ID + CODE_SLOTS


@partial(jax.jit, static_argnames="graph")
def best_next(graph, parameters, window, count, allowed):
    """The best allowed token after the first `count` positions, from the model's plain forward pass."""
    model = nnx.merge(graph, parameters)
    hidden = model.hidden(window, jnp.ones_like(window), jnp.arange(window.shape[1])[None])
    return jnp.argmax(jnp.where(allowed, model.logits(hidden[:, count - 1]), -jnp.inf))


def uncached_greedy(run, prompt, slot, count):
    """Greedy continuation that reads the whole window anew for every token."""
    length = run.model.config.length
    graph, parameters = nnx.split(run.model)
    allowed = np.arange(run.tokenizer.vocabulary_size) >= SPECIAL
    allowed[run.tokenizer.eos_id] = True
    window = [run.tokenizer.code_id(slot), *run.tokenizer.encode(prompt).tolist()]
    written = []
    for _ in range(count):
        if len(window) > length:
            window = [window[0], *window[1:][-(length // 2 - 1) :]]
        padded = np.array([window + [0] * (length - len(window))], np.int32)
        written.append(int(best_next(graph, parameters, padded, len(window), allowed)))
        window.append(written[-1])
    return written


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize(("prompt", "code"), [("", None), ("あ", "essay"), ("日月火水木金土", "story")])
def test_greedy_with_the_cache_equals_recomputing_everything(scan_layers, prompt, code):
    run = tiny_text_run(scan_layers=scan_layers)
    # Sixteen positions: the window is begun anew several times.
    [result] = generate(run, prompt, code, max_tokens=45, sampling=GREEDY)
    assert list(result.tokens) == uncached_greedy(run, prompt, run.codes.slot(code or ""), 45)
    assert result.finish_reason == "length"
    assert len(set(result.tokens)) > 3
    assert result.text == run.tokenizer.decode(result.tokens)


@pytest.mark.parametrize("length", [2, 3])
def test_the_shortest_windows_work(length):
    run = tiny_text_run(length=length)
    [full] = generate(run, "日" * (length - 1), "story", max_tokens=20, sampling=GREEDY)
    assert len(full.tokens) == 20


def test_the_code_matters():
    run = tiny_text_run()
    texts = {generate(run, "日", code, max_tokens=45, sampling=GREEDY)[0].text for code in (None, "story", "essay")}
    assert len(texts) > 1


@pytest.fixture
def compiles():
    """Counts what XLA compiles."""
    count = []

    def listen(event, _duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            count.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield count
    jax.monitoring.unregister_event_duration_listener(listen)


def test_one_compile_for_each_bucket_and_number_of_samples(compiles):
    run = tiny_text_run(length=32)

    def ask(prompt, n, **options):
        before = len(compiles)
        generate(run, prompt, "story", max_tokens=33, sampling=SamplingConfig(**options), n=n)
        return len(compiles) - before

    assert ask("日月火", 2) > 0
    # Another prompt of the bucket, other numbers.
    assert ask("日月", 2, temperature=0.3, top_k=5, top_p=0.5, penalty=1.7) == 0
    # Only reading the prompt.
    assert ask("水" * 20, 2) == 1
    assert ask("火" * 30, 2) == 0


def test_samples_depend_on_seed_and_row_only():
    run = tiny_text_run()
    four = generate(run, "日", "story", max_tokens=40, sampling=FREE, n=4, seed=7)
    assert generate(run, "日", "story", max_tokens=40, sampling=FREE, n=4, seed=7) == four
    assert generate(run, "日", "story", max_tokens=40, sampling=FREE, n=1, seed=7) == four[:1]
    assert len({sample.text for sample in four}) == 4
    assert generate(run, "日", "story", max_tokens=40, sampling=FREE, n=4, seed=8) != four
    # More tokens begin with the same ones.
    assert generate(run, "日", "story", max_tokens=31, sampling=FREE, seed=7)[0].tokens == four[0].tokens[:31]


def test_eos_ends_each_sample_by_itself():
    run = tiny_text_run(eos_bias=1.0)
    samples = generate(run, "日", "story", max_tokens=40, sampling=FREE, n=4)
    assert len({len(sample.tokens) for sample in samples}) > 2
    assert all(run.tokenizer.eos_id not in sample.tokens for sample in samples)
    assert all((len(sample.tokens) == 40) == (sample.finish_reason == "length") for sample in samples)


def test_eos_at_once_gives_no_text():
    [result] = generate(tiny_text_run(eos_bias=200.0), "日", max_tokens=40, sampling=FREE)
    assert (result.text, result.tokens, result.finish_reason) == ("", (), "end")


def test_special_ids_are_never_drawn():
    run = tiny_text_run()
    run.model.vocabulary_bias[...] = run.model.vocabulary_bias[...].at[jnp.array([0, 1, 3, 4, 66])].set(50.0)
    for config in (FREE, GREEDY):
        [result] = generate(run, "日", max_tokens=40, sampling=config)
        assert min(result.tokens) >= SPECIAL


@pytest.mark.parametrize("n", [1, 3])
def test_no_ngram_repeats_in_the_whole_text(n):
    run = tiny_text_run()
    prompt = "日月火水"
    config = SamplingConfig(temperature=0.3, penalty=1.0, ban_ngram=n)
    [result] = generate(run, prompt, max_tokens=40, sampling=config)
    ids = [*run.tokenizer.encode(prompt).tolist(), *result.tokens]
    ngrams = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    assert len(set(ngrams)) == len(ngrams)


# --- text ---


@pytest.mark.parametrize("stops", [["水"], ["。", "ました", "、と"]])
def test_a_stop_string_ends_the_text_before_it(stops):
    run = tiny_text_run()
    whole = generate(run, "日", max_tokens=40, sampling=FREE, n=4, seed=1)
    stopped = generate(run, "日", max_tokens=40, sampling=FREE, n=4, seed=1, stop=stops)
    for full, cut in zip(whole, stopped, strict=True):
        places = [full.text.find(stop) for stop in stops if stop in full.text]
        assert cut.finish_reason == ("stop" if places else "length")
        assert cut.text == full.text[: min(places, default=None)]
        assert full.tokens[: len(cut.tokens)] == cut.tokens
    assert {cut.finish_reason for cut in stopped} != {"length"}


def test_a_stop_string_over_several_tokens_is_never_shown():
    run = tiny_text_run()
    [full] = generate(run, "日", max_tokens=40, sampling=FREE, seed=2)
    for start in range(3, 20, 2):
        stop = full.text[start : start + 5]
        pieces = list(stream(run, "日", max_tokens=40, sampling=FREE, seed=2, stop=[stop]))
        assert "".join(piece.text for piece in pieces) == full.text[: full.text.find(stop)]
        assert pieces[-1].finish_reason == "stop"


def test_text_held_back_for_a_stop_string_comes_at_the_end():
    run = tiny_text_run()
    [full] = generate(run, "日", max_tokens=40, sampling=FREE, seed=3)
    for size in (1, 3, len(full.text)):
        [result] = generate(run, "日", max_tokens=40, sampling=FREE, seed=3, stop=[full.text[-size:] + "\x00駅"])
        assert result == full


def test_pieces_add_up_and_hold_whole_characters_only():
    # With bytes allowed a random model writes every kind of broken UTF-8.
    run = tiny_text_run(byte_bias=0.0)
    pieces = list(stream(run, "日", max_tokens=40, sampling=FREE, n=4, seed=4))
    results = generate(run, "日", max_tokens=40, sampling=FREE, n=4, seed=4)
    for index, result in enumerate(results):
        own = [piece for piece in pieces if piece.index == index]
        assert "".join(piece.text for piece in own) == result.text
        assert sum((piece.tokens for piece in own), ()) == result.tokens
        assert [piece.finish_reason for piece in own[:-1]] == [None] * (len(own) - 1)
        assert any(FIRST_BYTE_ID <= token < FIRST_LEARNT_ID for token in result.tokens)
        assert result.text == run.tokenizer.decode(result.tokens).replace("\ufffd", "")
    assert len(pieces) > 20


def test_text_comes_before_the_end():
    pieces = stream(tiny_text_run(), "日", max_tokens=40, sampling=FREE)
    assert len(next(pieces).tokens) < 10


def test_prompt_and_stop_strings_are_normalised():
    run = tiny_text_run()
    [plain] = generate(run, "けさ", max_tokens=40, sampling=FREE)
    assert generate(run, "\ufeffけさ", max_tokens=40, sampling=FREE) == [plain]
    [stopped] = generate(run, "けさ", max_tokens=40, sampling=FREE, stop=["\x00" + plain.text[9:12]])
    assert stopped.finish_reason == "stop"


@pytest.mark.parametrize("prompt", ["\ud800", "か\u3099", "👨‍👩", "\x00", "　\n"])
def test_hostile_prompts_are_continued(prompt):
    [result] = generate(tiny_text_run(), prompt, max_tokens=40, sampling=GREEDY)
    assert len(result.tokens) == 40


# --- bad input ---


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"max_tokens": 10**12}, "max_tokens="),
        ({"n": 0}, "n=0"),
        ({"n": 10**9}, "n="),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 2**32}, "seed="),
        ({"stop": ["。", ""]}, "stop=''"),
        ({"stop": ["\x00"]}, "stop="),
        ({"code": "poem"}, "poem"),
        ({"prompt": "日" * 16, "strict_window": True}, "16 tokens; the model's window holds 15"),
        ({"prompt": "𠮟" * 100_000, "strict_window": True}, "400,000 tokens"),
    ],
)
@pytest.mark.parametrize("function", [generate, stream])
def test_bad_requests_are_refused_at_the_call(function, options, named):
    with pytest.raises(UserError) as caught:
        function(tiny_text_run(), **{"prompt": "日"} | options)
    message = str(caught.value)
    assert named in message
    assert "\n" not in message
    assert len(message) < 200


def test_a_prompt_that_just_fits_is_continued(caplog):
    [result] = generate(tiny_text_run(), "日" * 15, max_tokens=40, sampling=GREEDY, strict_window=True)
    assert len(result.tokens) == 40
    assert not caplog.records


def test_a_prompt_longer_than_the_window_keeps_its_newest_tokens_and_the_code(caplog):
    run = tiny_text_run()
    newest = "日月火水木金土日月火水木金土日"
    [expected] = generate(run, newest, "essay", max_tokens=40, sampling=GREEDY)
    for older in ("あ", "あいうえお" * 1_000):
        caplog.clear()
        assert generate(run, older + newest, "essay", max_tokens=40, sampling=GREEDY) == [expected]
        [record] = caplog.records
        assert f"the first {len(older):,} were dropped" in record.getMessage()


def test_the_tiny_vocabulary_is_as_the_tests_think():
    run = tiny_text_run()
    assert run.tokenizer.decode(run.tokenizer.encode("日 \n👨")) == "日 \n👨"
    assert run.tokenizer.decode([FIRST_LEARNT_ID + LEARNT.index("ました")]) == "ました"
