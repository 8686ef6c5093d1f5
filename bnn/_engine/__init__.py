"""How K draws run through a network: private to the library.

Three small objects meet in every forward, and point one way: a `Forward` (which network is running, `forward`) has a
`Draw` (what was drawn, `draw`), which has a `Call` (what all draws of one call share, `call`). Noise comes from
generators with names (`noise`). `fold` runs K draws as one pass, `recompute` serves gradient checkpointing, `cache` keeps
values computed from parameters, `inputs` cuts and joins what networks take and return.
"""
