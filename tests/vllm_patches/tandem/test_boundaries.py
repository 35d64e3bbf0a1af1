"""Boundary sets on a byte-level BPE tokenizer and on a SentencePiece-style one."""

import json

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from vllm_patches.tandem.boundaries import (
    BoundarySets,
    VocabularyMismatchError,
    boundary_sets,
    check_same_vocabulary,
    read_boundary_ids,
    sentence_boundary_ids,
    word_boundary_ids,
)

TEXT = ["the cat sat on the mat .\n\nthe cat ran .\n\nso the mat was free .\n\n"] * 20


def byte_level(text=TEXT, specials=("<eos>", " <pad>")) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=list(specials), initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(text, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


def sentencepiece() -> PreTrainedTokenizerFast:
    pieces = ["<unk>", "<s>", "</s>", "▁the", "▁cat", "s", "▁", "Ġ", "Ġo", "at", "\n"]
    tokenizer = Tokenizer(models.Unigram([(piece, -1.0 * i) for i, piece in enumerate(pieces)], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_tokens(["▁added"])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def test_byte_level_words_begin_with_a_space():
    tokenizer = byte_level()
    ids = word_boundary_ids(tokenizer)
    assert {tokenizer.decode([i])[0] for i in ids} == {" "}
    assert tokenizer.convert_tokens_to_ids("Ġcat") in ids
    assert tokenizer.convert_tokens_to_ids("cat") not in ids
    assert not ids & set(tokenizer.all_special_ids)
    assert not ids & set(tokenizer.get_added_vocab().values())


def test_sentencepiece_words_begin_with_the_low_line_and_added_tokens_are_no_words():
    tokenizer = sentencepiece()
    assert {tokenizer.convert_ids_to_tokens(i) for i in word_boundary_ids(tokenizer)} == {"▁the", "▁cat", "▁"}


def test_sentences_end_in_a_blank_line():
    tokenizer = byte_level()
    ids = sentence_boundary_ids(tokenizer)
    assert ids
    for i in range(len(tokenizer)):
        special = i in tokenizer.all_special_ids or i in tokenizer.get_added_vocab().values()
        assert (i in ids) == (tokenizer.decode([i]).endswith("\n\n") and not special)


def test_an_empty_set_is_an_error_only_where_it_is_needed():
    tokenizer = sentencepiece()
    with pytest.raises(ValueError, match="blank line"):
        sentence_boundary_ids(tokenizer)
    with pytest.raises(ValueError, match="blank line"):
        boundary_sets(tokenizer, needed={"sentence"})
    sets = boundary_sets(tokenizer, needed={"word"})
    assert sets.sentence == frozenset() and sets.of("word") and sets.of(None) == frozenset()
    bare = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    with pytest.raises(ValueError, match="no boundary"):
        word_boundary_ids(PreTrainedTokenizerFast(tokenizer_object=bare, unk_token="<unk>"))


def test_ids_by_hand(tmp_path):
    path = tmp_path / "ids.json"
    path.write_text("[3, 5]")
    assert read_boundary_ids(str(path), 10) == read_boundary_ids([3, 5], 10) == frozenset({3, 5})
    for bad in ([], [10], [-1], [1.0], ["3"], [True], {"3": 1}, 7):
        with pytest.raises(ValueError, match="boundary_token_ids"):
            read_boundary_ids(bad, 10)
    for text in ("not json", json.dumps({"a": 1}), "3"):
        path.write_text(text)
        with pytest.raises(ValueError, match="boundary_token_ids"):
            read_boundary_ids(path, 10)
    with pytest.raises(ValueError, match="not a readable JSON file"):
        read_boundary_ids(tmp_path / "absent.json", 10)


def test_the_same_vocabulary_passes_and_another_is_refused_with_an_example():
    check_same_vocabulary(byte_level(), byte_level())
    with pytest.raises(VocabularyMismatchError, match="different vocabularies.*is id"):
        check_same_vocabulary(byte_level(), byte_level(["a different text with other words\n\n"] * 20))
    with pytest.raises(VocabularyMismatchError):
        check_same_vocabulary(byte_level(), byte_level(specials=("<eos>", " <pad>", "<more>")))


def test_sets_are_values():
    assert BoundarySets(frozenset({1})) == BoundarySets(frozenset({1}), frozenset())
