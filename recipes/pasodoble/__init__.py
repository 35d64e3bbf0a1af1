"""PasoDoble: a Proposer writes problems from knowledge texts, a Solver solves them, and both are trained."""

from recipes.core.lazy import exports

__all__, __getattr__ = exports(
    __name__,
    {
        "parsing": ["extract_question", "extract_answer"],
        "rounds": ["proposer_reward"],
        "diversity": ["DiversityHistory"],
    },
)
