"""A minute of the soak; tests/e2e/soak.py runs it for longer."""

from soak import soak


def test_soak_of_a_minute():
    assert not soak(60)
