"""Sources as written on the command line."""

import pickle

import pytest

from hayakuchi.corpora.aozora import AozoraReader
from hayakuchi.corpora.cirrus import CirrusReader
from hayakuchi.corpora.embedded_corpus import EmbeddedReader
from hayakuchi.corpora.jsonl import JsonlReader
from hayakuchi.corpora.plain import PlainReader
from hayakuchi.corpora.sources import parse_source
from hayakuchi.corpora.wikipedia import WikipediaReader
from hayakuchi.errors import UserError

AWKWARD = "a,b:c=d,code name,ruby.txt"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in ("x", AWKWARD, "x,ruby=keep"):
        (tmp_path / name).write_text("文", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("kind", "reader"),
    [
        ("aozora", AozoraReader),
        ("wikipedia", WikipediaReader),
        ("cirrus", CirrusReader),
        ("jsonl", JsonlReader),
        ("plain", PlainReader),
    ],
)
def test_every_kind_with_and_without_a_code(folder, kind, reader):
    path = folder / "x"
    assert parse_source(f"{kind}:{path}") == reader(path)
    named = parse_source(f"{kind}:{path},code=ﾆｭｰｽ")
    assert named == reader(path, code="ニュース")
    assert pickle.loads(pickle.dumps(named)) == named


def test_embedded_has_no_path():
    assert parse_source("embedded") == EmbeddedReader()
    assert parse_source("embedded,code=見本") == EmbeddedReader(code="見本")


def test_options_of_aozora(folder):
    spec = f"aozora:{folder / 'x'},ruby=inline,in_copyright=true,code=novel"
    assert parse_source(spec) == AozoraReader(folder / "x", "novel", "inline", in_copyright=True)
    assert parse_source(f"aozora:{folder / 'x'},in_copyright=false") == AozoraReader(folder / "x")


def test_paths_may_hold_commas_colons_and_equals_signs(folder):
    assert parse_source(f"plain:{folder / AWKWARD}") == PlainReader(folder / AWKWARD)
    assert parse_source(f"aozora:{folder / AWKWARD},ruby=keep") == AozoraReader(folder / AWKWARD, ruby="keep")
    # `ruby` is no option of plain, so it is part of the path if there is such a path.
    assert parse_source(f"plain:{folder}/x,ruby=keep") == PlainReader(folder / "x,ruby=keep")
    assert parse_source("plain:~/x") == PlainReader(folder / "x")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "",
            "unknown kind ''; write KIND:PATH, where KIND is one of aozora, wikipedia, cirrus, jsonl, plain, embedded",
        ),
        ("books:x", "unknown kind 'books'"),
        ("parquet:x", "unknown kind 'parquet'"),
        ("x", "unknown kind 'x'"),
        ("plain", "the path is missing; write plain:PATH"),
        ("plain,code=a", "the path is missing"),
        ("plain:", "the path is empty"),
        ("plain:,code=a", "the path is empty"),
        ("plain:none", "no such file or folder: 'none'"),
        ("plain:none,code=a", "no such file or folder: 'none'"),
        ("plain:x,color=red", "unknown option 'color'; plain knows code"),
        ("plain:x,in_copyright=true", "unknown option 'in_copyright'"),
        ("aozora:x,kana=old", "unknown option 'kana'; aozora knows code, ruby, in_copyright"),
        ("aozora:x,ruby=yes", "ruby='yes' is not one of drop, keep, inline"),
        ("aozora:x,in_copyright=1", "in_copyright='1' is not one of true, false"),
        ("aozora:x,ruby=drop,ruby=keep", "'ruby' stands there twice"),
        ("plain:x,code=", "cannot be the name of a code"),
        ("plain:x,code=a b", "cannot be the name of a code"),
        ("plain:x,code=a|b", "cannot be the name of a code"),
        ("plain:x,code=" + "あ" * 33, "cannot be the name of a code"),
        ("embedded:x", "embedded has no path"),
        ("embedded,ruby=keep", "unknown option 'ruby'; embedded knows code"),
        ("embedded,story", "embedded has no path"),
        ("plain:" + "あ" * 5_000, "no such file or folder"),
        ("plain:a\0b", "no such file or folder"),
        ("plain:\ud800", "no such file or folder"),
    ],
)
def test_one_line_names_what_is_wrong_and_what_is_known(folder, spec, message):
    with pytest.raises(UserError) as caught:
        parse_source(spec)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
