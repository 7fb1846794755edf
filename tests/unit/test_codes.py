import pytest
from hypothesis import given
from hypothesis import strategies as st

from hayakuchi.errors import UserError
from hayakuchi.text.codes import CODE_SLOTS, CodeBook, check_code_name, parse_code_weights

BOOK = CodeBook.from_names(["story", "essay", "手紙"])


@pytest.mark.parametrize("name", ["story", "how-to", "青空_文庫", "ニュース", "佐々木", "二〇二六", "a" * 32, "3"])
def test_letters_of_any_script_name_a_code(name):
    assert check_code_name(name, "x") == name


@pytest.mark.parametrize(("name", "spelling"), [("ﾆｭｰｽ", "ニュース"), ("ｓｔｏｒｙ", "story"), ("か\u3099く", "がく")])
def test_two_spellings_are_one_code(name, spelling):
    assert check_code_name(name, "x") == spelling
    assert CodeBook.from_names([name, spelling]).to_dict() == {spelling: 1}


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "a b",
        "a=b",
        "a,b",
        "a/b",
        "..",
        "a" * 33,
        "a\n",
        "😀",
        "\ud800",
        "\0",
        "か" * 200_000,
        "\u0301\u0323" * 100_000,
    ],
)
def test_other_names_are_refused_with_their_place(name):
    with pytest.raises(UserError, match=r"^corpus\.jsonl:3: ") as caught:
        check_code_name(name, "corpus.jsonl:3")
    assert len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)


@given(st.lists(st.from_regex(r"[a-zぁ-ん0-9_-]{1,32}", fullmatch=True), max_size=CODE_SLOTS - 1))
def test_code_book_round_trip(names):
    book = CodeBook.from_names(names)
    assert CodeBook.from_dict(book.to_dict(), "x") == book
    assert all(0 < book.slot(name) < CODE_SLOTS for name in names)
    assert [book.name(book.slot(name)) for name in names] == [check_code_name(name, "x") for name in names]
    assert book.names == list(book.slots)


def test_slot_0_is_the_unconditional_code():
    assert BOOK.slot("") == 0
    assert BOOK.name(0) == ""
    assert 0 not in BOOK.slots.values()
    with pytest.raises(UserError, match="no code has slot 9"):
        BOOK.name(9)


def test_as_many_codes_as_there_are_slots():
    names = [f"c{i}" for i in range(CODE_SLOTS - 1)]
    assert CodeBook.from_names(names).slot("c62") == 63
    with pytest.raises(UserError, match="sources: 64 codes; there is room for 63"):
        CodeBook.from_names([*names, "one-more"], "sources")


def test_an_unknown_code_is_answered_with_the_known_ones():
    with pytest.raises(
        UserError, match=r"^--code: unknown code 'stroy'; did you mean 'story'\? known are story, essay, 手紙$"
    ):
        BOOK.slot("stroy", "--code")
    with pytest.raises(UserError, match=r"unknown code 'x'; known are none$"):
        CodeBook({}).slot("x")
    with pytest.raises(UserError, match="unknown code"):
        BOOK.slot("story" + "\u0301\u0323" * 100_000)


@pytest.mark.parametrize(
    "values",
    [
        None,
        [],
        {"a": 0},
        {"a": 64},
        {"a": -1},
        {"a": "1"},
        {"a": 1.0},
        {"a": True},
        {"a": 1, "b": 1},
        {"": 1},
        {"ﾆｭｰｽ": 1},
    ],
)
def test_a_broken_book_is_refused(values):
    with pytest.raises(UserError, match=r"^dataset\.json: codes"):
        CodeBook.from_dict(values, "dataset.json: codes")


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("", {}),
        ("  ", {}),
        ("story=2,essay=0.5", {"story": 2.0, "essay": 0.5}),
        (" 手紙 = 1e-3 , story=0", {"手紙": 0.001, "story": 0.0}),
    ],
)
def test_weights(text, weights):
    assert parse_code_weights(text, BOOK) == weights


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("story", "'story' is not of the form NAME=WEIGHT"),
        ("story=1,", "'' is not of the form"),
        ("=1", "'=1' is not of the form"),
        ("story=", "story=''"),
        ("story=x", "story='x'"),
        ("story=nan", "finite"),
        ("story=inf", "finite"),
        ("story=1e999", "finite"),
        ("story=-1", "0 or more"),
        ("story=1=2", "story='1=2'"),
        ("story=1,story=2", "'story' stands there twice"),
        ("story=1,ｓｔｏｒｙ=2", "'story' stands there twice"),
        ("poem=1", "unknown code 'poem'"),
        ("story=0,essay=0,手紙=0", "every code has weight 0"),
    ],
)
def test_bad_weights(text, fault):
    with pytest.raises(UserError, match=r"^--code-weights") as caught:
        parse_code_weights(text, BOOK, "--code-weights")
    assert fault in str(caught.value)
