"""Evaluation of trained models: the numbers that users compare, from one command."""
