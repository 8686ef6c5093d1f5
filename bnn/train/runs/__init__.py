"""Runs: the files of a run's folder, what a finished run knows, and what it says about new inputs."""
