"""The same text in Shift_JIS and in the other encodings of JIS X 0208 is the same text."""

import pytest

from hayakuchi.corpora import plain
from hayakuchi.corpora.shift_jis import decode_shift_jis, is_damaged_utf8


def test_every_character_of_jis_x_0208_is_that_of_the_jis_tables():
    different = []
    for row in range(1, 95):
        for cell in range(1, 95):
            try:
                meant = bytes([0xA0 + row, 0xA0 + cell]).decode("euc_jp")
            except UnicodeDecodeError:
                continue
            lead = (row + 0x101) // 2 if row <= 62 else (row + 0x181) // 2
            trail = cell + (0x9E if row % 2 == 0 else 0x3F if cell < 64 else 0x40)
            if decode_shift_jis(bytes([lead, trail])) != meant:
                different.append(meant)
    assert not different


def test_windows_extensions_and_half_width_katakana():
    assert decode_shift_jis("①㈱纊ﾊﾟ髙ASCII\\~".encode("cp932")) == "①㈱纊ﾊﾟ髙ASCII\\~"


@pytest.mark.parametrize("byte", [0x80, 0xA0, 0xFD, 0xFE, 0xFF])
def test_bytes_that_shift_jis_does_not_have(byte):
    with pytest.raises(UnicodeDecodeError) as caught:
        decode_shift_jis("朝①".encode("cp932") + bytes([byte]) + "夜".encode("cp932"))
    assert caught.value.start == 4


@pytest.mark.parametrize("text", ["受精は卵管で起こり、", "実際、ブラ・ラ"])
def test_utf8_that_is_cut_off_is_not_taken_for_shift_jis(text):
    data = text.encode()[:-1]
    with pytest.raises(UnicodeDecodeError) as caught:
        data.decode()
    data.decode("cp932")  # raises nothing: 蜿礼ｲｾ縺ｯ ...
    assert is_damaged_utf8(data, caught.value.start)
    with pytest.raises(UnicodeDecodeError, match="utf-8"):
        plain.decode(data)


@pytest.mark.parametrize("encoding", ["cp932", "euc_jp"])
@pytest.mark.parametrize("text", ["朝が来た。", "カタカナ", "漢字文", "ﾊﾝｶｸ", "ASCII、そして"])
def test_older_encodings_are_no_damaged_utf8(encoding, text):
    data = text.encode(encoding)
    with pytest.raises(UnicodeDecodeError) as caught:
        data.decode()
    assert not is_damaged_utf8(data, caught.value.start)
