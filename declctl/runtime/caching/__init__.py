"""The caches of a process: an informer for each watch, with the requirements of each generation."""
