"""From the transparent DaemonSet model to claims: `imex migrate` edits manifests.

Pure functions from text to text: `yamltext` (exact edits of YAML) ← `workloads` (what a workload needs) ←
`migration` (files). Everything that is not edited keeps its bytes: comments, order, quotes, empty lines.
"""
