"""How a network becomes Bayesian: which layers (`selection`), as data (`record`), from a file (`config`). Private."""
