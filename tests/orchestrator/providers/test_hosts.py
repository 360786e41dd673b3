"""Names of hosts are compared in one spelling, and addresses are judged by whose they are."""

import pytest

from orchestrator.providers.local.hosts import Hosts, Malformed, NotReachable, is_public, split


@pytest.mark.parametrize(
    ("authority", "endpoint"),
    [
        ("Example.COM:443", ("example.com", 443)),
        ("example.com.:80", ("example.com", 80)),
        ("bücher.example", ("xn--bcher-kva.example", None)),
        ("BÜCHER.example.:1", ("xn--bcher-kva.example", 1)),
        ("[::1]:80", ("::1", 80)),
        ("[0:0::0:1]", ("::1", None)),
        ("under_score.example", ("under_score.example", None)),
    ],
)
def test_one_spelling(authority, endpoint):
    """Case, a trailing dot, and letters beyond ASCII make no other host of it."""
    assert split(authority) == endpoint


@pytest.mark.parametrize(
    "authority",
    [
        *("", ":80", "a b", "a\t", "a\0.example", "a\n", "user@host", "user:word@host:80", "host:0", "host:65536"),
        *("host:", "host:+80", "host:8 0", "host:٣", "host..", ".host", "a..b", "-a", "[::1", "[::1]x", "[::1]:"),
        *("a/b", "a?b", "a#b", "a\\b", "%31", "x" * 254, "[127.0.0.1]", "host:80:80"),
    ],
)
def test_no_name(authority):
    """What no host is called is refused before anybody looks it up."""
    with pytest.raises(Malformed):
        split(authority)


@pytest.mark.parametrize("address", ["93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c", "::ffff:8.8.8.8"])
def test_public(address):
    """Addresses of everybody's network."""
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        *(
            "127.0.0.1",
            "127.1.2.3",
            "0.0.0.0",
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
        ),
        *(
            "224.0.0.1",
            "255.255.255.255",
            "240.0.0.1",
            "192.0.2.1",
            "198.18.0.1",
            "::",
            "::1",
            "fe80::1",
            "fe80::1%eth0",
        ),
        *(
            "fc00::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001:0:1::",
        ),
    ],
)
def test_not_public(address):
    """Loopback, private, link-local and multicast addresses, in whatever dress."""
    assert not is_public(address)


async def test_a_name_on_the_list_means_the_ports_of_the_web():
    """An entry without a port is for 80 and 443, one with a port for that alone."""
    hosts = Hosts.of(["LocalHost.", "127.0.0.1:5000"], open_network=False)
    assert hosts.listed == {("localhost", 80), ("localhost", 443), ("127.0.0.1", 5000)}
    assert await hosts.addresses("127.0.0.1", 5000) == ["127.0.0.1"]
    with pytest.raises(NotReachable):
        await hosts.addresses("127.0.0.1", 80)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "0x7f.1", "2130706433", "127.1", "::1", "0"])
async def test_the_open_network_is_not_this_machine(host):
    """With every public host allowed, this machine is still none of them, however it is written."""
    with pytest.raises((NotReachable, OSError)):
        await Hosts.of([], open_network=True).addresses(host, 80)


async def test_the_open_network_is_public():
    """With every public host allowed, an address that is one passes."""
    assert await Hosts.of([], open_network=True).addresses("8.8.8.8", 53) == ["8.8.8.8"]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "10.0.0.1"])
async def test_a_name_on_the_public_list_is_not_private(host):
    """Wherever a name leads when it is asked for: what is listed in public is reached in public only."""
    hosts = Hosts.of([], in_public=[f"{host}:5000", "8.8.8.8:53"], open_network=False)
    with pytest.raises(NotReachable):
        await hosts.addresses(host, 5000)
    assert await hosts.addresses("8.8.8.8", 53) == ["8.8.8.8"]
    with pytest.raises(NotReachable):
        await hosts.addresses("8.8.8.8", 54)
