"""The one exception for what a user can put right."""


class PskdError(ValueError):
    """A wrong argument, setting or file: one line that says what was wrong, what is allowed and what to do.

    It is a ``ValueError``, so a stranger's loop can catch it as such; the command line prints it and exits with 2.
    """
