"""SeRL: a model that writes its own problems and grades itself by vote."""

from recipes.core.lazy import exports

__all__, __getattr__ = exports(
    __name__,
    {
        "instructions": ["parse_instructions", "filter_instruction"],
        "pool": ["rouge_l", "max_rouge_l", "InstructionPool"],
    },
)
