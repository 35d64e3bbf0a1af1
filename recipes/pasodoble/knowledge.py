"""The texts that the Proposer draws on: any parquet, json, jsonl or Hugging Face dataset with a text column.

Source: PasoDoble, ``knowledge_base.py``. What is drawn is a pure function of (seed, epoch, index), so a resumed
run goes on with the same stream; the original seeds a global generator and starts again from its first document.
"""

import hashlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from recipes.pasodoble.settings import KnowledgeSettings

logger = logging.getLogger(__name__)

_BATCH = 1000
_LOADERS = {".parquet": "parquet", ".jsonl": "json", ".json": "json"}


class KnowledgeBase:
    """Documents, and a uniform draw with replacement from them."""

    def __init__(self, documents: Sequence[str], seed: int = 42):
        """Raises ValueError if there is no document."""
        if not documents:
            raise ValueError("the knowledge base is empty: it needs at least one document")
        self.documents = list(documents)
        self.seed = seed

    def __len__(self) -> int:
        return len(self.documents)

    def draw(self, index: int) -> str:
        """Return the document of draw ``index``."""
        return self.documents[draw_index(self.seed, 0, index, len(self.documents))]

    def fingerprint(self) -> str:
        """Hash documents, their order and the seed, so that a checkpoint made with another base is recognised."""
        digest = hashlib.sha256(str(self.seed).encode())
        for document in self.documents:
            digest.update(hashlib.sha256(document.encode("utf-8", "surrogatepass")).digest())
        return digest.hexdigest()

    @classmethod
    def from_settings(cls, settings: KnowledgeSettings, tokenizer: Any) -> "KnowledgeBase":
        """Load and filter by length. Raises FileNotFoundError or ValueError with what was found and what to do."""
        documents = load_documents(settings.path, split=settings.split, text_column=settings.text_column)
        if settings.max_tokens is not None:
            documents = drop_long_documents(documents, tokenizer, settings.max_tokens)
        return cls(documents, settings.seed)


def draw_index(seed: int, epoch: int, index: int, size: int) -> int:
    """Draw uniformly from ``range(size)``, the same for the same arguments on every machine and library version."""
    digest = hashlib.blake2b(f"{seed}:{epoch}:{index}".encode(), digest_size=16).digest()
    return int.from_bytes(digest) % size


def load_documents(path: str | None, *, split: str = "train", text_column: str = "text") -> list[str]:
    """Load the non-empty texts of ``text_column``.

    Raises:
        FileNotFoundError: if a path that looks like a file or folder does not exist, or the folder holds no data file.
        ValueError: if no path is given, or the column is missing, is not text, or holds no text.
    """
    if path is None:
        raise ValueError("pasodoble.knowledge.path is not set: name a file, a folder or a dataset")
    dataset = _open_dataset(path, split)
    if text_column not in dataset.column_names:
        raise ValueError(
            f"{path} has no column {text_column!r}; it has {dataset.column_names}: set pasodoble.knowledge.text_column"
        )
    documents, empty = [], 0
    for text in dataset[text_column]:
        if text is not None and not isinstance(text, str):
            raise ValueError(f"column {text_column!r} of {path} must hold text, found {type(text).__name__}")
        if text and text.strip():
            documents.append(text)
        else:
            empty += 1
    if not documents:
        raise ValueError(f"column {text_column!r} of {path} holds no text: all {empty} rows are empty")
    if empty:
        logger.warning("%s: left out %d empty rows of %d", path, empty, empty + len(documents))
    return documents


def _open_dataset(path: str, split: str) -> Any:
    from datasets import load_dataset

    place = Path(path).expanduser()
    if place.is_dir():
        files = sorted(str(f) for f in place.rglob("*") if f.suffix in _LOADERS and f.is_file())
        kinds = {_LOADERS[Path(f).suffix] for f in files}
        if len(kinds) != 1:
            held = f"both {sorted(kinds)} files" if kinds else "neither"
            raise FileNotFoundError(f"the folder {path} must hold parquet files or json/jsonl files, it holds {held}")
        return _read_files(path, kinds.pop(), files)
    if place.suffix in _LOADERS:
        if not place.is_file():
            raise FileNotFoundError(f"the knowledge file {path} does not exist")
        return _read_files(path, _LOADERS[place.suffix], [str(place)])
    if place.is_absolute() or path.startswith((".", "~")):
        raise FileNotFoundError(f"{path} is neither a folder nor a file ending in {', '.join(_LOADERS)}")
    try:
        return load_dataset(path, split=split)
    except Exception as error:
        # The hub's client raises a dozen unrelated types for "not there" and "not reachable".
        raise ValueError(f"the knowledge dataset {path!r}, split {split!r}, cannot be loaded: {error}") from error


def _read_files(path: str, kind: str, files: list[str]) -> Any:
    from datasets import load_dataset

    try:
        return load_dataset(kind, data_files=files, split="train")
    except Exception as error:
        # The library raises its own kinds, and what it names is a file of its cache.
        raise ValueError(f"the knowledge in {path} cannot be read as {kind}: {error}") from error


def check_knowledge(settings: KnowledgeSettings, tokenizer: Any) -> None:
    """Raise what :meth:`KnowledgeBase.from_settings` would, without tokenizing more than it takes to be sure."""
    documents = load_documents(settings.path, split=settings.split, text_column=settings.text_column)
    if settings.max_tokens is None:
        return
    for batch in _batches(documents):
        if any(len(ids) <= settings.max_tokens for ids in tokenizer(batch, add_special_tokens=False)["input_ids"]):
            return
    drop_long_documents(documents, tokenizer, settings.max_tokens)


def drop_long_documents(documents: Sequence[str], tokenizer: Any, max_tokens: int) -> list[str]:
    """Keep documents of at most ``max_tokens`` tokens without special ones. Raises ValueError if none is left."""
    kept, shortest = [], None
    for batch in _batches(documents):
        for text, ids in zip(batch, tokenizer(batch, add_special_tokens=False)["input_ids"], strict=True):
            shortest = len(ids) if shortest is None else min(shortest, len(ids))
            if len(ids) <= max_tokens:
                kept.append(text)
    if not kept:
        raise ValueError(
            f"all {len(documents)} documents are longer than {max_tokens} tokens (the shortest has {shortest}): raise "
            "pasodoble.knowledge.max_tokens and the Proposer's prompt length, or split the documents"
        )
    if len(kept) < len(documents):
        logger.info("kept %d of %d documents of at most %d tokens", len(kept), len(documents), max_tokens)
    return kept


def _batches(documents: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(documents), _BATCH):
        yield list(documents[start : start + _BATCH])
