"""Networks that `bayesianize count` and `bayesianize bench` build by name."""
