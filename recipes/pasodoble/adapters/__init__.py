"""PasoDoble inside verl: two policies in one trainer, their workers, servers and rollouts."""
