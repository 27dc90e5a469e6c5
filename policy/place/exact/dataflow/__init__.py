"""Devices and links that work at the same time: schedules."""
