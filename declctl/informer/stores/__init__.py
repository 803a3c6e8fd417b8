"""Stores: records by key and by index, and the views that readers have of them."""
