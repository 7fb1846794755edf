"""Archives are streamed in order, never unpacked, and bombs, damage and nothing-there are one clear line each."""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from pathlib import Path

import pytest

from hayakuchi.corpora.archives import iter_files, total_size
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
    return list(iter_files(path, suffixes))


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


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress, zstd])
def test_tar_bomb_is_refused_though_its_members_are_small_or_of_no_interest(tmp_path, compress):
    path = tmp_path / "bomb.tar.xz"  # the compression is known by its first bytes
    path.write_bytes(compress(make_tar({f"{number}.bin": bytes(1 << 20) for number in range(24)})))
    assert "bomb" in refusal(path)


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
        assert len(next(iter_files(tmp_path / name, (".txt",), member_limit_bytes=2048))[1]) == 2048


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
