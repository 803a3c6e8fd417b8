"""`state` of a manifest: what a process keeps on the disk, and what the next one begins with."""
