"""What other libraries' exceptions say, for our one-line messages."""


def reason(error: Exception) -> str:
    """The first line of the message, without the file name that our own message gives anyway."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).split("\n")[0]
