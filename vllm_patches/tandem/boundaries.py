"""Word and sentence boundary token ids of a tokenizer, and the check that two models share a vocabulary.

A word boundary is a token whose raw surface begins with the tokenizer's mark of a leading space: "Ġ" (byte-level BPE)
or "▁" (SentencePiece). A sentence boundary is a token whose decoded text ends in a blank line. Added and special tokens
are neither. Source: Tandem-RLVR, build_word_boundary_ids.py (github.com/CSSLab/Tandem-RLVR).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable
from pathlib import Path

BYTE_LEVEL_SPACE = "\u0120"
SENTENCEPIECE_SPACE = "\u2581"
SENTENCE_END = "\n\n"


class VocabularyMismatchError(ValueError):
    """Senior and junior do not read the same token ids the same way."""


@dataclasses.dataclass(frozen=True)
class BoundarySets:
    """Boundary token ids by kind; either may be empty until a strategy needs it."""

    word: frozenset[int] = frozenset()
    sentence: frozenset[int] = frozenset()

    def of(self, kind: str | None) -> frozenset[int]:
        """The set that a strategy with ``boundary=kind`` reads; empty for None."""
        return frozenset() if kind is None else getattr(self, kind)


def word_boundary_ids(tokenizer) -> frozenset[int]:
    """Ids of the tokens that begin with a space.

    Raises:
        ValueError: no token of the vocabulary carries either mark.
    """
    ordinary = _ordinary_tokens(tokenizer)
    # A SentencePiece vocabulary can hold the letter Ġ itself; the mark is the one most tokens carry.
    ids = max(
        (frozenset(i for token, i in ordinary.items() if token.startswith(mark)) for mark in _SPACE_MARKS), key=len
    )
    if not ids:
        raise ValueError(
            f"no token of {_name(tokenizer)} begins with {BYTE_LEVEL_SPACE!r} or {SENTENCEPIECE_SPACE!r}, so words "
            "have no boundary in it; give boundary_token_ids, or choose another selection_strategy"
        )
    return ids


def sentence_boundary_ids(tokenizer) -> frozenset[int]:
    """Ids of the tokens whose decoded text ends in a blank line.

    Raises:
        ValueError: no token does (SentencePiece vocabularies often write line breaks one byte at a time).
    """
    candidates = sorted(_ordinary_tokens(tokenizer).values())
    texts = tokenizer.batch_decode([[i] for i in candidates], clean_up_tokenization_spaces=False)
    ids = frozenset(i for i, text in zip(candidates, texts, strict=True) if text.endswith(SENTENCE_END))
    if not ids:
        raise ValueError(
            f"no token of {_name(tokenizer)} ends in a blank line, so sentences have no boundary in it; give "
            "boundary_token_ids, or choose another selection_strategy"
        )
    return ids


def boundary_sets(tokenizer, needed: Collection[str]) -> BoundarySets:
    """Both sets of a tokenizer; a set outside ``needed`` (``word``, ``sentence``) may come out empty.

    Raises:
        ValueError: a needed set is empty.
    """
    sets = {}
    for kind, build in (("word", word_boundary_ids), ("sentence", sentence_boundary_ids)):
        try:
            sets[kind] = build(tokenizer)
        except ValueError:
            if kind in needed:
                raise
            sets[kind] = frozenset()
    return BoundarySets(**sets)


def read_boundary_ids(source: str | Path | Iterable[int], vocab_size: int) -> frozenset[int]:
    """Boundary ids given by hand: a list, or the path of a JSON file that holds one.

    Raises:
        ValueError: unreadable, empty, not whole numbers, or outside ``[0, vocab_size)``.
    """
    if isinstance(source, str | Path):
        try:
            source = json.loads(Path(source).read_text())
        except (OSError, json.JSONDecodeError) as error:
            raise ValueError(
                f"boundary_token_ids names {source}, which is not a readable JSON file: {error}"
            ) from error
    if not isinstance(source, Iterable) or isinstance(source, str | bytes | dict):
        raise ValueError(f"boundary_token_ids holds {type(source).__name__}; expected a list of token ids")
    ids = list(source)
    wrong = [i for i in ids if not isinstance(i, int) or isinstance(i, bool) or not 0 <= i < vocab_size]
    if wrong or not ids:
        problem = f"{wrong[0]!r} among them" if wrong else "an empty list"
        raise ValueError(f"boundary_token_ids: expected token ids between 0 and {vocab_size - 1}, found {problem}")
    return frozenset(ids)


def check_same_vocabulary(senior_tokenizer, junior_tokenizer) -> None:
    """Refuse two models whose token ids do not mean the same.

    Raises:
        VocabularyMismatchError: the vocabularies differ; says where.
    """
    senior, junior = senior_tokenizer.get_vocab(), junior_tokenizer.get_vocab()
    if senior == junior:
        return
    differing = sorted(token for token in senior.keys() | junior.keys() if senior.get(token) != junior.get(token))
    token = differing[0]
    raise VocabularyMismatchError(
        f"senior {_name(senior_tokenizer)} ({len(senior)} tokens) and junior {_name(junior_tokenizer)} ({len(junior)} "
        f"tokens) have different vocabularies: {len(differing)} tokens differ, for instance {token!r} is id "
        f"{senior.get(token)} and {junior.get(token)}; tandem decoding needs one tokenizer for both models"
    )


_SPACE_MARKS = (BYTE_LEVEL_SPACE, SENTENCEPIECE_SPACE)


def _ordinary_tokens(tokenizer) -> dict[str, int]:
    vocabulary = tokenizer.get_vocab()
    apart = set(tokenizer.get_added_vocab().values()) | set(tokenizer.all_special_ids)
    return {token: i for token, i in vocabulary.items() if i not in apart}


def _name(tokenizer) -> str:
    return getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
