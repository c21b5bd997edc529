"""An executable model of the admission protocol, in plain Python: what the product is compared with.

Nothing here imports the product. `Rules()` is the protocol that `docs/model.md` describes; every other value of a
rule is a protocol that somebody could have built instead, most of them wrong.
"""
