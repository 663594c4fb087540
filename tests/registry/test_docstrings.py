"""Docstrings in the three usual styles, and in none."""

import inspect

import pytest

from dovetail.registry.functions import split_docstring

GOOGLE = """Find notes.

    Looks in every folder.

    Args:
        text (str, optional): What to look for:
            words or a phrase.
        limit: How many at most.

        *folders: Where to look.

    Returns:
        The notes.

    Raises:
        KeyError: Never.

    Example:
        find("milk")
    """
NUMPY = """Find notes.

    Looks in every folder.

    Parameters
    ----------
    text : str, optional
        What to look for:
        words or a phrase.
    limit, most
        How many at most.

    Returns
    -------
    list
        The notes.

    Notes
    -----
    Slow.
    """
SPHINX = """Find notes.

    Looks in every folder.

    :param str text: What to look for:
        words or a phrase.
    :param limit: How many at most.
    :type limit: int
    :returns: The notes,
        sorted.
    :raises KeyError: Never.

    Slow.
    """


@pytest.mark.parametrize(
    ("text", "summary", "descriptions"),
    [
        pytest.param("", None, {}, id="nothing"),
        pytest.param("Add.", "Add.", {}, id="one line"),
        pytest.param("\n    Args:\n        a: One.", None, {"a": "One."}, id="arguments only"),
        pytest.param("Add.\n\nArgs:\n    a: One.\nMore.", "Add.\n\nMore.", {"a": "One."}, id="text after a section"),
        pytest.param("Add.\n\nArgs: none at all.", "Add.\n\nArgs: none at all.", {}, id="no heading"),
        pytest.param(
            "Add.\n\nArgs:\n    a:\n        One.\n    b: Two.", "Add.", {"a": "One.", "b": "Two."}, id="below"
        ),
        pytest.param("Add.\n\nArgs:\n\n", "Add.", {}, id="empty section"),
        pytest.param("Time is 10:30 now.\n:wave: hello", "Time is 10:30 now.\n:wave: hello", {}, id="colons"),
        pytest.param(
            GOOGLE,
            'Find notes.\n\nLooks in every folder.\n\nExample:\n    find("milk")',
            {
                "text": "What to look for: words or a phrase.",
                "limit": "How many at most.",
                "folders": "Where to look.",
            },
            id="google",
        ),
        pytest.param(
            NUMPY,
            "Find notes.\n\nLooks in every folder.\n\nNotes\n-----\nSlow.",
            {
                "text": "What to look for: words or a phrase.",
                "limit": "How many at most.",
                "most": "How many at most.",
            },
            id="numpy",
        ),
        pytest.param(
            SPHINX,
            "Find notes.\n\nLooks in every folder.\n\nSlow.",
            {"text": "What to look for: words or a phrase.", "limit": "How many at most."},
            id="sphinx",
        ),
    ],
)
def test_styles(text: str, summary: str | None, descriptions: dict[str, str]) -> None:
    assert split_docstring(inspect.cleandoc(text)) == (summary, descriptions)
