"""What the user did that cannot work, said in one sentence.

Every message names the file, flag or value and says what to do. The command line prints it and exits with 2;
Python callers can catch it. Anything else that escapes is a bug of ours.
"""


class RicnetError(Exception):
    """A problem the user can mend; its text is one clear sentence."""
