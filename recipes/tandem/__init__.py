"""Tandem reinforcement learning: a senior is trained on responses it writes together with a frozen junior."""

from recipes.core.lazy import exports

__all__, __getattr__ = exports(
    __name__,
    {
        "authorship": ["Authorship"],
        "junior_weight": ["token_weights"],
        "selection": ["macro_pass_at_k"],
    },
)
