"""Bayesian neural networks with fewer parameters than the network itself."""
