"""Documents come from any table with a text column, by a draw that a resumed run repeats."""

import json
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recipes.pasodoble.knowledge import KnowledgeBase, draw_index, drop_long_documents, load_documents
from recipes.pasodoble.settings import KnowledgeSettings


class WordTokenizer:
    """One token for each word."""

    def __call__(self, texts, add_special_tokens):
        assert add_special_tokens is False
        return {"input_ids": [list(range(len(text.split()))) for text in texts]}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


ROWS = [{"text": "primes are infinite"}, {"text": "triangles have three sides"}, {"text": "e"}]


@pytest.mark.parametrize("name", ["k.parquet", "k.jsonl"])
def test_a_file_is_read(tmp_path, name):
    assert load_documents(write(tmp_path / name, ROWS)) == [row["text"] for row in ROWS]


def test_a_folder_is_read(tmp_path):
    write(tmp_path / "k" / "b.jsonl", ROWS[1:])
    write(tmp_path / "k" / "a.jsonl", ROWS[:1])
    assert load_documents(str(tmp_path / "k")) == [row["text"] for row in ROWS]


def test_empty_rows_are_left_out(tmp_path):
    path = write(tmp_path / "k.jsonl", [{"text": ""}, {"text": None}, {"text": "  \n"}, {"text": "kept"}])
    assert load_documents(path) == ["kept"]


def test_long_documents_are_left_out_and_the_limit_itself_is_kept():
    assert drop_long_documents(["a b c", "a b", "a"], WordTokenizer(), 2) == ["a b", "a"]


@pytest.mark.parametrize("rows", [[{"content": "a"}], [{"text": " "}], [{"text": 3}]])
def test_a_bad_table_is_refused(tmp_path, rows):
    with pytest.raises(ValueError):
        load_documents(write(tmp_path / "k.parquet", rows))


def test_missing_and_broken_files_are_refused(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    for name in ("absent.jsonl", "absent", "empty"):
        with pytest.raises(FileNotFoundError):
            load_documents(str(tmp_path / name))
    (tmp_path / "broken.jsonl").write_text('{"text": "a"}\n{"text": ')
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.parquet").write_bytes(b"PAR1 and nothing else")
    for name in ("broken.jsonl", "folder"):
        with pytest.raises(ValueError, match="cannot be read as"):
            load_documents(str(tmp_path / name))
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="cannot be loaded"):
        load_documents("nan", split="train", text_column="text")


def test_only_long_documents_are_refused(tmp_path):
    path = write(tmp_path / "k.jsonl", ROWS[:2])
    with pytest.raises(ValueError, match="the shortest has 3"):
        KnowledgeBase.from_settings(KnowledgeSettings(path=path, max_tokens=2), WordTokenizer())


def test_the_draw_is_a_pure_function_and_uniform():
    base = KnowledgeBase([f"d{i}" for i in range(5)], seed=7)
    stream = [base.draw(i) for i in range(5000)]
    assert stream == [KnowledgeBase(base.documents, seed=7).draw(i) for i in range(5000)]
    assert stream != [KnowledgeBase(base.documents, seed=8).draw(i) for i in range(5000)]
    assert all(abs(count - 1000) < 150 for count in Counter(stream).values())


def test_the_draw_is_the_same_on_every_machine_and_version():
    assert [draw_index(42, 0, i, 1000) for i in range(4)] == [244, 899, 759, 954]


def test_a_changed_base_can_be_told():
    base = KnowledgeBase(["a", "b"], seed=1)
    assert base.fingerprint() == KnowledgeBase(["a", "b"], seed=1).fingerprint()
    others = [KnowledgeBase(["b", "a"], 1), KnowledgeBase(["a", "b"], 2), KnowledgeBase(["ab", ""], 1)]
    assert base.fingerprint() not in {other.fingerprint() for other in others}


def test_an_empty_base_is_refused():
    with pytest.raises(ValueError, match="at least one document"):
        KnowledgeBase([])
