"""The tandem experiment: who writes what, and that only the senior's tokens are trained."""

import pytest
import tandem
import torch
import two_styles
from policy import make_model, padded
from two_styles import ALPHABET

from recipes.tandem.authorship import verified
from vllm_patches.tandem.schedule import ScheduleParams


@pytest.mark.parametrize("strategy", ["word", "sentence"])
def test_the_mask_is_the_one_that_the_recipe_recomputes(strategy):
    senior, junior = (make_model(ALPHABET, seed=seed, width=16, layers=1) for seed in (0, 1))
    prompts = [two_styles.make_prompt(torch.Generator().manual_seed(3))] * 20
    schedules = two_styles.schedules_of(strategy, 0.5, 5, range(20))
    responses, mask = two_styles.write_jointly(senior, junior, prompts, schedules, torch.Generator().manual_seed(0))
    boundary = two_styles.WORDS if strategy == "word" else two_styles.SENTENCE_ENDS
    for row in range(20):
        length = int(responses.mask[row].sum())
        ids, authors = responses.ids[row, :length].tolist(), mask[row, :length].int().tolist()
        verified(authors, ids, ScheduleParams(strategy, 0.5, seed=5, request=row), boundary)
    assert not (mask & ~responses.mask).any()
    assert 0.3 < mask.sum() / responses.mask.sum() < 0.7 or strategy == "sentence"


def updated(senior, ids, mask):
    """The senior after an update on fixed responses of one group and mini-batch."""
    model = tandem.copy_of(senior)
    prompts = ALPHABET.encode(["01234="] * len(ids))
    responses = tandem.Responses(prompts, ids, ids != 0, torch.zeros(ids.shape), [])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tandem.update(model, senior, optimizer, responses, mask, torch.tensor([1.0, 0.0] * (len(ids) // 2)), kl=0.0)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_tokens_of_the_junior_are_not_trained():
    senior = make_model(ALPHABET, seed=0, width=16, layers=1)
    first = padded(ALPHABET, ["ab;cd;#0", "Ab;cD;#1"] * 4)
    other = padded(ALPHABET, ["ab;cd;#0", "Ab;cD;#1"] * 4)
    other[:, 4] = ALPHABET.ids["E"]
    mask = torch.zeros(first.shape, dtype=torch.bool)
    mask[:, :3] = True
    assert torch.equal(updated(senior, first, mask), updated(senior, other, mask))
    assert not torch.equal(updated(senior, first, first != 0), updated(senior, other, first != 0))
