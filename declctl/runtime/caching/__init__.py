"""The caches of a process: an informer for each watch, and what each generation wants of it."""
