"""Properties of the local provider that every provider has, in both of its tiers."""

import pytest

from tests.orchestrator.providers.conformance import Conformance

PROXIES = {"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "NO_PROXY", "no_proxy"}


class Local(Conformance):
    own_environment = frozenset({"PATH", "HOME", "TMPDIR", "LANG", *PROXIES})


class TestNamespaces(Local):
    @pytest.fixture
    def provider(self, boxes):
        return boxes


class TestProcess(Local):
    @pytest.fixture
    def provider(self, processes):
        return processes
