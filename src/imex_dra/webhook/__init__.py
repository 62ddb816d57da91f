"""`imex webhook`: admission of what needs a look-up in the cluster.

It rejects what can never work, and warns of what another object may cure. Nothing depends on it: while it is down,
the API server admits everything, and the controller and the nodes say later what is wrong.
"""
