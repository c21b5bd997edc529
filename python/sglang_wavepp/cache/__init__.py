"""One rank's prefix cache: the mutex, the capacity ledger, leases."""
