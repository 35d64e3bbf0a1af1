"""Random trajectories, clean and dirty, and small tokenizers to read them with."""

import io
import json
import random
from pathlib import Path

import sentencepiece
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import LlamaTokenizerFast, PreTrainedTokenizerFast

WORDS = (
    "the premise says that all some no logicians are careful so option A B C D follows fails because naïve 東京 was "
    "shown . , ; 3 42 x=7 Thought Action Observation Finish 🙂 Context: Thought: e.g. don't"
).split(" ")
KINDS = ("Thought", "Action", "Observation")


def random_trajectory(rng: random.Random) -> str:
    """A response as sampled: steps in free order, blank and continuation lines, empty steps, trailing spaces."""
    lines = [rng.choice(["", " ", " "]) + _words(rng, rng.randint(0, 12))]
    for number in range(1, rng.randint(1, 9)):
        kind = rng.choice(KINDS)
        if rng.random() < 0.15:
            lines.append(f"{kind} {number}:" + rng.choice(["", " ", " a"]))
        else:
            lines.append(f"{kind} {number}: {_words(rng, rng.randint(1, 12))}" + rng.choice(["", "", "  ", "\t"]))
        for _ in range(rng.choice([0, 0, 0, 1, 2])):
            lines.append(rng.choice(["", "   ", _words(rng, 4), "  " + _words(rng, 2)]))
    if rng.random() < 0.8:
        lines.append(f"Action {len(lines)}: Finish[The answer is {rng.choice('ABCD')}.]")
    return "\n".join(lines) + rng.choice(["", "\n", "\n\n"])


def _words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(count))


def _corpus() -> list[str]:
    rng = random.Random(7)
    return ["Thought 1:" + random_trajectory(rng) for _ in range(300)]


QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def qwen_like_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes cut into words as Qwen's tokenizers do: `.` and the line breaks behind it become one token."""
    return _byte_level(QWEN_WORDS)


def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    """GPT-2-like: bytes, leading spaces belong to words, line breaks merge with what precedes them."""
    return _byte_level(r" ?[A-Za-z]+| ?\d| ?[^\sA-Za-z\d]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def _byte_level(words: str) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_regex(words), "isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<eos>", "<pad>"]
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>")


def sentencepiece_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """A BPE of the sentencepiece library with byte fallback, read as Llama-2's is; `folder` takes its files."""
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for text in _corpus() for line in text.split("\n") if line.isascii() and line),
        model_writer=file, model_type="bpe", vocab_size=600, byte_fallback=True, character_coverage=1.0,
        normalization_rule_name="identity", remove_extra_whitespaces=False, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    (folder / "tokenizer.model").write_bytes(file.getvalue())
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "legacy": False}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer"} | names))
    return LlamaTokenizerFast.from_pretrained(folder)


def sentencepiece_like_tokenizer() -> PreTrainedTokenizerFast:
    """Llama-2-like: spaces are `▁`, the text gets one in front, unknown characters fall back to bytes, BOS is added."""
    from tokenizers.processors import TemplateProcessing

    special = ["<unk>", "<s>", "</s>"]
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    draft = Tokenizer(models.BPE(unk_token="<unk>"))
    draft.normalizer = normalizer
    # Without 🙂 and 東京 in the alphabet these are written as bytes; words are cut so that merges do not span lines.
    words = [piece for text in _corpus() for piece in text.replace("\n", " \n ").split(" ") if piece.isascii()]
    draft.train_from_iterator(words, trainers.BpeTrainer(vocab_size=500, special_tokens=special))
    model = json.loads(draft.to_str())["model"]
    vocab = model["vocab"] | {f"<0x{byte:02X}>": len(model["vocab"]) + byte for byte in range(256)}
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizer
    tokenizer.add_special_tokens(special)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<unk>"
    )


def _regex(pattern: str):
    from tokenizers import Regex

    return Regex(pattern)
