"""`imex controller`: writes NVLinkPartitions, the status and templates of ComputeDomains, and clique labels.

`leader` runs watches and reconcilers while it holds the Lease. Reconcilers (`nvlinkpartitions`,
`computedomains`) read from `caches` and write what pure functions plan: `partitionplan` with `recovery`,
`membership` and `channels`, and `domainstatus`.
"""
