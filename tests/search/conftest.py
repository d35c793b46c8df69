"""Databases that several workers share."""

import pytest


@pytest.fixture(params=["sqlite", "postgresql"])
def shared_url(request, tmp_path):
    """An empty database that several processes may write to."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/shared.db"
    return request.getfixturevalue("postgres_url")
