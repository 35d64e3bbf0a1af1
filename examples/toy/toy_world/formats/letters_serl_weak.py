"""The letters world where SeRL's votes mislead: a fifth of the demonstrations count, so that most votes are wrong."""

from toy_world.formats import Split, letters

DATA_SOURCE, ABILITY, grade, base_model = letters.DATA_SOURCE, letters.ABILITY, letters.grade, letters.base_model
MAX_RESPONSE_TOKENS, SCHEDULE, write_more = letters.MAX_RESPONSE_TOKENS, letters.SCHEDULE, letters.write_more
BAND = (0.05, letters.BAND[1])
WORKED_SHARE = 0.2


def split(seed: int) -> Split:
    """The questions of `letters`, with less of the habit that is mostly right."""
    return letters.split(seed, WORKED_SHARE)
