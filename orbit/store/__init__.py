"""The foundation's statements: tenancy, receipts, audit and events."""
