"""Texts from everywhere, their tokens, the selection, and a clear word for each that does not serve."""

import gzip
import json
import platform

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny

from qkscope.corpus import documents as module
from qkscope.corpus import documents_from, load_corpus, tokenizer_identity
from qkscope.corpus.texts import Notes, read_texts
from qkscope.errors import CorpusError, HubError
from qkscope.study import CorpusSpec


def spec(source, **changes):
    sources = [source] if isinstance(source, str) else source
    return CorpusSpec(source=sources, **({"chunk": False, "start": "beginning"} | changes))


@pytest.fixture(scope="module")
def tokenizer():
    return tiny.tiny_tokenizer()


class Words:
    """A tokenizer without a backend: the sum of a word's bytes is its token. Counts what it is given."""

    name_or_path = "words"

    def __init__(self):
        self.seen = []

    def __call__(self, texts, **_):
        self.seen += texts
        return {"input_ids": [[sum(word.encode()) for word in text.split()] for text in texts]}


def test_a_single_text_file_is_cut_into_documents_unless_forbidden(tmp_path):
    path = tmp_path / "long.txt"
    path.write_text(" ".join("abcdefghij"))
    cut = load_corpus(spec(str(path), chunk=None), Words(), 4)
    assert [d.name for d in cut.documents] == ["long.txt[0:4]", "long.txt[4:8]", "long.txt[8:10]"]
    assert [d.tokens.tolist() for d in cut.documents] == [[97, 98, 99, 100], [101, 102, 103, 104], [105, 106]]
    assert (cut.filled(4), cut.tokens(4)) == (2, 10)
    assert len(load_corpus(spec(str(path), chunk=False), Words(), 4).documents) == 1
    few = load_corpus(spec(str(path), chunk=None, min_tokens=4, documents=1), Words(), 4)
    assert [d.name for d in few.documents] == ["long.txt[0:4]"]
    again = load_corpus(spec(str(path), chunk=None), Words(), 4, tmp_path / "cache")
    assert (
        again.digest
        == load_corpus(spec(str(path), chunk=None), Words(), 4, tmp_path / "cache").digest
        == cut.digest
    )


def test_several_texts_are_cut_only_on_request(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(" ".join("abcdef"))
    assert len(load_corpus(spec(str(tmp_path), chunk=None), Words(), 4).documents) == 2
    assert len(load_corpus(spec(str(tmp_path), chunk=True), Words(), 4).documents) == 4


def names(source, **changes):
    return [text.name for text in read_texts(spec(source, **changes), Notes())]


def test_a_text_file_is_one_document_tokenised_by_default_rules_and_cut(tmp_path, tokenizer):
    path = tmp_path / "a.txt"
    path.write_text("the cat sat on the mat")
    whole = load_corpus(spec(str(path)), tokenizer, 100)
    assert [d.tokens.tolist() for d in whole.documents] == [tokenizer("the cat sat on the mat")["input_ids"]]
    assert whole.documents[0].tokens.dtype == np.int32
    cut = load_corpus(spec(str(path)), tokenizer, 4)
    assert cut.documents[0].tokens.tolist() == [1, 3, 7, 9]
    assert cut.digest != whole.digest
    assert (whole.filled(7), whole.filled(8), whole.tokens(5)) == (1, 0, 5)
    assert whole.origin == str(path)


def test_a_folder_gives_its_text_files_by_path_and_says_what_it_left_out(tmp_path):
    for name, data in {
        "b/z.md": b"last",
        "a.txt": "\ufeffé".encode(),
        "b.py": b"x = 1",
        "weights.bin": b"\x00\x01",
        "latin.txt": b"caf\xe9",
        "empty.txt": b" \n",
        ".hidden/x.txt": b"hidden",
        "c.jsonl": b'{"text": "record"}\n',
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    notes = Notes()
    texts = list(read_texts(spec(str(tmp_path)), notes))
    assert [(t.name, t.text) for t in texts] == [
        ("a.txt", "é"),
        ("b.py", "x = 1"),
        ("b/z.md", "last"),
        ("c.jsonl:1", "record"),
    ]
    assert any("2 files that are not UTF-8 text (latin.txt, weights.bin)" in w for w in notes.warnings)
    assert any("1 files that are empty (empty.txt)" in w for w in notes.warnings)


def test_what_was_left_out_is_told_also_when_the_selection_ends_early(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"\0")
    for name in "bcd":
        (tmp_path / f"{name}.txt").write_text("some words here")
    corpus = load_corpus(spec(str(tmp_path), documents=1), Words(), 10)
    assert [d.name for d in corpus.documents] == ["b.txt"]
    assert "a.bin" in corpus.warnings[0]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"caf\xe9!", r"not UTF-8 \(byte 0xe9 at offset 3\)"),
        (b"ab\x00", r"binary, not text \(byte 0x00 at offset 2\)"),
        (b" \n", "an empty file"),
    ],
)
def test_a_named_file_that_is_no_text(tmp_path, data, words):
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    with pytest.raises(CorpusError, match=rf"a\.txt: {words}"):
        load_corpus(spec(str(path)), Words(), 10)


def test_sources_follow_one_another(tmp_path):
    for name in ("b.txt", "a.txt"):
        (tmp_path / name).write_text(name)
    assert names([str(tmp_path / "b.txt"), str(tmp_path / "a.txt")]) == ["b.txt", "a.txt"]


@pytest.mark.parametrize("compressed", [False, True])
def test_jsonl(tmp_path, compressed):
    lines = '{"key": 7, "body": "one"}\n\n{"key": "x", "body": "two"}\n{"key": 9, "body": null}\n'
    path = tmp_path / ("a.jsonl.gz" if compressed else "a.jsonl")
    path.write_bytes(gzip.compress(lines.encode()) if compressed else lines.encode())
    notes = Notes()
    texts = list(read_texts(spec(str(path), text_column="body", id_column="key"), notes))
    assert [(t.name, t.text) for t in texts] == [("7", "one"), ("x", "two")]
    assert "1 records without text" in notes.warnings[0]
    assert names(str(path), text_column="body") == [f"{path.name}:1", f"{path.name}:3"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{oops", r"a\.jsonl:2: not JSON .*object"),
        ("[1]", r"a\.jsonl:2: a list; expected an object with 'text'"),
        ('{"txet": "x"}', r"a\.jsonl:2: no column 'text' \(did you mean 'txet'\?\); there are txet"),
        ('{"text": 3}', r"a\.jsonl:2: 'text' is a int; expected text"),
    ],
)
def test_jsonl_mistakes_name_the_line(tmp_path, line, words):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "fine"}\n' + line + "\n")
    with pytest.raises(CorpusError, match=words):
        load_corpus(spec(str(path)), Words(), 10)


def test_jsonl_that_is_not_utf8_names_line_and_byte(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "fine"}\n{"text": "\xff"}\n')
    with pytest.raises(CorpusError, match=r"a\.jsonl:2: not UTF-8 \(byte 0xff at offset 10\)"):
        load_corpus(spec(str(path)), Words(), 10)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_parquet_of_several_row_groups(tmp_path, kind):
    texts = [f"text number {i}" for i in range(50)]
    table = pa.table({"id": list(range(100, 150)), "text": pa.array(texts).cast(kind)})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=7)
    got = list(read_texts(spec(str(path), id_column="id"), Notes()))
    assert [(t.name, t.text) for t in got] == [
        (str(i), t) for i, t in zip(range(100, 150), texts, strict=True)
    ]
    assert names(str(path))[:2] == ["a.parquet:0", "a.parquet:1"]


def test_parquet_mistakes(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"texts": ["x"], "tokens": [[1, 2]]}), path)
    with pytest.raises(
        CorpusError, match=r"no column 'text' \(did you mean 'texts'\?\); there are texts, tokens"
    ):
        names(str(path))
    with pytest.raises(CorpusError, match=r"column 'tokens' holds list<.*>; expected strings"):
        names(str(path), text_column="tokens")
    with pytest.raises(CorpusError, match="no column 'id'"):
        names(str(path), text_column="texts", id_column="id")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CorpusError, match="not a readable parquet file"):
        names(str(path))


def test_the_standard_library_is_the_same_mix_every_time_and_holds_no_tests():
    notes = Notes()
    texts = list(read_texts(spec("stdlib"), notes))
    got = [t.name for t in texts]
    assert got == names("stdlib")
    assert len(got) > 300
    assert got != sorted(got)
    assert "stdlib/json/decoder.py" in got
    assert not [n for n in got if "/test/" in n or "/tests/" in n or "idlelib" in n or "site-packages" in n]
    assert platform.python_version() in notes.origins[0]
    assert sum(len(t.text) for t in texts) > 5_000_000


def test_the_selection_is_the_first_that_are_long_enough(tmp_path):
    path = tmp_path / "a.jsonl"
    lengths = [3, 9, 2, 8, 7, 1, 6]
    path.write_text("".join(json.dumps({"text": "w " * n}) + "\n" for n in lengths))
    corpus = load_corpus(spec(str(path), min_tokens=6, documents=3), Words(), 5)
    assert [(d.index, d.name) for d in corpus.documents] == [
        (0, "a.jsonl:2"),
        (1, "a.jsonl:4"),
        (2, "a.jsonl:5"),
    ]
    assert [len(d.tokens) for d in corpus.documents] == [5, 5, 5]  # cut, but judged by their full length
    assert "2 of 5 texts were left out: they do not have at least 6 tokens (min_tokens)" in corpus.warnings
    fewer = load_corpus(spec(str(path), min_tokens=6, documents=10), Words(), 5)
    assert len(fewer.documents) == 4
    (about_number,) = set(fewer.warnings) - set(fewer.notes)
    assert "10" in about_number
    assert "4" in about_number


def test_filled_counts_documents_and_tokens_counts_their_beginnings(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": "w " * n}) + "\n" for n in (3, 9, 4)))
    corpus = load_corpus(spec(str(path)), Words(), 8)
    assert [corpus.filled(w) for w in (1, 3, 4, 8, 9)] == [3, 3, 2, 1, 0]
    assert [corpus.tokens(w) for w in (1, 4, 8)] == [3, 11, 15]


def test_empty_corpora(tmp_path):
    with pytest.raises(CorpusError, match="no texts"):
        load_corpus(spec(str(tmp_path)), Words(), 10)
    (tmp_path / "a.txt").write_text("three short words")
    with pytest.raises(CorpusError, match=r"none of its 1 texts has .*9 tokens .*min_tokens"):
        load_corpus(spec(str(tmp_path), min_tokens=9), Words(), 10)
    with pytest.raises(CorpusError, match=r"missing: no such file or folder; expected text, a folder"):
        load_corpus(spec(str(tmp_path / "missing")), Words(), 10)
    with pytest.raises(HubError, match="expected hub:owner/name"):
        load_corpus(spec("hub:justaname"), Words(), 10)


def write_records(path, count, start=0):
    path.write_text(
        "".join(json.dumps({"text": f"text number {i}"}) + "\n" for i in range(start, start + count))
    )


def test_texts_are_tokenised_once_and_only_as_many_as_needed(tmp_path):
    write_records(path := tmp_path / "a.jsonl", 100)
    cache = tmp_path / "cache"
    first = Words()
    corpus = load_corpus(spec(str(path), documents=10), first, 50, cache)
    assert len(first.seen) == 10
    again = Words()
    same = load_corpus(spec(str(path), documents=10), again, 50, cache)
    assert again.seen == []
    assert same.digest == corpus.digest
    assert all(
        np.array_equal(a.tokens, b.tokens) for a, b in zip(same.documents, corpus.documents, strict=True)
    )
    more = Words()
    load_corpus(spec(str(path), documents=15), more, 50, cache)
    assert len(more.seen) == 5


def test_a_changed_text_another_tokenizer_or_length_is_tokenised_anew(tmp_path):
    write_records(path := tmp_path / "a.jsonl", 5)
    cache = tmp_path / "cache"
    first = load_corpus(spec(str(path)), Words(), 50, cache)
    write_records(path, 5, start=1)
    changed = Words()
    assert load_corpus(spec(str(path)), changed, 50, cache).digest != first.digest
    assert changed.seen == ["text number 5"]
    shorter = Words()
    load_corpus(spec(str(path)), shorter, 2, cache)
    assert len(shorter.seen) == 5
    other = Words()
    other.name_or_path = "others"
    load_corpus(spec(str(path)), other, 50, cache)
    assert len(other.seen) == 5


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: data[:-1] + b"\xff"])
def test_damaged_tokens_are_noticed_and_made_again(tmp_path, damage, caplog):
    write_records(path := tmp_path / "a.jsonl", 5)
    cache = tmp_path / "cache"
    first = load_corpus(spec(str(path)), Words(), 50, cache)
    kept = next(cache.iterdir())
    kept.write_bytes(damage(kept.read_bytes()))
    again = Words()
    healed = load_corpus(spec(str(path)), again, 50, cache)
    assert healed.digest == first.digest
    assert len(again.seen) == 5
    assert kept.name in caplog.text
    assert "tokenising" in caplog.text
    assert healed.warnings == first.warnings
    assert load_corpus(spec(str(path)), Words(), 50, cache).warnings == []


def test_a_cache_that_cannot_be_written_is_only_a_warning(tmp_path):
    write_records(path := tmp_path / "a.jsonl", 2)
    (tmp_path / "file").touch()
    corpus = load_corpus(spec(str(path)), Words(), 50, tmp_path / "file")
    assert len(corpus.documents) == 2
    assert "for the next run" in corpus.warnings[0]


def test_a_tokenizer_is_known_by_what_it_does(tmp_path, tokenizer):
    tokenizer.save_pretrained(tmp_path)
    from transformers import AutoTokenizer

    copy = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    assert tokenizer_identity(copy) == tokenizer_identity(tokenizer)
    copy("the cat", truncation=True, max_length=2)
    assert tokenizer_identity(copy) == tokenizer_identity(tokenizer)
    copy.add_tokens(["zebra"])
    assert tokenizer_identity(copy) != tokenizer_identity(tokenizer)


def test_long_texts_are_not_complained_about(tokenizer, tmp_path, caplog):
    tokenizer.model_max_length = 4
    (tmp_path / "a.txt").write_text("the cat sat on the mat")
    assert len(load_corpus(spec(str(tmp_path)), tokenizer, 100).documents[0].tokens) == 7
    assert caplog.text == ""


def test_documents_from_memory(tokenizer):
    import torch

    items = ["the cat", [5, 6, 7], np.array([1, 2], np.int64), torch.tensor([[3, 4, 5]]), (9,)]
    documents = documents_from(items, tokenizer, 2)
    assert [d.tokens.tolist() for d in documents] == [[1, 3], [5, 6], [1, 2], [3, 4], [9]]
    assert [d.index for d in documents] == [0, 1, 2, 3, 4]
    assert all(d.tokens.dtype == np.int32 for d in documents)
    assert documents_from([[1, 2, 3]])[0].tokens.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ("a text", "a single text; expected a list"),
        (None, "found None; expected a list of texts"),
        ([], "no documents"),
        ([[1], "text"], "document 1 is text; .*tokenizer"),
        ([[1], []], "document 1 is empty"),
        ([[0.5]], r"document 0: shape \(1,\), float64"),
        ([[-1]], r"document 0: shape \(1,\), int64; expected text or token ids"),
        ([[[1, 2], [3, 4]]], r"shape \(2, 2\)"),
        ([[[1], [2, 3]]], "document 0: neither text nor token ids"),
        ([None], "document 0: shape"),
    ],
)
def test_documents_that_are_none(items, words):
    with pytest.raises(CorpusError, match=words):
        documents_from(items)


def test_the_digest_follows_order_and_borders():
    one = module.digest(documents_from([[1, 2], [3]]))
    assert one == module.digest(documents_from([np.array([1, 2]), [3]]))
    assert (
        len({one, module.digest(documents_from([[3], [1, 2]])), module.digest(documents_from([[1], [2, 3]]))})
        == 3
    )


def test_the_study_files_own_specification_serves(tmp_path, tokenizer):
    from qkscope.study import CorpusSpec

    (tmp_path / "a.txt").write_text("the cat")
    corpus = load_corpus(CorpusSpec(source=[str(tmp_path / "a.txt")]), tokenizer, 10)
    assert [d.tokens.tolist() for d in corpus.documents] == [[1, 3, 7]]


def test_long_texts_are_entered_at_a_seeded_place_and_short_ones_at_their_beginning(tmp_path):
    for name, count in {"long": 500, "other": 500, "short": 6, "exact": 8}.items():
        (tmp_path / f"{name}.txt").write_text(" ".join(chr(1000 + i) for i in range(count)))
    options = {"start": "random"}
    (tmp_path / "other.txt").write_text("x " + (tmp_path / "other.txt").read_text())
    corpus = load_corpus(spec(str(tmp_path), **options), Words(), 8, tmp_path / ".cache")
    names = {d.name.partition("[")[0]: d for d in corpus.documents}
    assert names["short.txt"].name == "short.txt"
    assert names["exact.txt"].name == "exact.txt"
    long, other = names["long.txt"], names["other.txt"]
    assert [len(d.tokens) for d in corpus.documents] == [8, 8, 8, 6]
    start = int(long.name.partition("[")[2].partition(":")[0])
    assert long.name == f"long.txt[{start}:{start + 8}]"
    whole = Words()([(tmp_path / "long.txt").read_text()])["input_ids"][0]
    assert long.tokens.tolist() == whole[start : start + 8] != whole[:8]
    assert other.name.partition("[")[2] != long.name.partition("[")[2]
    assert corpus.usage(8) == "4 documents, 30 of 1,015 tokens"
    again = load_corpus(spec(str(tmp_path), **options), Words(), 8, tmp_path / ".cache")
    assert (again.digest, [d.name for d in again.documents]) == (
        corpus.digest,
        [d.name for d in corpus.documents],
    )
    assert load_corpus(spec(str(tmp_path), **options, seed=1), Words(), 8, tmp_path / ".cache").digest != (
        corpus.digest
    )


def test_random_places_are_spread_over_the_whole_text():
    excerpt = module.Excerpt(64, "random")
    found = np.array([excerpt.offset(str(i).encode(), 164) for i in range(3000)])
    assert (found.min(), found.max()) == (0, 100)
    assert abs(found.mean() - 50) < 3 * np.sqrt(100**2 / 12 / 3000)


def test_what_a_tokenizer_puts_first_stays_first(tmp_path, tokenizer):
    path = tmp_path / "a.txt"
    path.write_text(" ".join(["the", "cat", "sat"] * 40))
    (tmp_path / "b.txt").write_text("unknownword " * 40)
    corpus = load_corpus(spec(str(tmp_path), start="random"), tokenizer, 10)
    assert [d.tokens[0] for d in corpus.documents] == [1, 1]
    assert all(len(d.tokens) == 10 and 1 not in d.tokens[1:] for d in corpus.documents)


def test_content_that_opens_files_looks_like_position_only_when_read_from_the_beginning(tmp_path):
    """A scalar a token that knows nothing of position: files open with other words than they go on with."""
    rng = np.random.default_rng(0)
    for number in range(48):
        opening, rest = rng.integers(1, 3, 64), rng.integers(3, 9, 2000)
        (tmp_path / f"{number}.txt").write_text(" ".join(chr(i) * 2 for i in np.r_[opening, rest] + 96))
    found = {}
    for start in ("beginning", "random"):
        corpus = load_corpus(spec(str(tmp_path), start=start), Words(), 128)
        tokens = np.stack([d.tokens for d in corpus.documents])
        found[start] = np.corrcoef(tokens.ravel(), np.tile(np.arange(128), 48))[0, 1]
    assert found["beginning"] > 0.6
    assert abs(found["random"]) < 0.12


def test_a_file_and_a_folder_that_holds_it_are_the_same_documents(tmp_path):
    (tmp_path / "folder").mkdir()
    path = tmp_path / "folder" / "long.txt"
    path.write_text(" ".join("abcdefghij"))
    for options in ({"chunk": None}, {"chunk": None, "start": "random"}, {"chunk": False}, {"chunk": 3}):
        file, folder = (load_corpus(spec(str(p), **options), Words(), 4) for p in (path, path.parent))
        assert file.digest == folder.digest
        assert [d.name for d in file.documents] == [d.name for d in folder.documents]


def test_texts_are_cut_into_chunks_of_the_length_asked_for(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(" ".join("abcdefghij"))
    cut = load_corpus(spec(str(tmp_path), chunk=3, min_tokens=3), Words(), 4)
    assert [d.name for d in cut.documents[:4]] == ["a.txt[0:3]", "a.txt[3:6]", "a.txt[6:9]", "b.txt[0:3]"]
    assert cut.usage(4) == "6 documents, 18 of 20 tokens"
