"""The letters world for SeRL: half of the demonstrations count, so that most votes of the start are right."""

from toy_world.formats import Split, letters

DATA_SOURCE, ABILITY, grade, base_model = letters.DATA_SOURCE, letters.ABILITY, letters.grade, letters.base_model
MAX_RESPONSE_TOKENS, SCHEDULE, write_more = letters.MAX_RESPONSE_TOKENS, letters.SCHEDULE, letters.write_more
BAND = (letters.BAND[0], 0.8)
WORKED_SHARE = 0.5


def split(seed: int) -> Split:
    """The questions of `letters`, with more of the habit that is mostly right."""
    return letters.split(seed, WORKED_SHARE)
