"""Names the process that a site's message processes are forked from, which imports this module first."""

import os

from fedmlh.sites.flower.child import end_with_parent

#: Names the parent of that process to it.
VARIABLE = "FEDMLH_SUPEREXEC"
#: The process itself, for those that are forked from it.
ORIGIN = os.getpid()

if VARIABLE in os.environ:
    end_with_parent(int(os.environ[VARIABLE]))
