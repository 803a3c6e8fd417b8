"""Kubernetes controllers that are declared, not programmed."""
