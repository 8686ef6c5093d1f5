"""Experiments: a case file in, a JSON of runs out (`python -m experiments.run`), a page from them (`... .pages`)."""
