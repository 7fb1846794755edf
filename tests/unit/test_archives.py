"""Archives are streamed in order, never unpacked, and bombs, damage and nothing-there are one clear line each."""

import bz2
import errno
import gzip
import io
import lzma
import os
import re
import tarfile
import zipfile
from pathlib import Path

import pytest

from hayakuchi.corpora.archives import iter_files, total_size
from hayakuchi.corpora.jsonl import data_files
from hayakuchi.errors import UserError

TEXTS = {"a.txt": "朝".encode() * 10, "sub/b.TXT": "昼".encode() * 20, "picture.png": b"\x89PNG"}
CONTENT = [TEXTS["a.txt"], TEXTS["sub/b.TXT"]]


def make_zip(files: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def make_tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def zstd(data: bytes) -> bytes:
    return pytest.importorskip("zstandard").ZstdCompressor().compress(data)


def read(path: Path, suffixes: tuple[str, ...] = (".txt",)) -> list[tuple[str, bytes]]:
    return [(record.origin, record.data) for record in iter_files(path, suffixes)]


def refusal(path: Path, suffixes: tuple[str, ...] = (".txt",), **options: int) -> str:
    with pytest.raises(UserError) as caught:
        list(iter_files(path, suffixes, **options))
    message = str(caught.value)
    assert "\n" not in message
    assert path.name in message
    return message


def test_single_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"text")
    assert read(path) == [(str(path), b"text")]
    assert total_size(path, (".txt",)) == 4


def test_folder_is_read_sorted_with_its_subfolders(tmp_path):
    for name, data in reversed(TEXTS.items()):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    (tmp_path / "folder.txt").mkdir()
    assert read(tmp_path) == [(str(tmp_path / name), TEXTS[name]) for name in ("a.txt", "sub/b.TXT")]
    assert total_size(tmp_path, (".txt",)) == sum(map(len, CONTENT))


def test_a_folder_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_bytes(b"text")
    (tmp_path / "locked").mkdir()
    scandir = os.scandir

    def locked(folder):  # the tests may run as root, whom no permission stops
        if Path(folder).name == "locked":
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", locked)
    for read_all in (lambda: read(tmp_path), lambda: data_files(tmp_path, re.compile(r".*\.txt"), ".txt")):
        with pytest.raises(UserError, match=r"locked: cannot read the folder \(Permission denied\)"):
            read_all()


def test_zip(tmp_path):
    path = tmp_path / "works.zip"
    path.write_bytes(make_zip(TEXTS))
    assert read(path) == [(f"{path}!a.txt", CONTENT[0]), (f"{path}!sub/b.TXT", CONTENT[1])]
    assert total_size(path, (".txt",)) == sum(map(len, CONTENT))


@pytest.mark.parametrize(
    ("name", "compress"),
    [
        ("works.tar", bytes),
        ("works.tar.gz", gzip.compress),
        ("works.tgz", gzip.compress),
        ("works.tar.bz2", bz2.compress),
        ("works.tar.xz", lzma.compress),
        ("works.tar.zst", zstd),
    ],
)
def test_tar(tmp_path, name, compress):
    path = tmp_path / name
    path.write_bytes(compress(make_tar(TEXTS)))
    assert read(path) == [(f"{path}!a.txt", CONTENT[0]), (f"{path}!sub/b.TXT", CONTENT[1])]
    assert total_size(path, (".txt",)) is None


def test_a_zip_in_a_folder_or_an_archive_is_opened_where_zips_are_asked_for(tmp_path):
    inner = make_zip({"work.txt": b"text"})
    (tmp_path / "1.zip").write_bytes(inner)
    (tmp_path / "2.txt").write_bytes(b"more")
    assert [data for _, data in read(tmp_path)] == [b"more"]
    assert [data for _, data in read(tmp_path, (".txt", ".zip"))] == [b"text", b"more"]
    assert total_size(tmp_path, (".txt", ".zip")) == 8

    for name, data in {"all.zip": make_zip({"1.zip": inner}), "all.tar": make_tar({"1.zip": inner})}.items():
        path = tmp_path / "out" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        assert read(path, (".txt", ".zip")) == [(f"{path}!1.zip!work.txt", b"text")]
        assert total_size(path, (".txt", ".zip")) is None


def test_archives_nested_three_deep_are_refused(tmp_path):
    path = tmp_path / "deep.zip"
    path.write_bytes(make_zip({"b.zip": make_zip({"c.zip": make_zip({"d.txt": b"text"})})}))
    assert "nested" in refusal(path, (".txt", ".zip"))


@pytest.mark.parametrize("suffixes", [(".txt",), (".txt", ".zip")])
def test_nothing_there(tmp_path, suffixes):
    assert "no such file" in refusal(tmp_path / "missing", suffixes)
    with pytest.raises(UserError, match="no such file"):
        total_size(tmp_path / "missing", suffixes)
    folder = tmp_path / "empty"
    folder.mkdir()
    assert ".txt" in refusal(folder, suffixes)
    (folder / "picture.png").write_bytes(b"\x89PNG")
    assert ".txt" in refusal(folder, suffixes)
    assert ".txt" in refusal(folder / "picture.png", suffixes)
    (folder / "none.zip").write_bytes(make_zip({"picture.png": b"\x89PNG"}))
    assert ".txt" in refusal(folder / "none.zip", suffixes)


def test_zip_bomb_is_refused_before_anything_is_read(tmp_path):
    path = tmp_path / "bomb.zip"
    path.write_bytes(make_zip({"zero.txt": bytes(50 << 20)}))
    assert path.stat().st_size < 60_000
    assert "bomb" in refusal(path)


def test_zip_bomb_inside_an_archive_is_refused(tmp_path):
    path = tmp_path / "outer.zip"
    path.write_bytes(make_zip({"bomb.zip": make_zip({"zero.txt": bytes(8 << 20)})}, zipfile.ZIP_STORED))
    assert "bomb" in refusal(path, (".txt", ".zip"))


@pytest.mark.parametrize("make", [make_zip, lambda files: gzip.compress(make_tar(files))])
def test_what_a_zip_in_an_archive_may_grow_to_depends_on_the_outer_size(tmp_path, make):
    """Each level alone grows less than 200 times."""
    inner = {"zero.txt": bytes(4 << 20)}
    buffer = io.BytesIO(make_zip(inner))
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_STORED) as archive:
        archive.writestr("padding.bin", bytes(20_000))
    (tmp_path / "inner.zip").write_bytes(buffer.getvalue())
    assert len(read(tmp_path / "inner.zip")[0][1]) == 4 << 20
    path = tmp_path / "outer.tar.gz" if make is not make_zip else tmp_path / "outer.zip"
    path.write_bytes(make({"inner.zip": buffer.getvalue()}))
    assert path.stat().st_size < 2_000
    assert "bomb" in refusal(path, (".txt", ".zip"))


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress, zstd])
def test_tar_bomb_is_refused_though_its_members_are_small_or_of_no_interest(tmp_path, compress):
    path = tmp_path / "bomb.tar.xz"  # the compression is known by its first bytes
    path.write_bytes(compress(make_tar({f"{number}.bin": bytes(1 << 20) for number in range(24)})))
    assert "bomb" in refusal(path)


def test_a_tar_of_sparse_members_is_a_bomb_too(tmp_path):
    """Members of zeros that stand nowhere in the archive, in the old format of GNU tar."""
    headers = b""
    for number in range(4):
        info = tarfile.TarInfo(f"{number}.txt")
        info.type = tarfile.GNUTYPE_SPARSE
        header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
        header[386:410] = b"%011o\0" % 0 * 2  # one piece of no bytes
        header[483:495] = b"%011o\0" % (1 << 20)  # the size it grows to
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        headers += header
    path = tmp_path / "sparse.tar"
    path.write_bytes(headers + bytes(1024))
    with tarfile.open(path) as archive:
        assert [info.size for info in archive] == [1 << 20] * 4
    assert "bomb" in refusal(path)


def tar_of_one(name: str, tar_format: int, pax_headers: dict[str, str]) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = 4
    info.pax_headers = pax_headers
    return info.tobuf(tar_format) + b"text" + bytes(508 + 1024)


@pytest.mark.parametrize(
    "data",
    [
        tar_of_one("n" * (4 << 20) + ".txt", tarfile.GNU_FORMAT, {}),
        tar_of_one("a.txt", tarfile.PAX_FORMAT, {"comment": "c" * (4 << 20)}),
        b"".join(tar_of_one("", tarfile.PAX_FORMAT, {"comment": "c" * 600})[:1536] for _ in range(600)),
    ],
    ids=["a name", "an attribute", "hundreds of headers"],
)
def test_headers_of_a_tar_are_not_read_without_a_bound(tmp_path, data):
    path = tmp_path / "w.tar"
    path.write_bytes(data + make_tar(TEXTS))
    assert re.search("bytes of headers|damaged", refusal(path))


def test_long_names_and_files_between_those_wanted_are_no_matter(tmp_path):
    path = tmp_path / "w.tar"
    name = "長" * 3_000 + ".txt"
    for tar_format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        other = make_tar({"large.bin": bytes(3 << 20), "b.txt": bytes(3 << 20)})
        path.write_bytes(tar_of_one(name, tar_format, {})[:-1024] + other)
        assert [len(data) for _, data in read(path)] == [4, 3 << 20]


def test_a_zip_header_that_names_a_smaller_size_gives_no_more_than_that(tmp_path):
    path = tmp_path / "liar.zip"
    data = make_zip({"zero.txt": bytes(4 << 20)})
    path.write_bytes(data.replace((4 << 20).to_bytes(4, "little"), (100).to_bytes(4, "little")))
    assert "damaged" in refusal(path)


def test_text_that_compresses_well_is_no_bomb(tmp_path):
    text = "".join(f"{number}番目の、どこにでもあるような文である。\n" for number in range(20_000)).encode()
    (tmp_path / "works.zip").write_bytes(make_zip({"a.txt": text}))
    (tmp_path / "works.tar.xz").write_bytes(lzma.compress(make_tar({"a.txt": text})))
    assert read(tmp_path / "works.zip")[0][1] == text
    assert read(tmp_path / "works.tar.xz")[0][1] == text


def test_large_members_are_refused(tmp_path):
    files = {"a.txt": bytes(range(256)) * 8}
    (tmp_path / "a.txt").write_bytes(files["a.txt"])
    (tmp_path / "works.zip").write_bytes(make_zip(files))
    (tmp_path / "works.tar").write_bytes(make_tar(files))
    for name in ("a.txt", "works.zip", "works.tar"):
        assert "2,048 bytes" in refusal(tmp_path / name, member_limit_bytes=2047)
        assert len(next(iter_files(tmp_path / name, (".txt",), member_limit_bytes=2048)).data) == 2048


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_member_names_are_never_paths(tmp_path, make):
    root = tmp_path / "here"
    root.mkdir()
    path = root / ("works.zip" if make is make_zip else "works.tar")
    path.write_bytes(make({"../../escaped.txt": b"1", "/absolute.txt": b"2", "line\nbreak.txt": b"3"}))
    found = read(path)
    assert [data for _, data in found] == [b"1", b"2", b"3"]
    assert all(origin.isprintable() for origin, _ in found)
    assert sorted(tmp_path.rglob("*")) == [root, path]
    assert not (tmp_path.parent / "escaped.txt").exists()


def test_links_and_devices_in_a_tar_are_passed_over(tmp_path):
    path = tmp_path / "links.tar"
    with tarfile.open(path, "w") as archive:
        for name, kind in {
            "link.txt": tarfile.SYMTYPE,
            "hard.txt": tarfile.LNKTYPE,
            "pipe.txt": tarfile.FIFOTYPE,
        }.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
    assert ".txt" in refusal(path)


def test_names_that_are_no_unicode_can_be_reported(tmp_path):
    path = tmp_path / "names.tar"
    with tarfile.open(path, "w", encoding="utf-8", errors="surrogateescape", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("\udc83\udc8c.txt"))
    [(origin, _)] = read(path)
    origin.encode("utf-8")


@pytest.mark.parametrize("keep", [0, 1, 100, 0.5, 0.95])
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("w.zip", make_zip),
        ("w.tar.gz", lambda f: gzip.compress(make_tar(f))),
        ("w.tar.xz", lambda f: lzma.compress(make_tar(f))),
    ],
)
def test_truncated_archives(tmp_path, name, make, keep):
    noise = {
        f"{number}.txt": bytes((index * index * (number + 7)) >> 3 & 255 for index in range(5_000))
        for number in range(3)
    }
    data = make(noise)
    path = tmp_path / name
    path.write_bytes(data[: keep if isinstance(keep, int) else int(len(data) * keep)])
    refusal(path)


def test_truncated_plain_tar(tmp_path):
    path = tmp_path / "w.tar"
    path.write_bytes(make_tar({"a.txt": bytes(5_000)})[:3_000])
    refusal(path)


def test_damaged_content_is_noticed(tmp_path):
    data = bytearray(make_zip({"a.txt": bytes(index * 7 & 255 for index in range(9_999))}))
    data[60] ^= 0xFF
    path = tmp_path / "w.zip"
    path.write_bytes(data)
    assert "damaged" in refusal(path)


@pytest.mark.parametrize("make", [None, make_zip, make_tar], ids=["folder", "zip", "tar"])
def test_a_damaged_archive_among_others_is_told_and_the_rest_is_read(tmp_path, make):
    noise = bytes(index * 7 & 255 for index in range(9_999))
    flipped = bytearray(make_zip({"a.txt": b"text", "b.txt": noise}))
    flipped[200] ^= 0xFF
    files = {"1.zip": bytes(flipped), "2.zip": b"no zip", "3.zip": make_zip({"c.txt": b"more"})}
    files["4.zip"] = make_zip({"d.txt": b"rare"}, zipfile.ZIP_BZIP2)
    path = tmp_path / "works"
    if make is None:
        path.mkdir()
        for name, data in files.items():
            (path / name).write_bytes(data)
    else:
        path = path.with_suffix(".zip" if make is make_zip else ".tar")
        path.write_bytes(make(files))
    names = {name: f"{path}/{name}" if make is None else f"{path}!{name}" for name in files}
    found = list(iter_files(path, (".txt", ".zip")))
    assert [(record.origin, record.data, bool(record.damage)) for record in found] == [
        (f"{names['1.zip']}!a.txt", b"text", False),
        (names["1.zip"], b"", True),
        (names["2.zip"], b"", True),
        (f"{names['3.zip']}!c.txt", b"more", False),
        (names["4.zip"], b"", True),
    ]
    assert total_size(path, (".txt", ".zip")) == (4 + 9_999 + 4 + 4 if make is None else None)


def test_a_header_that_points_before_the_file_is_damage(tmp_path):
    data = bytearray(make_zip({"a.txt": b"text"}))
    at = data.index(b"PK\x05\x06") + 16  # where the directory begins, according to the end of the file
    data[at : at + 4] = (1_000).to_bytes(4, "little")
    (tmp_path / "w.zip").write_bytes(data)
    assert "damaged" in refusal(tmp_path / "w.zip")


def test_encrypted_zip_is_refused(tmp_path):
    data = bytearray(make_zip({"a.txt": b"text"}))
    data[6] |= 1  # the flag in the local header
    data[data.index(b"PK\x01\x02") + 8] |= 1  # and in the directory
    path = tmp_path / "w.zip"
    path.write_bytes(data)
    assert "encrypted" in refusal(path)


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_zip_methods_without_a_bound_are_refused(tmp_path, compression):
    path = tmp_path / "w.zip"
    path.write_bytes(make_zip({"a.txt": b"text"}, compression))
    assert "deflate" in refusal(path)
