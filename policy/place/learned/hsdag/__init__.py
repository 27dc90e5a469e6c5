"""HSDAG's groups, placed by learned scores.

hsdag          the placer: its parameters, how it starts and ends, the policy it leaves
trainer        draws of groups and scores, what is learned from them, and its state, from which it goes on
leave_one_out  the policy gradient by which groupings are learned
"""
