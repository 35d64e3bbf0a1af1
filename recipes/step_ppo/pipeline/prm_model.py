"""The process reward model: a decoder with a linear head of K + 1 classes at every token, in the Hugging Face
token-classification form.

vLLM serves that form as it is (`--runner pooling`, task `token_classify`). The head has no bias, as in the LPR code
(models/llama.py): the form demands the parameter, so it is kept at zero and frozen.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForTokenClassification, AutoTokenizer, PreTrainedModel

from recipes.step_ppo.labels import trajectory_value
from recipes.step_ppo.pipeline.data import Question
from recipes.step_ppo.tokens import EncodedTrajectory, Prompt


@dataclass(frozen=True)
class PRMExample:
    """One trajectory with all its labelled prefixes.

    The LPR code makes one sequence of every labelled prefix. For a causal model, the logits at the last token of a
    prefix do not depend on what follows, so one pass over the whole trajectory reads them all.

    Attributes:
        labels: character positions in `response`, one past the last character of a prefix, and its hits.
    """

    key: str
    id: str
    prompt: Prompt
    response: str
    labels: tuple[tuple[int, int], ...]


def prm_examples(
    questions: Mapping[str, Question],
    trajectories: Iterable[dict],
    values: Iterable[dict],
    *,
    num_completions: int,
    whole_trajectories: bool = True,
) -> Iterator[PRMExample]:
    """Join trajectories with the values of their states.

    Only questions that have at least one valued state give examples: the others were not part of the PRM's sample.

    Args:
        trajectories: records of `collect`. values: records of `complete`.
        num_completions: K; a whole trajectory is labelled K when right and 0 when wrong.
        whole_trajectories: whether to add that label.

    Raises:
        ValueError: a value of another K, a state that is no prefix of its trajectory, or an unknown question.
    """
    labels: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    valued_ids: set[str] = set()
    for record in values:
        if record["num_completions"] != num_completions:
            raise ValueError(
                f"{record['key']} was valued with {record['num_completions']} completions, not {num_completions}"
            )
        if record["value"] is not None:
            if record["value"] > num_completions:
                raise ValueError(f"{record['key']} has {record['value']} hits of {num_completions} completions")
            valued_ids.add(record["id"])
            labels[record["id"], record["response_index"]][record["prefix_length"]] = record["value"]
    for trajectory in trajectories:
        if trajectory["id"] not in valued_ids:
            continue
        for index, response in enumerate(trajectory["responses"]):
            text = response["text"]
            value_at = dict(labels.get((trajectory["id"], index), {}))
            if any(f"{text}\n"[length : length + 1] != "\n" for length in value_at):
                raise ValueError(
                    f"response {index} of question {trajectory['id']} has a state that ends at no line of it: other "
                    "trajectories?"
                )
            if whole_trajectories:
                value_at.setdefault(len(text), trajectory_value(response["correct"], num_completions))
            if value_at:
                if trajectory["id"] not in questions:
                    raise ValueError(f"the records name question {trajectory['id']}, which the data does not hold")
                prompt = questions[trajectory["id"]].prompt
                key = f"{trajectory['id']}/{index}"
                yield PRMExample(key, trajectory["id"], prompt, text, tuple(sorted(value_at.items())))


def replayed(examples: list[PRMExample], fraction: float, seed: int) -> list[PRMExample]:
    """A random share of the examples of an earlier round, at least one, in their order.

    Source: LPR code, data/general.py (replay of 10 % of the first PRM's data in iteration 1).

    Raises:
        ValueError: fraction outside [0, 1].
    """
    if not 0 <= fraction <= 1:
        raise ValueError(f"the replay fraction must lie in [0, 1], found {fraction}")
    count = min(len(examples), max(1, round(fraction * len(examples)))) if fraction else 0
    chosen = sorted(random.Random(f"replay/{seed}").sample(range(len(examples)), count))
    return [examples[i] for i in chosen]


IGNORED = -100


def load_prm(path: str, num_labels: int | None = None, **options) -> PreTrainedModel:
    """Load a PRM, or give a language model a fresh head.

    Args:
        path: checkpoint of a PRM (then `num_labels` must agree with it or be None) or of a causal language model.
        num_labels: K + 1.
        options: further arguments of `from_pretrained`, such as `dtype`.

    Raises:
        ValueError: the checkpoint's head has another number of classes, or there is no head and no number was given.
    """
    config = AutoConfig.from_pretrained(path)
    is_prm = any("ForTokenClassification" in name for name in config.architectures or ())
    if is_prm and num_labels not in (None, config.num_labels):
        raise ValueError(f"{path} has a head of {config.num_labels} classes, not {num_labels}")
    if not is_prm and num_labels is None:
        raise ValueError(f"{path} is no process reward model: its architecture is {config.architectures}")
    if not is_prm:
        config.num_labels = num_labels
    # Many configurations have no field for it, and the form's own default is a dropout of 0.1.
    config.classifier_dropout = 0.0
    model = AutoModelForTokenClassification.from_pretrained(path, config=config, **options)
    head = prm_head(model)
    if head.bias is not None:
        if is_prm and head.bias.detach().abs().max() > 0:
            raise ValueError(f"{path} has a head with a bias, which no model of this recipe has")
        torch.nn.init.zeros_(head.bias)
        head.bias.requires_grad_(False)
    return model


def prm_head(model: PreTrainedModel) -> torch.nn.Linear:
    """The linear layer over the classes.

    Raises:
        ValueError: an architecture whose head is not a single layer called `score`, which vLLM could not serve.
    """
    head = getattr(model, "score", None)
    if not isinstance(head, torch.nn.Linear):
        raise ValueError(f"{type(model).__name__} has no linear head called 'score'")
    return head


def collate(batch: Sequence[dict], pad_token_id: int) -> dict[str, Tensor]:
    """Pad examples on the right to (B, T): `input_ids`, `attention_mask`, `labels` (IGNORED away from step ends)."""
    length = max(len(example["input_ids"]) for example in batch)
    fill = {"input_ids": pad_token_id, "attention_mask": 0, "labels": IGNORED}
    rows = {name: [] for name in fill}
    for example in batch:
        for name, value in fill.items():
            column = example.get(name, [1] * len(example["input_ids"]))
            rows[name].append([*column, *[value] * (length - len(column))])
    return {name: torch.tensor(values) for name, values in rows.items()}


@torch.no_grad()
def step_probabilities(
    model: PreTrainedModel, trajectories: Sequence[EncodedTrajectory], *, pad_token_id: int, batch_size: int = 8
) -> list[Tensor]:
    """Class probabilities at every step end, one forward pass per batch of trajectories.

    Returns:
        For each trajectory a float32 tensor (steps, K + 1).
    """
    model.eval()
    order = sorted(range(len(trajectories)), key=lambda i: len(trajectories[i].ids))
    probabilities: list[Tensor] = [torch.empty(0)] * len(trajectories)
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        batch = collate(
            [{"input_ids": trajectories[i].ids, "labels": [IGNORED] * len(trajectories[i].ids)} for i in rows],
            pad_token_id,
        )
        inputs = {name: batch[name].to(model.device) for name in ("input_ids", "attention_mask")}
        hidden = model.base_model(**inputs, use_cache=False).last_hidden_state
        for row, i in enumerate(rows):
            logits = prm_head(model)(hidden[row, trajectories[i].ends])
            probabilities[i] = logits.float().softmax(dim=-1).cpu()
    return probabilities


def export_backbone(prm_path: str, output: str) -> None:
    """Write the PRM without its head, as verl's critic wants it: there a value head of one output is made anew.

    A head of another shape would end verl's loading with an error; see "Critic" in REFERENCE.md.
    """
    model = load_prm(prm_path, dtype="auto")
    weights = {name: value for name, value in model.state_dict().items() if not name.startswith("score.")}
    model.config.num_labels = 1
    model.save_pretrained(output, state_dict=weights)
    AutoTokenizer.from_pretrained(prm_path).save_pretrained(output)
