"""`declctl replay`: code runs on what a recording has, in virtual time and without a cluster.

`tape` has the recording in memory, `server` the objects as it shows them, `player` makes the calls,
`differences` compares them, and `replay` starts and ends all of it.
"""
