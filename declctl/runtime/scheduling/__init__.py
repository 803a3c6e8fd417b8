"""Schedules: functions that are called at given times."""
