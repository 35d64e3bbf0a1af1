"""A mask that is missing, short, implausible or not the schedule's is refused."""

import pytest

from vllm_patches.tandem.outputs import AUTHORSHIP_KEY, AuthorshipError, check_authorship, mask_from_transfer_params
from vllm_patches.tandem.schedule import ScheduleParams, authorship

PARAMS = ScheduleParams(max_gap_tokens=3, seed=1)
TOKENS = [1, 7, 1, 1, 1, 1, 7, 1, 1, 7, 7, 1]
MASK = authorship(TOKENS, PARAMS, {7})


def test_the_schedules_own_mask_passes():
    assert len(set(MASK)) == 2
    assert check_authorship(TOKENS, MASK, PARAMS, {7}) == MASK
    assert check_authorship(TOKENS[5:], MASK[5:], PARAMS, {7}, resumed=TOKENS[:5]) == MASK[5:]
    assert check_authorship([], [], PARAMS, {7}) == []


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        (None, "no authorship mask"),
        (MASK[:-1], "11 entries for 12 tokens"),
        ([*MASK, 1], "13 entries for 12 tokens"),
        ([2, *MASK[1:]], r"holds \[2\]"),
        ([1 - MASK[0], *MASK[1:]], "token 0 is marked"),
        ([1] * 12, "is marked as author 1, and the schedule names 0"),
    ],
)
def test_any_other_mask_is_refused(mask, says):
    with pytest.raises(AuthorshipError, match=says):
        check_authorship(TOKENS, mask, PARAMS, {7})


def test_a_mask_of_another_seed_or_of_the_resumed_part_is_refused():
    with pytest.raises(AuthorshipError, match="other tandem settings"):
        check_authorship(TOKENS, MASK, ScheduleParams(max_gap_tokens=3, seed=2), {7})
    with pytest.raises(AuthorshipError):
        check_authorship(TOKENS[5:], MASK[5:], PARAMS, {7})


def test_under_word_align_before_the_form_alone_is_checked():
    before = ScheduleParams(word_align="before")
    assert check_authorship([1, 2], [0, 1], before, {7}) == [0, 1]
    with pytest.raises(AuthorshipError):
        check_authorship([1, 2], [0], before, {7})


def test_the_mask_is_found_in_the_transfer_parameters():
    assert mask_from_transfer_params({AUTHORSHIP_KEY: [1, 0], "other": 3}) == [1, 0]
    assert mask_from_transfer_params({}) is None
    assert mask_from_transfer_params(None) is None
