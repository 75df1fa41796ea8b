"""Real sites over Flower: a SuperLink and a ServerApp at the server, a SuperNode and ClientApps at each site.

Flower carries bytes between them and knows who is who; what is in the bytes, who is asked and what counts is decided
by the same code as in one process. Nothing outside this folder imports flwr.
"""
