"""Campaigns: many drawn cases, each of one seed, each judged by an oracle; `python -m tests.campaigns` runs them."""
