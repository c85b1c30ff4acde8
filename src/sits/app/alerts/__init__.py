"""Alerts and boards for the monitoring people have already: rules, servers' configurations and dashboards made from a fleet's objective."""
