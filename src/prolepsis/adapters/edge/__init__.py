"""A client that drafts where its user is, shows what it expects at once, and lets a server verify it.

It imports no torch: a proposer of ours that needs none, such as prompt lookup, runs anywhere.
"""
