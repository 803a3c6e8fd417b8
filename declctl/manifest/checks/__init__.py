"""What is wrong with a document: every fault at once, each cause only once. `load.check` calls them all."""
