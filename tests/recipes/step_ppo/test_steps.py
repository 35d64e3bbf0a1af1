"""Step ends on text and on tokens."""

import random
import sys
from pathlib import Path

import pytest

from recipes.step_ppo.steps import covering_tokens, decode_response, generated_tokens, segment, segment_response

sys.path.insert(0, str(Path(__file__).parent))
from trajectories import byte_level_tokenizer, random_trajectory, sentencepiece_like_tokenizer  # noqa: E402

TOKENIZERS = {"byte-level": byte_level_tokenizer, "sentencepiece-like": sentencepiece_like_tokenizer}


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizer(request):
    return TOKENIZERS[request.param]()


def ends_by_reading_lines(text: str) -> list[int]:
    """The definition in words, line by line: where each counted step's last non-blank line ends."""
    lines = text.split("\n")
    blocks: list[list[int]] = []
    for number, line in enumerate(lines):
        if line.startswith(("Thought ", "Action ", "Observation ")):
            blocks.append([number])
        elif blocks:
            blocks[-1].append(number)
    started, ends = False, []
    for block in blocks:
        first = lines[block[0]].startswith("Thought 1:")
        started = started or first
        while not lines[block[-1]].strip():
            block.pop()
        content = "\n".join(lines[block[0] : block[-1] + 1]).split(" ", 1)[1].strip()
        if started and (len(content) >= 5 or first):
            ends.append(len("\n".join(lines[: block[-1] + 1])))
    return ends


def test_steps_of_a_small_trajectory():
    text = "Thought 1: see\n\nwhy\nAction 1: look up  \n\nObservation 1: xy\nAction 2: Finish[The answer is A.]\n"
    steps = segment(text)
    assert [s.kind for s in steps] == ["Thought", "Action", "Observation", "Action"]
    assert [text[s.start : s.end] for s in steps][:2] == ["Thought 1: see\n\nwhy", "Action 1: look up  "]


def test_short_steps_are_none_except_the_first_thought():
    text = "Thought 1:\nAction 1: \nObservation 2: y\nThought 3:z\nAction 10: "
    # "2: y" has 4 characters of content, "3:z" has 3, "10:" has 3.
    assert [(s.kind, s.end) for s in segment(text)] == [("Thought", len("Thought 1:"))]
    assert [s.kind for s in segment("Thought 1:\nObservation 2: yz")] == ["Thought", "Observation"]


def test_text_before_the_first_thought_is_ignored():
    text = "Action movies are fun.\nOptions:\nA. x\n\nThought 1: start here\nAction 1: Finish[The answer is A.]"
    steps = segment(text)
    assert text[steps[0].start :].startswith("Thought 1:")
    assert len(steps) == 2
    assert segment("no steps\nAction 1: at all") == []


def test_lines_style():
    assert [(s.kind, s.end) for s in segment("a\n\n b \n", "lines")] == [("Line", 1), ("Line", 6)]
    with pytest.raises(ValueError, match="tree"):
        segment("a", "tree")


def test_response_that_opens_with_a_line_break_ends_its_first_step_in_the_prompt():
    steps = segment_response("\nAction 1: look it up")
    assert [s.end for s in steps] == [0, len("\nAction 1: look it up")]


def test_text_definition_on_1000_random_trajectories():
    rng = random.Random(0)
    for _ in range(1000):
        text = rng.choice(["", "Options:\nA. one\n\n"]) + "Thought 1:" + random_trajectory(rng)
        assert [s.end for s in segment(text)] == ends_by_reading_lines(text), text


def test_encoded_token_ends_on_random_trajectories(tokenizer):
    """The named token completes the step's text, and is the first that does."""
    rng = random.Random(1)
    compared = 0
    for _ in range(300):
        text = "Thought 1:" + random_trajectory(rng)
        encoding = tokenizer(text, return_offsets_mapping=True)
        ends = [s.end for s in segment(text)]
        tokens = covering_tokens(encoding["offset_mapping"], ends)
        assert ends == ends_by_reading_lines(text)
        for end, token in zip(ends, tokens, strict=True):
            before = decode_response(tokenizer, encoding["input_ids"][:token])
            after = decode_response(tokenizer, encoding["input_ids"][: token + 1])
            assert after.startswith(text[:end]) and not before.startswith(text[:end])
            # Where the cut does not split a token, the original's recipe (tokenize the cut text) gives the same index.
            cut = tokenizer(text[:end])["input_ids"]
            if cut == encoding["input_ids"][: len(cut)]:
                assert token == len(cut) - 1
                compared += 1
    assert compared > 300


def test_generated_token_ends_on_random_trajectories(tokenizer):
    """Without offsets, from ids alone, against decoding every prefix."""
    rng = random.Random(2)
    for _ in range(300):
        ids = tokenizer(random_trajectory(rng), add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
        text = decode_response(tokenizer, ids)
        ends = [s.end for s in segment_response(text) if s.end > 0]
        prefixes = [decode_response(tokenizer, ids[: i + 1]) for i in range(len(ids))]
        expected = [next(i for i, prefix in enumerate(prefixes) if prefix.startswith(text[:end])) for end in ends]
        assert generated_tokens(tokenizer, ids, ends) == expected


def test_ids_the_tokenizer_would_not_produce(tokenizer):
    """A policy may spell a text in any tokens: one byte or letter at a time, or with bytes that form no character."""
    rng = random.Random(3)
    for _ in range(200):
        ids = [rng.randrange(3, len(tokenizer)) for _ in range(rng.randint(1, 60))]
        ids += tokenizer("\nAction 1: look it up", add_special_tokens=False)["input_ids"]
        text = decode_response(tokenizer, ids)
        ends = [s.end for s in segment_response(text) if s.end > 0]
        for end, token in zip(ends, generated_tokens(tokenizer, ids, ends), strict=True):
            assert decode_response(tokenizer, ids[: token + 1]).startswith(text[:end])


def test_the_merged_line_break_is_the_step_end():
    tokenizer = byte_level_tokenizer()
    text = "Thought 1: so it follows .\nAction 1: Finish[The answer is A.]"
    encoding = tokenizer(text, return_offsets_mapping=True)
    token = covering_tokens(encoding["offset_mapping"], [segment(text)[0].end])[0]
    assert tokenizer.decode([encoding["input_ids"][token]]).endswith("\n")


def test_the_last_of_several_byte_tokens_counts():
    assert covering_tokens([(0, 0), (0, 2), (2, 3), (2, 3), (2, 3), (3, 5)], [2, 3, 5]) == [1, 4, 5]
    with pytest.raises(ValueError, match="character 4"):
        covering_tokens([(0, 2)], [2, 5])


def test_a_line_ends_at_its_last_token_where_characters_are_written_as_bytes():
    """A row of bytes that ends inside a character decodes to nothing, all of it: prefixes grow and shrink again."""
    from tokenizers import Tokenizer, decoders, models, normalizers
    from transformers import PreTrainedTokenizerFast

    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"abcdefghij.▁"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    backend = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    rng = random.Random(0)
    for _ in range(40):
        lines = ["".join(rng.choices("漢字多行🙂ab .", k=rng.randint(3, 9))) + "終" for _ in range(5)]
        ids = tokenizer("\n".join(lines), add_special_tokens=False)["input_ids"]
        text = decode_response(tokenizer, ids)
        ends = [step.end for step in segment_response(text, "lines")]
        complete = [
            [decode_response(tokenizer, ids[: i + 1]).startswith(text[:end]) for i in range(len(ids))] for end in ends
        ]
        assert generated_tokens(tokenizer, ids, ends) == [row.index(True) for row in complete]
