"""What the agent of `policy.place.agent.hsdag` is made of.

world      the problem as tensors, in units of a mean operation
schedule   what a placement's timeline says about each node
context    what the head gets to know about each group and target, given a placement
net        encoder, grouper and the head that scores (group, target) pairs
rollout    draws of placements, and how likely they were
trainer    one update after another; its state can be kept and taken up again
"""
