"""The checks of a document. They report every fault at once, and each cause only once."""
