"""Tandem reinforcement learning: a senior is trained on responses it writes together with a frozen junior."""
