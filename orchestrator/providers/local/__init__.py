"""Sandboxes on this machine: a keeper process and a box for each, which outlive the server that ordered them."""
