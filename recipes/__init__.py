"""Post-training recipes in which a model learns from a partner, as plug-ins for verl."""
