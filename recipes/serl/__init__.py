"""SeRL: a model that writes its own problems and grades itself by vote."""
