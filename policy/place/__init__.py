"""Placers: groups to devices."""

TABLE = {
    "single": "policy.place.single:Single",
    "random": "policy.place.random:Random",
    "greedy": "policy.place.greedy:Greedy",
    "reinforce": "policy.place.reinforce:Reinforce",
}
