"""The data of the supervised start: a generator proposes and solves, a judge confirms."""
