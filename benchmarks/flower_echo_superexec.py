"""The product's SuperExec for the app of flower_echo.py: it imports less beforehand."""

from fedmlh.engines.flower import superexec


def main() -> None:
    """Run it with its arguments."""
    superexec._IMPORTED = ["fedmlh.engines.flower.origin", "fedmlh.engines.flower.clientapp", "torch"]
    superexec.main()
