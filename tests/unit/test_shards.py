import hashlib
import json
import platform
from pathlib import Path

import numpy as np
import pytest

from hayakuchi.data import verification
from hayakuchi.data.shards import Counts, DatasetInfo, ShardWriter, TokenShards, checksums, open_split
from hayakuchi.data.verification import file_sha256
from hayakuchi.errors import UserError
from hayakuchi.text.codes import CodeBook

V = 1_000
MODEL = b"stand-in"


def documents(count: int = 50, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.integers(0, V, random.integers(1, 40)) for _ in range(count)]


def write(folder: Path, ids: list[np.ndarray], vocabulary_size: int = V, shard_tokens: int = 200) -> None:
    with ShardWriter(folder, vocabulary_size, shard_tokens) as writer:
        for number, document in enumerate(ids):
            writer.add(document, characters=len(document) * 2, size=len(document) * 6, code=number % 3)


def write_dataset(out: Path, ids: list[np.ndarray]) -> None:
    write(out / "train", ids)
    write(out / "heldout", [])
    counts = Counts()
    for document in ids:
        counts.add(len(document), len(document) * 2, len(document) * 6)
    (out / "tokenizer.model").write_bytes(MODEL)
    info(train={"物語": counts}, checksums=checksums(out)).save(out / "dataset.json")


def info(train: dict[str, Counts], checksums: dict[str, str] | None = None) -> DatasetInfo:
    return DatasetInfo(
        CodeBook.from_names(["物語", "随筆"]),
        hashlib.sha256(MODEL).hexdigest(),
        V,
        "nfkc",
        ("title",),
        {"train": train, "heldout": {}},
        checksums or {},
    )


def test_what_is_written_is_read_back_over_shards(tmp_path: Path) -> None:
    ids = documents()
    write(tmp_path, ids)
    assert len(list(tmp_path.glob("tokens-*.npy"))) > 3
    shards = TokenShards.open(tmp_path)
    assert len(shards) == len(ids)
    for number, document in enumerate(ids):
        np.testing.assert_array_equal(shards.tokens(number), document)
        np.testing.assert_array_equal(shards.tokens(number, 3, 9), document[3:9])
        record = shards.documents[number]
        assert (record["characters"], record["bytes"], record["code"]) == (
            len(document) * 2,
            len(document) * 6,
            number % 3,
        )


@pytest.mark.parametrize(("vocabulary_size", "dtype"), [(65_536, np.uint16), (65_537, np.uint32)])
def test_ids_take_the_smallest_type_that_holds_them(tmp_path: Path, vocabulary_size: int, dtype: type) -> None:
    write(tmp_path, [np.array([vocabulary_size - 1, 2])], vocabulary_size)
    tokens = TokenShards.open(tmp_path).tokens(0)
    assert tokens.dtype == dtype
    assert tokens.tolist() == [vocabulary_size - 1, 2]


def test_the_same_documents_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / name, documents())
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "b").iterdir())
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in files)


def test_a_split_without_documents(tmp_path: Path) -> None:
    write(tmp_path, [])
    assert len(TokenShards.open(tmp_path)) == 0


def test_a_crash_leaves_no_half_shard(tmp_path: Path) -> None:
    def crash() -> None:
        with ShardWriter(tmp_path, V, shard_tokens=10) as writer:
            for document in documents(5):
                writer.add(document, characters=1, size=1, code=0)
            assert list(tmp_path.glob("*.partial"))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        crash()
    assert not list(tmp_path.glob("*.partial"))
    TokenShards.open(tmp_path)


def savez(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, a=np.zeros(3))


@pytest.mark.parametrize("name", ["tokens-00001.npy", "documents-00001.npy"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-5]),
        lambda path: path.write_bytes(path.read_bytes()[:20]),
        lambda path: path.write_bytes(b"\x80\x04K\x01."),
        lambda path: np.save(path, np.zeros((3, 3))),
        lambda path: np.save(path, np.zeros(3, np.uint16)),
        lambda path: np.save(path, np.array([{}], dtype=object)),
        savez,
    ],
    ids=["missing", "empty", "cut", "cut header", "pickle", "matrix", "other length", "objects", "npz"],
)
def test_damage_is_named(tmp_path: Path, name: str, damage) -> None:
    write_dataset(tmp_path, documents())
    damage(tmp_path / "train" / name)
    with pytest.raises(UserError, match=r"-0000\d\.npy|train") as error:
        open_split(tmp_path, "train")
    assert "\n" not in str(error.value)


def test_damaged_records_are_named(tmp_path: Path) -> None:
    write(tmp_path, documents())
    path = tmp_path / "documents-00000.npy"
    records = np.load(path)
    records["offset"][2] += 1
    np.save(path, records)
    with pytest.raises(UserError, match="documents-00000"):
        TokenShards.open(tmp_path)


def test_a_missing_last_shard_is_noticed(tmp_path: Path) -> None:
    write_dataset(tmp_path, documents())
    open_split(tmp_path, "train")
    assert len(open_split(tmp_path, "heldout")) == 0
    for kind in ("tokens", "documents"):
        max((tmp_path / "train").glob(f"{kind}-*.npy")).unlink()
    with pytest.raises(UserError, match="a shard is missing"):
        open_split(tmp_path, "train")


def test_dataset_json_round_trip(tmp_path: Path) -> None:
    saved = info(train={"物語": Counts(1, 2, 3, 4)})
    saved.save(tmp_path / "dataset.json")
    assert DatasetInfo.load(tmp_path / "dataset.json") == saved


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values.pop("format_version"),
        lambda values: values.update(format_version=2),
        lambda values: values.pop("counts"),
        lambda values: values["counts"].pop("heldout"),
        lambda values: values["counts"]["train"].update(a={"documents": "many"}),
        lambda values: values["counts"].update(train=3),
        lambda values: values.update(vocabulary_size=None),
        lambda values: values.update(codes=[1]),
    ],
)
def test_malformed_dataset_json_is_named(tmp_path: Path, change) -> None:
    path = tmp_path / "dataset.json"
    info(train={}).save(path)
    values = json.loads(path.read_text(encoding="utf-8"))
    change(values)
    path.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(UserError, match=r"dataset\.json"):
        DatasetInfo.load(path)


def test_a_folder_that_is_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a data set directory"):
        open_split(tmp_path, "train")
    with pytest.raises(UserError, match="documents-00000"):
        TokenShards.open(tmp_path)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-7] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["tokens-00001.npy", "documents-00000.npy"])
def test_a_flipped_bit_is_found_even_after_the_file_passed_once(tmp_path: Path, name: str) -> None:
    write_dataset(tmp_path, documents())
    open_split(tmp_path, "train")
    flip(tmp_path / "train" / name)
    with pytest.raises(UserError, match=name):
        open_split(tmp_path, "train")


def test_files_are_read_once_per_data_set_and_always_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dataset(tmp_path, documents())
    read: list[str] = []
    monkeypatch.setattr(verification, "file_sha256", lambda path: read.append(path.name) or file_sha256(path))
    open_split(tmp_path, "train")
    first = len(read)
    assert first == len(list((tmp_path / "train").iterdir()))
    open_split(tmp_path, "train")
    assert len(read) == first
    open_split(tmp_path, "train", verify=True)
    assert len(read) == 2 * first
    monkeypatch.setattr(platform, "node", lambda: "another machine")
    open_split(tmp_path, "train")
    assert len(read) == 3 * first


@pytest.mark.parametrize("cache", ["a file", "no home"])
def test_without_a_cache_folder_files_are_read_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    (tmp_path / "file").touch()
    monkeypatch.setattr(verification, "cache_folder", (lambda: tmp_path / "file") if cache == "a file" else no_home)
    write_dataset(tmp_path / "data", documents())
    read: list[str] = []
    monkeypatch.setattr(verification, "file_sha256", lambda path: read.append(path.name) or file_sha256(path))
    open_split(tmp_path / "data", "train")
    first = len(read)
    open_split(tmp_path / "data", "train")
    assert len(read) == 2 * first


def without_checksums(out: Path) -> None:
    values = json.loads((out / "dataset.json").read_text(encoding="utf-8"))
    del values["checksums"]
    (out / "dataset.json").write_text(json.dumps(values), encoding="utf-8")


def test_a_data_set_without_checksums_opens_and_its_ids_are_checked(tmp_path: Path) -> None:
    write_dataset(tmp_path / "whole", documents())
    without_checksums(tmp_path / "whole")
    assert len(open_split(tmp_path / "whole", "train")) == len(documents())
    ids = documents()
    ids[-1][0] = V
    write_dataset(tmp_path / "beyond", ids)
    without_checksums(tmp_path / "beyond")
    with pytest.raises(UserError, match=rf"tokens-0000\d\.npy: token id {V}, but the vocabulary"):
        open_split(tmp_path / "beyond", "train")


def test_a_slot_that_no_code_has_is_named(tmp_path: Path) -> None:
    write_dataset(tmp_path, documents())
    path = tmp_path / "train" / "documents-00000.npy"
    records = np.load(path)
    records["code"][3] = 9
    np.save(path, records)
    with pytest.raises(UserError, match="code slot 9, which no code"):
        open_split(tmp_path, "train")


def test_a_shard_that_is_not_listed_is_named(tmp_path: Path) -> None:
    write_dataset(tmp_path, documents())
    values = json.loads((tmp_path / "dataset.json").read_text(encoding="utf-8"))
    del values["checksums"]["train/tokens-00001.npy"]
    (tmp_path / "dataset.json").write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(UserError, match=r"tokens-00001\.npy: not listed"):
        open_split(tmp_path, "train")


@pytest.mark.parametrize("version", [0, 2, None])
def test_t13_another_format_version_is_refused_with_the_cure(tmp_path: Path, version: int | None) -> None:
    write_dataset(tmp_path, documents())
    path = tmp_path / "dataset.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(values | {"format_version": version}), encoding="utf-8")
    with pytest.raises(UserError, match=rf"format version {version}, this program reads 1: prepare the data set again"):
        open_split(tmp_path, "train")
