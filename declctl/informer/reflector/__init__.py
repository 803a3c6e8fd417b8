"""The reflector: lists and watches one resource, and decides after each answer on the next request.

`reflector` is the loop, with its options. `faults` has its states and the reactions to faults. `lists` makes
lists and checks streamed ones. `continuity` detects that the server was restored from a backup. `statistics`
has the figures.
"""
