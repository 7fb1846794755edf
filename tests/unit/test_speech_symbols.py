import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hayakuchi.errors import UserError
from hayakuchi.speech.symbols import INVENTORY, INVENTORY_VERSION, MARKS, PAD, PAD_ID, PAUSE, Inventory

# The ids of version 1, which models carry: changing this line calls for a new version.
VERSION_1 = (
    "<pad> ^ $ ? _ # [ ] a i u e o A I U E O N cl b by ch d f g gy h hy j k ky m my n ny p py r ry s sh t ts v w y z"
)

SYMBOLS = st.sampled_from(INVENTORY.symbols[1:])


def test_the_pinned_inventory():
    assert INVENTORY_VERSION == INVENTORY.version == 1
    assert " ".join(INVENTORY.symbols) == VERSION_1
    assert INVENTORY.size == len(INVENTORY.symbols)
    assert INVENTORY.symbols[PAD_ID] == PAD


@settings(deadline=None)
@given(st.lists(SYMBOLS))
def test_ids_come_back(symbols):
    ids = INVENTORY.encode(symbols)
    assert INVENTORY.decode(ids) == symbols
    assert PAD_ID not in ids


@settings(deadline=None)
@given(st.lists(st.one_of(SYMBOLS, st.text(max_size=3), st.sampled_from(list(INVENTORY.fallbacks)))))
def test_whatever_comes_is_encoded_within_the_inventory(symbols):
    assert all(PAD_ID < number < INVENTORY.size for number in INVENTORY.encode(symbols))


@pytest.mark.parametrize(
    ("phone", "stand_in"), [("kw", ["k", "w"]), ("gw", ["g", "w"]), ("ty", ["t", "y"]), ("dy", ["d", "y"])]
)
def test_rare_phones_have_a_fallback(phone, stand_in):
    assert not INVENTORY.known([phone])
    assert INVENTORY.decode(INVENTORY.encode([phone, "a"])) == [*stand_in, "a"]


@pytest.mark.parametrize("symbol", ["xx", "", PAD, "sil", "ア"])
def test_an_unknown_symbol_becomes_a_pause(symbol):
    assert INVENTORY.resolve(symbol) == (PAUSE,)
    assert not INVENTORY.known([symbol])


def test_padding_is_left_out_when_decoding():
    assert INVENTORY.decode([*INVENTORY.encode(["a", "N"]), PAD_ID, PAD_ID]) == ["a", "N"]


@pytest.mark.parametrize("number", [-1, INVENTORY.size])
def test_an_id_of_another_inventory_is_refused(number):
    with pytest.raises(UserError, match=str(number)):
        INVENTORY.decode([1, number])


def test_a_model_carries_it_as_json():
    assert Inventory.from_dict(json.loads(json.dumps(INVENTORY.to_dict())), "model.json") == INVENTORY


def test_another_inventory_keeps_its_own_ids():
    other = Inventory(version=7, symbols=(PAD, *MARKS, "z", "a"), fallbacks={"b": ("z", "z")})
    back = Inventory.from_dict(other.to_dict(), "model.json")
    assert back.encode(["a", "b"]) == [9, 8, 8]


GOOD = INVENTORY.to_dict()


@pytest.mark.parametrize(
    "values",
    [
        None,
        [],
        {},
        {**GOOD, "version": "1"},
        {**GOOD, "symbols": "abc"},
        {**GOOD, "symbols": [*GOOD["symbols"], 3]},
        {**GOOD, "symbols": [*GOOD["symbols"], "a"]},
        {**GOOD, "symbols": GOOD["symbols"][1:]},
        {**GOOD, "symbols": [symbol for symbol in GOOD["symbols"] if symbol != "["]},
        {**GOOD, "fallbacks": {"kw": "kw"}},
        {**GOOD, "fallbacks": {"kw": []}},
        {**GOOD, "fallbacks": {"kw": ["k", "ww"]}},
        {**GOOD, "more": 1},
    ],
)
def test_what_is_no_inventory_is_refused(values):
    with pytest.raises(UserError, match=r"model\.json"):
        Inventory.from_dict(values, "model.json")


def test_it_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        INVENTORY.version = 2  # type: ignore[misc]
