"""PasoDoble: a Proposer writes problems from knowledge texts, a Solver solves them, and both are trained."""
