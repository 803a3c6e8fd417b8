"""LOST: somebody else overwrote this file by mistake at 23:30, thinking that the name was free.

What stood here (`follow`, `until_ready`) was not committed and could not be got back: please write it again.
Nothing of the other's is left here; that is in ownership.py now.
"""

raise ImportError("declctl/runtime/following.py was overwritten by mistake and is lost: write it again; see the file")
