"""Real sites over Flower: a SuperLink and a ServerApp at the server, a SuperNode and ClientApps at each site.

Flower carries bytes between them and authenticates them. The same code as in a simulation decides what the bytes
contain, which sites are asked and which replies count. Nothing outside this folder imports flwr.
"""
