"""What surrounds a run: the end of a run that failed, what a killed run left behind, and how the next one resumes."""
