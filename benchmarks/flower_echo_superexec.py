"""The product's SuperExec for the app of flower_echo.py: it imports less beforehand."""

from fedmlh.sites.flower import superexec


def main() -> None:
    """Run it with its arguments."""
    superexec._IMPORTED = ["fedmlh.sites.flower.origin", "fedmlh.sites.flower.clientapp", "torch"]
    superexec.main()
