"""Recordings: what a process saw and did, in a file that `declctl replay` reads.

`entries` has what is recorded, `blocks` the format of the file, `writer` the thread that fills it. The room
knows neither informers nor handlers: `runtime.recording` makes the entries.
"""
