"""Secure aggregation: a protocol by which a server learns the sum of vectors, and none of them.

Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017, Figure 4, in its
honest-but-curious form. Every two clients agree on a mask that one adds and the other subtracts; every client adds a
mask of its own. Both kinds can be recovered from shares that a threshold of clients hold, so that clients may drop out
at any step. Nothing here knows models or rounds: `nestling.methods.secure` is the part of a method that uses it.
"""
