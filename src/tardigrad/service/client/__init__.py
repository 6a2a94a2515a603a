"""The client: it fetches tasks, trains, and delivers uploads."""
