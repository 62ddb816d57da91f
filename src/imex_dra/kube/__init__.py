"""A small controller runtime: reflectors fill stores, changes fill queues, workers reconcile."""
