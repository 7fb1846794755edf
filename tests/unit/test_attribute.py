"""Attribution against Bayes' rule written out with the model's plain forward pass."""

import dataclasses
import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest

from hayakuchi.data.shards import Counts
from hayakuchi.errors import UserError
from hayakuchi.infer.attribute import attribute, training_priors
from hayakuchi.infer.generate import generate
from hayakuchi.infer.sampling import SamplingConfig
from tiny_text_run import tiny_text_run

NAMES = ["story", "essay", "letter"]


def log_softmax(values):
    values = np.asarray(values, np.float64)
    return values - values.max() - np.log(np.exp(values - values.max()).sum())


def reference(run, text, slot):
    """Log p(text | code), one window after another, summed token by token in NumPy."""
    ids = run.tokenizer.encode(text).tolist()
    room = run.model.config.length - 1
    total = 0.0
    for start in range(0, len(ids), room):
        window = [run.tokenizer.code_id(slot), *ids[start : start + room]]
        tokens = jnp.asarray([window], jnp.int32)
        hidden = run.model.hidden(tokens, jnp.ones_like(tokens), jnp.arange(len(window))[None])
        logits = np.asarray(run.model.logits(hidden))[0]
        total += sum(log_softmax(logits[place])[token] for place, token in enumerate(window[1:]))
    return total


@pytest.mark.parametrize("text", ["日", "日月火水木金土日月火水木金土日", "東京の火と水。\n\nあいうえお" * 3])
def test_likelihoods_and_probabilities_follow_bayes_rule(text):
    run = tiny_text_run()
    priors = {"story": 3.0, "essay": 0.5, "letter": 1.5}
    result = attribute(run, text, priors)
    likelihoods = [reference(run, text, run.codes.slot(name)) for name in NAMES]
    np.testing.assert_allclose(list(result.log_likelihoods.values()), likelihoods, rtol=1e-5)
    want = np.exp(log_softmax(np.array(likelihoods) + np.log([3.0, 0.5, 1.5])))
    np.testing.assert_allclose(list(result.probabilities.values()), want, atol=1e-4)
    assert list(result.probabilities) == NAMES
    assert math.fsum(result.probabilities.values()) == pytest.approx(1, abs=1e-12)
    assert result.bits_per_character["essay"] == pytest.approx(-likelihoods[1] / math.log(2) / len(text), rel=1e-5)
    assert result.characters == len(text)


def test_the_code_a_text_was_written_under_wins():
    run = tiny_text_run()
    plain = SamplingConfig(temperature=1.0, top_p=1.0, penalty=1.0)
    found = []
    for name, seed in itertools.product(NAMES, range(6)):
        for sample in generate(run, "", name, max_tokens=40, sampling=plain, n=4, seed=seed):
            # The text within the first window, where all the model saw was this code.
            text = run.tokenizer.decode(sample.tokens[:15])
            found.append(attribute(run, text).probabilities[name])
    assert np.mean(found) > 0.5
    assert np.mean(np.array(found) > 1 / 3) > 0.6


@pytest.mark.parametrize(
    ("priors", "want"),
    [
        (None, [1 / 3, 1 / 3, 1 / 3]),
        ({"story": 2.0, "essay": 1.0, "letter": 1.0}, [0.5, 0.25, 0.25]),
        ({"letter": 0.0}, [0.5, 0.5, 0.0]),
    ],
)
@pytest.mark.parametrize("text", ["", "\ud800", "\x00"])
def test_a_text_of_nothing_leaves_the_priors(text, priors, want):
    result = attribute(tiny_text_run(), text, priors)
    np.testing.assert_allclose(list(result.probabilities.values()), want, atol=1e-15)
    assert set(result.log_likelihoods.values()) == set(result.bits_per_character.values()) == {0.0}


def test_a_code_of_weight_0_is_impossible_and_a_lone_one_certain():
    result = attribute(tiny_text_run(), "日月", {"story": 0.0, "essay": 0.0})
    assert result.probabilities == {"story": 0.0, "essay": 0.0, "letter": 1.0}


def test_temperature_flattens():
    run, text = tiny_text_run(), "日月火水。東京です"
    sharp, flat = attribute(run, text), attribute(run, text, temperature=50.0)
    assert max(flat.probabilities.values()) < max(sharp.probabilities.values())
    assert flat.log_likelihoods == sharp.log_likelihoods


def test_a_long_text_adds_up_without_losing_digits():
    run = tiny_text_run(length=256, layers=1)
    part = "日月火水木金土あいうえお。" * 200
    once, often = (attribute(run, text) for text in (part[:2550], part[:2550] * 10))
    for name in NAMES:
        assert often.log_likelihoods[name] == pytest.approx(10 * once.log_likelihoods[name], rel=1e-6)
    assert math.fsum(often.probabilities.values()) == pytest.approx(1, abs=1e-12)


def test_training_priors_are_the_data_sets():
    run = tiny_text_run()
    counts = {"train": {"story": Counts(tokens=30), "letter": Counts(tokens=10)}, "heldout": {}}
    run = dataclasses.replace(run, info=dataclasses.replace(run.info, counts=counts))
    assert training_priors(run) == {"story": 30.0, "essay": 0.0, "letter": 10.0}
    assert attribute(run, "", training_priors(run)).probabilities["story"] == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"priors": {"poem": 1.0}}, "priors: unknown code 'poem'"),
        ({"priors": {"": 1.0}}, "unconditional"),
        ({"priors": {"story": -1.0}}, "story=-1.0"),
        ({"priors": {"story": float("nan")}}, "story=nan"),
        ({"priors": dict.fromkeys(NAMES, 0.0)}, "every code weighs 0"),
        ({"temperature": 0.0}, "temperature=0.0"),
        ({"temperature": float("inf")}, "temperature=inf"),
    ],
)
def test_bad_options_are_named(options, named):
    with pytest.raises(UserError) as caught:
        attribute(tiny_text_run(), "日", **options)
    assert named in str(caught.value)


def test_a_run_without_codes_and_a_broken_model_are_refused():
    with pytest.raises(UserError, match="no named codes"):
        attribute(tiny_text_run(codes=()), "日")
    broken = tiny_text_run()
    broken.model.vocabulary_bias[...] = broken.model.vocabulary_bias[...].at[300].set(jnp.nan)
    with pytest.raises(UserError, match="broken"):
        attribute(broken, "日")
