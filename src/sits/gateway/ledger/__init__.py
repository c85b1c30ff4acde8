"""The token ledger: holders that spend from leases (book, client), and authorities that lend (embedded, redis)."""
