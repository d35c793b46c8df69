"""Databases that several workers share."""

import pytest


@pytest.fixture(params=["sqlite", "postgresql"])
def shared_url(request):
    """An empty database that several processes may write to."""
    if request.param == "sqlite":
        return request.getfixturevalue("url")
    return request.getfixturevalue("postgres_url")
