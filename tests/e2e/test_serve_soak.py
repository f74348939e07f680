"""A minute of tests/e2e/soak.py."""

from soak import OPTIONS, soak


def test_soak():
    figures = soak(60, 16, OPTIONS)
    assert figures["wrong"] == []
    assert figures["requests"][200] > 50 and figures["requests"][400] > 5
