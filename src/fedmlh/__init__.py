"""Federated extreme classification: FedMLH and FedAvg from data files to a model one can query."""
