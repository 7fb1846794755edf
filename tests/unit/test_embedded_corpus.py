"""The corpus of the package: every document whole, under the code of its file."""

from hayakuchi.corpora.document import Document, Record
from hayakuchi.corpora.embedded_corpus import EmbeddedReader
from hayakuchi.text.codes import check_code_name


def documents(reader):
    return [document for record in reader.records() for document in reader.parse(record)]


def test_every_embedded_document_has_title_text_and_the_code_of_its_file():
    reader = EmbeddedReader()
    found = documents(reader)
    assert len({document.code for document in found}) >= 6
    for document in found:
        assert document.title, document.origin
        assert len(document.text) > 50, document.origin
        assert "\n\n" not in document.text
        assert not document.text.startswith("#")
        assert check_code_name(document.code, document.origin) == document.code
        assert document.origin.startswith(f"embedded/{document.code}.txt:")
    assert len({document.text for document in found}) == len(found)
    assert reader.size_bytes() == sum(len(record.data) for record in reader.records())


def test_a_given_code_takes_the_place_of_all():
    found = documents(EmbeddedReader(code="見本"))
    assert {document.code for document in found} == {"見本"}
    assert [d.text for d in found] == [d.text for d in documents(EmbeddedReader())]


def test_documents_are_parted_by_blank_lines_and_placed_by_their_line():
    data = "# 一\nあ\nい\n\n# 二\nう\n\n\n# 三\nえ\n".encode()
    assert EmbeddedReader().parse(Record("embedded/story.txt:1", data)) == [
        Document("あ\nい", "embedded/story.txt:1", "story", "一"),
        Document("う", "embedded/story.txt:5", "story", "二"),
        Document("え", "embedded/story.txt:9", "story", "三"),
    ]
