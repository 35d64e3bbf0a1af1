"""My recipe: the reward of a response against the mean of its prompt's other responses."""
