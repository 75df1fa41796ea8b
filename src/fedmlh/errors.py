"""User errors: one sentence that says what is wrong, where, and what to do."""


class UserError(Exception):
    """An error that the user can fix; the command line prints its one sentence and exits with code 2."""


#: What to do about the folder of a run, from Python and on the command line.
RESUME = "pass resume=True (on the command line: --resume)"
ELSEWHERE = "pass another out (on the command line: another --out)"
RESUME_OR_ELSEWHERE = "pass resume=True, overwrite=True or another out (on the command line: --resume or another --out)"


class BadLine(UserError):
    """A line of a data file that is not valid."""

    def __init__(self, path: object, lineno: int, problem: str) -> None:
        super().__init__(f"{path}, line {lineno}: {problem}")


#: Packages that the extra `train` brings.
TRAINING = frozenset({"torch", "scipy", "sklearn", "threadpoolctl"})


def explain_missing(module: str | None) -> str | None:
    """Return what to install if a package for training is missing; None for any other module."""
    package = (module or "").partition(".")[0]
    if package not in TRAINING:
        return None
    return f"{package} is not installed; only predicting and importing data work without it: {how_to_install('train')}"


def how_to_install(extras: str) -> str:
    """Return the command that installs these extras from a checkout, since fedmlh is on no package index."""
    return f'pip install -c constraints.txt ".[{extras}]" in a checkout of fedmlh'
