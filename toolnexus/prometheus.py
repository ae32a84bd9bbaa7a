"""
Metrics of clients for `prometheus_client`: ``pip install "toolnexus[prometheus]"``.

Without it, ``client.metrics()`` gives the same as text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from toolnexus._extras import need
from toolnexus.metrics import BUCKETS, FAMILIES, Counts, Family, number_text

if TYPE_CHECKING:
    from toolnexus.client import Client

__all__ = ["Collector"]


class Collector:
    """
    Gives a registry of `prometheus_client` what clients have counted.

    Args:
        clients: The clients; their counts are added up.

    Raises:
        MissingExtraError: `prometheus_client` is not installed.

    Example::

        from prometheus_client import REGISTRY, start_http_server

        REGISTRY.register(Collector(client))
        start_http_server(9464)
    """

    def __init__(self, *clients: Client) -> None:
        self._core = need("prometheus_client.core", "prometheus")
        self._clients = clients

    def describe(self) -> Iterator[Any]:
        """Yield the metrics without their values, so that a registry knows the names."""
        return (self._family(family) for family in FAMILIES)

    def collect(self) -> Iterator[Any]:
        """Yield the metrics."""
        counts = Counts()
        for client in self._clients:
            counts.add(client._runner.registry.counts())
        for family in FAMILIES:
            made = self._family(family)
            if family.is_histogram:
                for labels, histogram in sorted(counts.histograms[family].items()):
                    bounds = [number_text(bound) for bound in BUCKETS]
                    buckets = [*zip(bounds, histogram.under, strict=True), ("+Inf", histogram.count)]
                    made.add_metric(labels, buckets, histogram.sum)
            else:
                for labels, value in sorted(counts.counters[family].items()):
                    made.add_metric(labels, value)
            yield made

    def _family(self, family: Family) -> Any:
        if family.is_histogram:
            return self._core.HistogramMetricFamily(family.name, family.help, labels=family.labels)
        return self._core.CounterMetricFamily(
            family.name.removesuffix("_total"), family.help, labels=family.labels
        )
