"""
Which addresses may be connected to.

A name says nothing: it is resolved first, by the same function for every spelling, and each address
that comes out is judged. What is connected to afterwards is the address, not the name again.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Collection, Sequence

import attrs

from toolnexus.errors import ConfigurationError
from toolnexus.tools.builtins.failure import ToolFailure

__all__ = ["Policy", "Resolver", "is_public", "system_resolver"]

IP = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

#: Turns a host name and a port into addresses as text, the one to try first in front.
Resolver = Callable[[str, int], Sequence[str]]

# Not public, whatever the registry that this Python ships says about them.
_CLOSED: tuple[Network, ...] = tuple(
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8",
        "100.64.0.0/10",  # between a provider and its customers; some clouds serve metadata here
        "168.63.129.16/32",  # the host of an Azure machine
        "192.0.0.0/24",
        "198.18.0.0/15",
        "240.0.0.0/4",
        "::/128",
        "64:ff9b:1::/48",
        "100::/64",
        "fec0::/10",
    )
)
# IPv6 addresses that stand for an IPv4 one, and how many bits come after it.
_EMBEDDING = (
    (ipaddress.IPv6Network("::ffff:0:0/96"), 0),
    (ipaddress.IPv6Network("::ffff:0:0:0/96"), 0),
    (ipaddress.IPv6Network("::/96"), 0),
    (ipaddress.IPv6Network("64:ff9b::/96"), 0),
    (ipaddress.IPv6Network("2002::/16"), 80),
)


def system_resolver(host: str, port: int) -> Sequence[str]:
    """
    Resolve a name as the system does.

    Raises:
        OSError: It has no address.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _embedded(address: IP) -> IP:
    """Return the IPv4 address that an IPv6 address stands for, or the address itself."""
    if isinstance(address, ipaddress.IPv6Address):
        for network, after in _EMBEDDING:
            if ipaddress.IPv6Address(int(address)) in network and int(address) > 0xFFFF:
                return ipaddress.IPv4Address(int(address) >> after & 0xFFFFFFFF)
    return address


def is_public(address: IP) -> bool:
    """
    Whether an address is one of the public internet, whatever form it is given in.

    >>> is_public(ipaddress.ip_address("1.1.1.1")), is_public(ipaddress.ip_address("::ffff:10.0.0.1"))
    (True, False)
    """
    address = _embedded(address)
    if not address.is_global or address.is_multicast or address.is_reserved:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.teredo is not None:
        return False
    return not any(address in network for network in _CLOSED if network.version == address.version)


@attrs.frozen
class Policy:
    """
    Which addresses may be connected to, and how names are resolved.

    Args:
        private: True for any address, or the networks that are allowed beside the public ones.
        resolver: Resolves names.
    """

    private: bool | tuple[Network, ...]
    resolver: Resolver

    @classmethod
    def of(cls, allow_private: bool | Collection[str], resolver: Resolver | None) -> Policy:
        """
        Return the policy of an option.

        Raises:
            ConfigurationError: What is allowed is not a network.
        """
        resolver = resolver or system_resolver
        if isinstance(allow_private, bool):
            return cls(allow_private, resolver)
        if isinstance(allow_private, str):
            allow_private = (allow_private,)
        try:
            return cls(tuple(ipaddress.ip_network(network) for network in allow_private), resolver)
        except ValueError as error:
            raise ConfigurationError(
                f"allow_private takes True or networks, such as 10.0.0.0/8: {error}"
            ) from error

    def addresses(self, host: str, port: int) -> list[str]:
        """
        Return the addresses of a host, if all of them may be connected to.

        Raises:
            ToolFailure: One may not, or there is none.
        """
        try:
            found = [ipaddress.ip_address(text) for text in self.resolver(host, port)]
        except (OSError, ValueError) as error:
            raise ToolFailure(f"{host} cannot be resolved") from error
        if not found:
            raise ToolFailure(f"{host} has no address")
        for address in found:
            if not self._allows(address):
                raise ToolFailure(f"{host} is at a private address ({address}), which is not allowed")
        return [str(address) for address in found]

    def _allows(self, address: IP) -> bool:
        if self.private is True or is_public(address):
            return True
        plain = _embedded(address)
        return not isinstance(self.private, bool) and any(
            plain in network for network in self.private if network.version == plain.version
        )
