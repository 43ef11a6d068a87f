"""The Grafana dashboards as code; `make dashboards` writes them as JSON into the package."""
