"""The import path of plug-ins written for releases before 0.2; new ones import `policy.place.base.search`."""

from policy.place.base.search import BudgetEndedError, Method, Search, policy_of

__all__ = ["BudgetEndedError", "Method", "Search", "policy_of"]
