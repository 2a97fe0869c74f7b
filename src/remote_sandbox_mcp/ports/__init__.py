"""Ports of sandboxes on this machine, and the apps that are deployed behind them."""
