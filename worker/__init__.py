"""The program inside a sandbox: it works on one task, tells the server all that happens, and leaves."""
