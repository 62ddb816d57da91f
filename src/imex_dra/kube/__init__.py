"""A small controller runtime: reflectors fill stores, changes fill work queues, workers reconcile."""
