"""How K draws run through a network: private to the library.

Three small objects meet in every forward, and point one way: a `Forward` (which network is running) has a `Draw` (what
was drawn), which has a `Call` (what all draws of one call share). Noise comes from generators with names (`noise`).
`fold` runs K draws as one pass, `frozen` holds one fixed, `members` deals the members of ensembles, `recompute` serves
gradient checkpointing, `cache` keeps values computed from parameters, `inputs` cuts and joins what networks take and
return.
"""
