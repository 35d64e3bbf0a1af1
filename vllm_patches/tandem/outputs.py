"""Verify a returned authorship mask; anything doubtful raises. Imports no vLLM."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from vllm_patches.tandem.schedule import ScheduleParams, authorship

AUTHORSHIP_KEY = "tandem_authorship"


class AuthorshipError(RuntimeError):
    """A response has no valid authorship mask; training on it would train on the junior's tokens."""


def mask_from_transfer_params(transfer_params: Mapping[str, Any] | None) -> list[int] | None:
    """The mask in ``RequestOutput.kv_transfer_params``, None where it is missing (as after a client's abort)."""
    return None if transfer_params is None else transfer_params.get(AUTHORSHIP_KEY)


def check_authorship(
    token_ids: Sequence[int],
    mask: Sequence[int] | None,
    params: ScheduleParams,
    boundary_ids: Collection[int] = frozenset(),
    resumed: Sequence[int] = (),
) -> list[int]:
    """Verify the mask of a response against the one computed from its tokens, and return it.

    Args:
        token_ids: the tokens that the engine returned.
        mask: the mask that the engine returned with them.
        params, boundary_ids: what the request was decoded with, see ``config.request_settings``.
        resumed: tokens of the same response that the engine was given as the end of the prompt.

    Raises:
        AuthorshipError: no mask, one of another length, values other than 0 and 1, or other authors than the schedule
            names. Under ``word_align='before'`` the authors cannot be recomputed and only the first three are checked.
    """
    mask = check_shape(token_ids, mask)
    if params.word_align != "before":
        check_authors(mask, authorship([*resumed, *token_ids], params, boundary_ids)[len(resumed) :])
    return mask


def check_shape(token_ids: Sequence[int], mask: Sequence[int] | None) -> list[int]:
    """The mask as a list, one 0 or 1 for each token.

    Raises:
        AuthorshipError: no mask, one of another length, or values other than 0 and 1.
    """
    if mask is None:
        raise AuthorshipError("the engine returned no authorship mask; is this a tandem engine, and did it finish?")
    mask = list(mask)
    if len(mask) != len(token_ids):
        raise AuthorshipError(f"the authorship mask has {len(mask)} entries for {len(token_ids)} tokens")
    if not set(mask) <= {0, 1}:
        raise AuthorshipError(f"the authorship mask holds {sorted(set(mask) - {0, 1})}; expected 0 and 1 only")
    return mask


def check_authors(mask: Sequence[int], expected: Sequence[int]) -> None:
    """Compare a mask with the authors that the schedule names.

    Raises:
        AuthorshipError: they differ at some token.
    """
    if mask != expected:
        first = next(i for i, (author, want) in enumerate(zip(mask, expected, strict=True)) if author != want)
        raise AuthorshipError(
            f"token {first} is marked as author {mask[first]}, and the schedule names {expected[first]}; the engine "
            "ran with other tandem settings than the client assumes"
        )
