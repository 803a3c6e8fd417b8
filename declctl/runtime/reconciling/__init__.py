"""From changes to keys, and from keys to the calls of reconcilers; their finalizers."""
