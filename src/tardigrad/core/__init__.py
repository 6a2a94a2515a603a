"""The core: bookkeeping, paces, staleness laws, server steps, events, snapshots. It reads no clock."""
