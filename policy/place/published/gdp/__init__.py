"""What the learned placers `gdp` and `sgdp` are made of.

sequence   the nodes of a problem in topological order, as tensors, and several graphs below one another
clusters   clusters of operations where there are too many of them: by what they share, or by layers and time
segments   which nodes attend to which: those of their own segment, and of the memory before it
network    encoder, segment-recurrent attention, superposition gates and the softmax of every node
ppo        draws of placements, their rewards, and updates clipped per node
keeping    the state of a search, and the policy for other graphs
batch      one policy that learns on several graphs at once
"""
