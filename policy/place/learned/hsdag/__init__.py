"""HSDAG's groups, placed by learned scores.

hsdag          the placer: its parameters, how it starts and ends, the policy it leaves
agent          tables of logits beside the weights, their policy gradient, and imitation
trainer        draws of groups and scores, what is learned from them, and its state, from which it goes on
"""
