from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lacuna.contract.errors import DocumentsUnusable
from workers.documents import corpus


@pytest.fixture
def tokenizer(make_tokenizer: Callable[..., Any]) -> Any:
    return make_tokenizer()


def prose(number: int, size: int = 600) -> str:
    return corpus.builtin_text()[number * 5_000 : number * 5_000 + size]


def ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def test_beginnings_of_texts_come_first(tokenizer: Any, tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text(prose(number))
    found = corpus.corpus_pieces(tokenizer, tmp_path, 20, 3)
    assert found == [ids(tokenizer, prose(number))[:20] for number in range(3)]


def test_then_their_second_pieces(tokenizer: Any, tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"{number}.txt").write_text(prose(number))
    found = corpus.corpus_pieces(tokenizer, tmp_path, 20, 4)
    whole = [ids(tokenizer, prose(number)) for number in range(2)]
    assert found == [whole[0][:20], whole[1][:20], whole[0][20:40], whole[1][20:40]]


def test_each_jsonl_line_is_a_text_and_short_ones_are_passed_over(
    tokenizer: Any, tmp_path: Path
) -> None:
    lines = [json.dumps({"text": text, "id": 1}) for text in ("short", prose(0), prose(1))]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n\n")
    found = corpus.corpus_pieces(tokenizer, tmp_path, 30, 2)
    assert found == [ids(tokenizer, prose(0))[:30], ids(tokenizer, prose(1))[:30]]


def test_parquet_rows_are_texts(tokenizer: Any, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = importlib.import_module("pyarrow.parquet")
    table = pyarrow.table({"text": [prose(0), None, prose(1)], "score": [1, 2, 3]})
    parquet.write_table(table, tmp_path / "a.parquet")
    found = corpus.corpus_pieces(tokenizer, tmp_path, 30, 2)
    assert found == [ids(tokenizer, prose(0))[:30], ids(tokenizer, prose(1))[:30]]
    parquet.write_table(pyarrow.table({"body": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(DocumentsUnusable, match=r"a\.parquet has no column `text`"):
        corpus.corpus_pieces(tokenizer, tmp_path, 30, 2)
    (tmp_path / "a.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(DocumentsUnusable, match=r"a\.parquet is not a readable Parquet file"):
        corpus.corpus_pieces(tokenizer, tmp_path, 30, 2)


def test_parquet_without_pyarrow_says_what_is_missing(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.import_module

    def without(name: str) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name)

    monkeypatch.setattr(importlib, "import_module", without)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(DocumentsUnusable, match="needs the Python package pyarrow"):
        corpus.corpus_pieces(tokenizer, tmp_path, 30, 2)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{not json", "line 2 of a.jsonl is not JSON"),
        ('{"body": "x"}', "line 2 of a.jsonl has no string field `text`"),
        ('["text"]', "line 2 of a.jsonl has no string field `text`"),
        ('{"text": 5}', "line 2 of a.jsonl has no string field `text`"),
    ],
)
def test_a_bad_line_is_named(line: str, complaint: str, tokenizer: Any, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "short"}) + "\n" + line + "\n")
    with pytest.raises(DocumentsUnusable, match=complaint):
        corpus.corpus_pieces(tokenizer, tmp_path, 30, 2)


def test_reads_no_further_than_needed(tokenizer: Any, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(prose(0))
    (tmp_path / "b.jsonl").write_text("{broken")
    assert len(corpus.corpus_pieces(tokenizer, tmp_path, 30, 1)) == 1


def test_a_long_text_begins_as_the_whole_of_it_would(tokenizer: Any, tmp_path: Path) -> None:
    text = corpus.builtin_text()
    (tmp_path / "a.txt").write_text(text)
    (found,) = corpus.corpus_pieces(tokenizer, tmp_path, 2_000, 1)
    assert found == ids(tokenizer, text)[:2_000]


def test_other_files_and_links_that_lead_outside_are_not_read(
    tokenizer: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "corpora" / "prose"
    folder.mkdir(parents=True)
    (tmp_path / "secret.txt").write_text(prose(0))
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "notes.md").write_text(prose(1))
    assert corpus.corpus_pieces(tokenizer, folder, 20, 2) == []


@pytest.mark.parametrize("name", ["missing", "..", "../other", ".", "file", "outside", "a/../.."])
def test_names_stay_below_the_corpus_folder(name: str, tmp_path: Path) -> None:
    root = tmp_path / "corpora"
    root.mkdir()
    (tmp_path / "other").mkdir()
    (root / "file").write_text("x")
    (root / "outside").symlink_to(tmp_path / "other")
    with pytest.raises(DocumentsUnusable, match="no corpus is named"):
        corpus.corpus_folder(name, root)


def test_without_a_corpus_folder_there_are_none() -> None:
    with pytest.raises(DocumentsUnusable, match="LACUNA_CORPUS_DIR"):
        corpus.corpus_folder("prose", None)


def test_a_check_may_end_the_reading(tokenizer: Any, tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text(prose(number))

    class Stop(Exception):
        pass

    def stop() -> None:
        raise Stop

    with pytest.raises(Stop):
        corpus.corpus_pieces(tokenizer, tmp_path, 20, 3, stop)
