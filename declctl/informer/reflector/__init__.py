"""The reflector: lists and watches one resource, and decides after each answer what to ask next.

`reflector` is the loop, with its options. `faults` has its states, and what follows a fault. `lists` makes
lists and checks streamed ones. `continuity` finds out that the server was put back to a backup. `statistics`
has the figures.
"""
