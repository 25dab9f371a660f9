"""One run: assembling it from an experiment, running its rounds, its directory, and reading it back."""
