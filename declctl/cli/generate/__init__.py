"""`declctl generate`: objects and files that bring a manifest into a cluster, made of what the manifest says.

What is printed is the same for the same files, so that it can be kept under version control.
"""
