import pickle
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hayakuchi.data import dedup
from hayakuchi.data.dedup import Deduplicator, Signature, signature
from hayakuchi.errors import UserError

FERRY = (
    "島へ渡る船は一日に二便しかない。朝の便は漁協の荷を積むので、甲板はいつも魚の匂いがする。"
    "船長は六十を過ぎた女性で、波の高さを空の色で読むと言われていた。"
)
FERRY_ONE_WORD = FERRY.replace("魚の匂い", "油の匂い")
FERRY_OTHER = (
    "離島の航路では、便数の少なさが暮らしを大きく左右する。荷物と人とを同じ船で運ぶため、"
    "漁の忙しい季節には席が足りなくなり、町は小さな船をもう一隻借りることにした。"
)
SHORT = "雨が上がったので、弟と二人で川の水かさを見に行くと、橋脚の下に白い鷺が一羽、じっと立っていた。"


def seen(deduplicator, text, mode="near"):
    return deduplicator.add(signature(text, mode))


def test_one_word_differs():
    """T9."""
    deduplicator = Deduplicator()
    assert seen(deduplicator, FERRY) is None
    assert seen(deduplicator, FERRY_ONE_WORD) == "near-duplicate"


@pytest.mark.parametrize(("old", "new"), [("弟", "妹"), ("川の水かさ", "川の濁り"), ("橋脚", "土手")])
def test_one_word_differs_in_a_short_paragraph(old, new):
    deduplicator = Deduplicator()
    assert seen(deduplicator, SHORT) is None
    assert seen(deduplicator, SHORT.replace(old, new)) == "near-duplicate"


def test_the_same_subject_is_no_duplicate():
    deduplicator = Deduplicator()
    assert seen(deduplicator, FERRY) is None
    assert seen(deduplicator, FERRY_OTHER) is None
    assert seen(deduplicator, SHORT) is None


@pytest.mark.parametrize("mode", ["near", "exact"])
def test_whitespace_makes_no_difference(mode):
    deduplicator = Deduplicator(mode)
    assert seen(deduplicator, FERRY, mode) is None
    assert seen(deduplicator, "　" + FERRY.replace("。", "。\n") + "\t", mode) == "duplicate"


def test_exact_mode_keeps_near_duplicates_and_none_keeps_all():
    exact = Deduplicator("exact")
    assert [seen(exact, text, "exact") for text in (FERRY, FERRY_ONE_WORD, FERRY)] == [None, None, "duplicate"]
    everything = Deduplicator("none")
    assert [seen(everything, text, "none") for text in (FERRY, FERRY)] == [None, None]


def test_a_duplicate_is_not_remembered():
    # Otherwise a chain of small changes would drop documents that are like none that was kept.
    deduplicator = Deduplicator()
    chain = [SHORT]
    for i in range(0, 40, 4):
        chain.append(chain[-1][:i] + "甲乙丙丁" + chain[-1][i + 4 :])
    reasons = [seen(deduplicator, text) for text in chain]
    assert reasons[1] == "near-duplicate"
    assert reasons[-1] is None or None in reasons[2:]


@settings(deadline=None)
@given(st.text(st.characters()))
def test_any_text_is_its_own_duplicate(text):
    deduplicator = Deduplicator()
    found = signature(text)
    assert (len(found.exact), len(found.near)) == (16, 128)
    assert pickle.loads(pickle.dumps(found)) == found == signature(text)
    assert deduplicator.add(found) is None
    assert deduplicator.add(found) == "duplicate"


def _grams(text):
    return {text[i : i + 5] for i in range(len(text) - 4)}


def test_the_estimate_follows_the_true_similarity():
    source = random.Random(0)
    base = [chr(source.randrange(0x3041, 0x3094)) for _ in range(300)]
    errors = []
    for changes in range(0, 60, 4):
        other = base.copy()
        for place in source.sample(range(300), changes):
            other[place] = "漢"
        one, two = "".join(base), "".join(other)
        true = len(_grams(one) & _grams(two)) / len(_grams(one) | _grams(two))
        near = zip(signature(one).near, signature(two).near, strict=True)
        errors.append(sum(a == b for a, b in near) / 128 - true)
    assert max(map(abs, errors)) < 0.15
    assert abs(sum(errors) / len(errors)) < 0.04


def test_the_index_equals_comparing_all_pairs():
    source = random.Random(1)
    documents = []
    for _ in range(400):
        near = bytearray(source.randbytes(128) if not documents or source.random() < 0.6 else source.choice(documents))
        for place in source.sample(range(128), source.choice([0, 10, 25, 60])):
            near[place] = source.randrange(256)
        documents.append(bytes(near))
    deduplicator = Deduplicator()
    kept, missed = [], 0
    for number, near in enumerate(documents):
        similar = any(sum(map(int.__eq__, near, other)) >= 0.7 * 128 for other in kept)
        found = deduplicator.add(Signature(number.to_bytes(16), near)) is not None
        assert similar or not found  # never a wrong alarm
        missed += similar and not found
        if not found:
            kept.append(near)
    assert len(kept) > 150
    assert missed <= 2


def test_unlike_documents_stay_through_the_growth_of_the_index():
    source = random.Random(2)
    deduplicator = Deduplicator()
    found = [Signature(source.randbytes(16), source.randbytes(128)) for _ in range(1_000)]
    assert not any(deduplicator.add(each) for each in found)
    changed = [Signature(source.randbytes(16), each.near[:100] + source.randbytes(28)) for each in found]
    assert all(deduplicator.add(each) == "near-duplicate" for each in changed)


def test_many_documents_with_a_common_part_stay_fast():
    source = random.Random(3)
    common = source.randbytes(60)
    deduplicator = Deduplicator()
    start = time.process_time()
    for number in range(3_000):
        assert deduplicator.add(Signature(number.to_bytes(16), common + source.randbytes(68))) is None
    assert time.process_time() - start < 5


def test_a_novel_of_a_million_characters():
    source = random.Random(4)
    text = "".join(source.choices("いろはにほへとちりぬるを、。", k=1_000_000))
    start = time.process_time()
    found = signature(text)
    assert time.process_time() - start < 10
    deduplicator = Deduplicator()
    assert deduplicator.add(found) is None
    assert seen(deduplicator, text[:500_000] + "挿入" + text[500_000:]) == "near-duplicate"


def test_without_the_library_only_exact_duplicates(monkeypatch):
    monkeypatch.setattr(dedup, "_rensa", lambda: None)
    deduplicator = Deduplicator()
    assert "hayakuchi[corpora]" in deduplicator.note
    assert [seen(deduplicator, text) for text in (FERRY, FERRY_ONE_WORD, FERRY)] == [None, None, "duplicate"]
    assert Deduplicator("exact").note == ""


def test_bad_settings():
    with pytest.raises(UserError, match="'fuzzy' is not one of none, exact, near"):
        Deduplicator("fuzzy")
    with pytest.raises(UserError, match="not one of"):
        signature("x", "fuzzy")
    for threshold in (0, -1, 1.1, float("nan")):
        with pytest.raises(UserError, match="threshold="):
            Deduplicator("near", threshold)
