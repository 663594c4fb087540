"""Lets the assertions of the shared contract explain themselves."""

import pytest

pytest.register_assert_rewrite("contract")
