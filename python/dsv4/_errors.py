"""The errors of dsv4. Each message is one line that names the thing, what is wrong, and the remedy."""


class Error(Exception):
    """Base of all errors of dsv4."""


class InvalidArgumentError(Error, ValueError):
    """An argument that can never work."""


class NotFoundError(Error, FileNotFoundError):
    """A file, tensor or name does not exist."""


class DataLossError(Error):
    """A file is damaged or contradicts itself."""


class UnsupportedError(Error, NotImplementedError):
    """Valid, but this build or this device cannot do it."""


class ResourceExhaustedError(Error, MemoryError):
    """Not enough memory, context length or disk space, or too many requests."""


class CancelledError(Error):
    """The call or the request was stopped: by close(), by a cancel, or by the end of the interpreter."""


class InternalError(Error, RuntimeError):
    """A bug in dsv4."""


class ForkError(Error, RuntimeError):
    """An engine of the parent process was used in a forked child, which has none of its threads."""
