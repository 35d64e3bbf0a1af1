"""A language model of a few ten thousand parameters, small enough to train a policy in under a minute on one core.

The experiments in this folder need many runs: arms, learning rates, seeds. They keep what a method is made of, the pure
functions of its recipe, and leave out what only scale needs (verl, Ray, vLLM); the recipes' own runs are in
``recipes/*/README.md``.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

PAD, EOS = 0, 1


class Alphabet:
    """Characters as token ids; 0 pads and 1 ends a text.

    Raises:
        ValueError: a character twice, or, on encoding, one that is not in the alphabet or texts of several lengths.
    """

    def __init__(self, characters: str):
        if len(set(characters)) != len(characters):
            raise ValueError(f"a character stands twice in {characters!r}")
        self.characters = characters
        self.ids = {character: number for number, character in enumerate(characters, start=2)}

    def __len__(self) -> int:
        return len(self.characters) + 2

    def encode(self, texts: Sequence[str]) -> Tensor:
        """(B, T) ids of texts of one length T, which keeps positions free of padding."""
        if len({len(text) for text in texts}) != 1:
            raise ValueError("the texts of a batch must have one length, so that none needs padding")
        try:
            return torch.tensor([[self.ids[character] for character in text] for text in texts])
        except KeyError as error:
            raise ValueError(f"{error.args[0]!r} is not in the alphabet {self.characters!r}") from None

    def decode(self, ids: Tensor) -> list[str]:
        """The text of each row of (B, T), up to its first end or padding."""
        texts = []
        for row in ids.tolist():
            kept = row[: next((place for place, number in enumerate(row) if number in (PAD, EOS)), len(row))]
            texts.append("".join(self.characters[number - 2] for number in kept))
        return texts


@dataclass(frozen=True)
class Responses:
    """A batch of sampled responses.

    Attributes:
        prompts: (B, P) ids.
        ids: (B, T) ids, padded with 0 after the end.
        mask: (B, T) bool, true up to and including the end.
        log_probs: (B, T) of the policy that wrote them, at temperature 1, 0 where masked.
        texts: B decoded responses, without the end.
    """

    prompts: Tensor
    ids: Tensor
    mask: Tensor
    log_probs: Tensor
    texts: list[str]


def make_model(alphabet: Alphabet, *, seed: int, width: int = 64, layers: int = 2, context: int = 128):
    """A random LLaMA of `layers` layers; the same seed gives the same weights."""
    config = LlamaConfig(
        vocab_size=len(alphabet),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=context,
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


@torch.no_grad()
def sample(
    model, alphabet: Alphabet, prompts: Sequence[str], *, max_tokens: int, generator: torch.Generator, greedy=False
) -> Responses:
    """One response to each prompt, at temperature 1 or greedily; prompts have one length."""
    start = ids = alphabet.encode(prompts)
    past, written, log_probs = None, [], []
    ended = torch.zeros(len(prompts), dtype=torch.bool)
    for _ in range(max_tokens):
        seen = model(ids, past_key_values=past, use_cache=True)
        past, scores = seen.past_key_values, without_padding(seen.logits[:, -1])
        chosen = scores.argmax(-1) if greedy else torch.multinomial(scores.exp(), 1, generator=generator)[:, 0]
        log_probs.append(torch.where(ended, 0.0, scores.gather(1, chosen[:, None])[:, 0]))
        written.append(torch.where(ended, PAD, chosen))
        ended = ended | (chosen == EOS)
        ids = written[-1][:, None]
        if bool(ended.all()):
            break
    tokens = torch.stack(written, dim=1)
    return Responses(start, tokens, tokens != PAD, torch.stack(log_probs, dim=1), alphabet.decode(tokens))


def log_probs_of(model, prompts: Tensor, ids: Tensor) -> Tensor:
    """(B, T) log-probability of each response token, with gradient; meaningless where `ids` is padding."""
    logits = model(torch.cat([prompts, ids], dim=1)).logits[:, prompts.shape[1] - 1 : -1]
    return without_padding(logits).gather(2, ids[..., None])[..., 0]


def without_padding(logits: Tensor) -> Tensor:
    """Log-probabilities with the padding token impossible: a response that wrote it would end unseen."""
    logits = logits.clone()
    logits[..., PAD] = -torch.inf
    return logits.log_softmax(-1)


def warm_up(model, alphabet: Alphabet, make_pair, *, steps: int, generator: torch.Generator, batch=128, rate=2e-3):
    """Supervised training on (prompt, response) pairs that `make_pair(generator)` draws; the model itself is changed.

    Responses may have several lengths; the end token is added.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    for _ in range(steps):
        prompts, responses = zip(*(make_pair(generator) for _ in range(batch)), strict=True)
        ids = padded(alphabet, responses)
        losses = log_probs_of(model, alphabet.encode(prompts), ids)
        loss = -torch.where(ids != PAD, losses, 0.0).sum() / (ids != PAD).sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def padded(alphabet: Alphabet, responses: Sequence[str]) -> Tensor:
    """(B, T) ids of responses with their end, padded behind it."""
    length = max(map(len, responses)) + 1
    ids = torch.full((len(responses), length), PAD)
    for row, text in zip(ids, responses, strict=True):
        row[: len(text) + 1] = torch.tensor([*(alphabet.ids[character] for character in text), EOS])
    return ids


def copy_of(model):
    """A copy with weights of its own, for a frozen reference or another arm."""
    return copy.deepcopy(model)
