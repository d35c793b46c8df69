"""Guardians: small processes that outlive the tool, end what it has started, and put back what it has set."""
